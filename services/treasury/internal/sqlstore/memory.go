package sqlstore

import (
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// maxMemory bounds the accounts and the holds in memory, of each kind. Beyond it they
// are dropped, and read again.
const maxMemory = 4096

// memory is what the store knows of the books: the head of the chain, and rows as they
// were when it stood there. Every change of a row comes with a row of the journal, so
// as long as the head in the database is this one, the rows are current. An account
// or hold that is not in memory may be in the database all the same.
//
// Only what is committed is put here, after the commit. The zero value knows nothing.
type memory struct {
	mu       sync.RWMutex
	known    bool
	calm     bool // the last writer was this store
	head     ledger.Head
	accounts map[string]ledger.Account
	holds    map[string]ledger.Hold // active ones
}

// recall returns what is in memory of keys. whole means that a change may be decided
// by it: nothing is missing but the ids that are expected to be new, and other writers
// do not come in between all the time.
func (m *memory) recall(keys ledger.Keys) (found rows, whole bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found = emptyRows(m.head)
	if !m.known {
		found.head = ledger.Head{Seq: -1} // that of no books
		return found, false
	}
	whole = m.calm
	account := func(id string) {
		a, ok := m.accounts[id]
		if whole = whole && ok; ok {
			found.accounts[id] = a
		}
	}
	hold := func(id string) (ok bool) {
		h, ok := m.holds[id]
		if ok {
			found.holds[id] = h
			account(ledger.Available(h.Agent))
			account(ledger.Held(h.Agent))
		}
		return ok
	}
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

// keep remembers the rows that were found and what a change made of them.
func (m *memory) keep(found rows, c ledger.Changes, calm bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known || m.head != found.head || len(m.accounts) > maxMemory || len(m.holds) > maxMemory {
		m.accounts, m.holds = map[string]ledger.Account{}, map[string]ledger.Hold{}
	}
	m.known, m.calm, m.head = true, calm, c.Head
	for id, a := range found.accounts {
		m.accounts[id] = a
	}
	for _, a := range c.Accounts {
		m.accounts[a.ID] = a
	}
	hold := func(h ledger.Hold) {
		if h.Status == api.HoldActive {
			m.holds[h.ID] = h
		} else {
			delete(m.holds, h.ID)
		}
	}
	for _, h := range found.holds {
		hold(h)
	}
	for _, h := range c.Holds {
		hold(h)
	}
}

// forget is for when it is not known what was committed.
func (m *memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.calm, m.accounts, m.holds = false, false, nil, nil
}

// balance of an agent, if it is in memory.
func (m *memory) balance(agent string) (ledger.Balance, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	a, ok := m.accounts[ledger.Available(agent)]
	h, held := m.accounts[ledger.Held(agent)]
	return ledger.Balance{Agent: agent, Available: a.Balance, Held: h.Balance, Entries: a.Entries}, ok && held
}
