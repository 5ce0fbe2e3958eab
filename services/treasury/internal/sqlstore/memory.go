package sqlstore

import (
	"maps"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// maxMemory bounds the accounts, the holds and the tallies in memory, each. Beyond it all entries are
// dropped and read again.
const maxMemory = 4096

// memory is a cache of the ledger: the head of the chain, and rows as of that head. Each
// change of a row comes with a row of the journal, so the cached rows are current as long
// as the head in the database is the cached one. An account or hold that is not in the
// cache may be in the database.
//
// Rows are cached only after their commit. The zero value is an empty cache.
type memory struct {
	mu       sync.RWMutex
	known    bool
	ours     bool // the last writer of the ledger was this store
	head     ledger.Head
	accounts map[string]ledger.Account
	holds    map[string]ledger.Hold // active holds only
	tallies  map[string]limits.Tally
}

// recall returns the cached rows of keys. whole reports whether a change may be decided
// by them: only ids that are expected to be new are missing, and no other process wrote
// recently, so that the write will probably succeed.
func (m *memory) recall(keys ledger.Keys) (found rows, whole bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found = emptyRows(m.head)
	if !m.known {
		found.Head = ledger.Head{Seq: -1} // differs from the head of any ledger
		return found, false
	}
	whole = m.ours
	account := func(id string) {
		a, ok := m.accounts[id]
		if whole = whole && ok; ok {
			found.Accounts[id] = a
		}
	}
	tally := func(id string) {
		t, ok := m.tallies[id]
		if whole = whole && ok; ok {
			found.Tallies[id] = t
		}
	}
	hold := func(id string) (ok bool) {
		h, ok := m.holds[id]
		if ok {
			found.Holds[id] = h
			account(ledger.Available(h.Agent))
			account(ledger.Held(h.Agent))
			if h.Asset != api.Credits {
				account(ledger.AvailableIn(h.Asset, h.Agent))
				account(ledger.HeldIn(h.Asset, h.Agent))
			}
			accounts, tallies := h.CountedBy()
			for _, id := range accounts {
				account(id)
			}
			for _, id := range tallies {
				tally(id)
			}
		}
		return ok
	}
	for _, id := range keys.Tallies {
		tally(id)
	}
	whole = whole && len(keys.Approvals) == 0 // they are never cached
	for _, id := range keys.Accounts {
		account(id)
	}
	for _, id := range keys.Holds {
		whole = hold(id) && whole
	}
	for _, id := range keys.NewHolds {
		hold(id)
	}
	return found, whole
}

// keep caches the rows that were found and the changes to them.
func (m *memory) keep(found rows, c ledger.Changes, ours bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known || m.head != found.Head || len(m.accounts) > maxMemory || len(m.holds) > maxMemory || len(m.tallies) > maxMemory {
		m.accounts, m.holds, m.tallies = map[string]ledger.Account{}, map[string]ledger.Hold{}, map[string]limits.Tally{}
	}
	m.known, m.ours, m.head = true, ours, c.Head
	maps.Copy(m.accounts, found.Accounts)
	for _, a := range c.Accounts {
		m.accounts[a.ID] = a
	}
	maps.Copy(m.tallies, found.Tallies)
	maps.Copy(m.tallies, c.Tallies)
	hold := func(h ledger.Hold) {
		if h.Status == api.HoldActive {
			m.holds[h.ID] = h
		} else {
			delete(m.holds, h.ID)
		}
	}
	for _, h := range found.Holds {
		hold(h)
	}
	for _, h := range c.Holds {
		hold(h)
	}
}

// forget empties the cache. It is called when the outcome of a commit is unknown.
func (m *memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.ours, m.accounts, m.holds, m.tallies = false, false, nil, nil, nil
}

// balance returns the cached balance of an agent, and false if it is not cached.
func (m *memory) balance(agent string) (ledger.Balance, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	whole := true
	b, err := ledger.BalanceOf(agent, func(id string) (ledger.Account, bool) {
		a, ok := m.accounts[id]
		whole = whole && ok
		return a, ok
	})
	return b, whole && err == nil
}

// add caches accounts that were read while no Update ran. If nothing is cached, the head
// of the accounts is unknown, and add does nothing.
func (m *memory) add(found map[string]ledger.Account) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known {
		maps.Copy(m.accounts, found)
	}
}

// fillAbsent adds those of ids that are not stored to found, with the balance 0: the
// ledger decides as if they were stored so. It adds no account of credits of an agent,
// because its absence means that the agent has no account.
func fillAbsent(found map[string]ledger.Account, ids []string) {
	for _, id := range ids {
		if _, ok := found[id]; !ok && !ledger.Required(id) {
			found[id] = ledger.Account{ID: id}
		}
	}
}
