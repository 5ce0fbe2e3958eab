package chain

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// Books is what the ledger says about the USDC of an agent.
type Books struct {
	Total    api.Micros // available and held, less the debt
	Held     api.Micros // by payments whose outcome is not posted yet
	Waiting  api.Micros // of deposits that are stored and not posted
	Accepted api.Micros // difference that an operator has accepted
	Frozen   bool
}

// Account compares the ledger with the chain for one agent and all its wallets.
type Account struct {
	Agent      string
	Address    common.Address // of the present wallet
	Ledger     api.Micros
	Chain      api.Micros
	Held       api.Micros
	Difference api.Micros // what is not explained: Ledger - Chain less what is
	Frozen     bool       // also by this run
	Used       []Used     // authorizations since the block of the last agreement, with a difference
}

// Report is the result of a reconciliation at a block.
type Report struct {
	Network  string
	Block    Block
	Accounts []Account
}

// ReconcileStore is the persistence of a [Reconciler].
type ReconcileStore interface {
	Wallets(ctx context.Context) (map[common.Address]wallet.Owner, error)
	// Books returns the books of an agent. Errors: NotFound.
	Books(ctx context.Context, network, agent string) (Books, error)
	// Freeze stores that an agent's books, of which accepted is accepted, differ from the
	// chain, and reports whether it did. It does nothing if the agent is frozen, or if an
	// operator has accepted a difference since the books were read.
	Freeze(ctx context.Context, network, agent string, accepted, difference api.Micros, block uint64, at int64) (bool, error)
}

// Reconciler compares the USDC of the ledger with the token's balances at one block. A
// difference that active holds explain is none: their money may have left on the chain.
// Any other difference must be seen twice, at least Grace apart, because the ledger is
// read a moment after the block; then the agent is frozen.
type Reconciler struct {
	Client *Client
	Store  ReconcileStore
	Log    *slog.Logger
	Now    func() time.Time
	Grace  time.Duration
	// Frozen, which may be nil, is called when an agent is frozen.
	Frozen func(context.Context, Account)

	mu       sync.Mutex // serializes runs
	suspects map[string]suspect
	agreed   map[string]uint64 // last block at which an agent's books agreed
}

type suspect struct {
	difference api.Micros
	since      time.Time
}

// Run reconciles at a block that the watcher has reached; agent "" means all agents.
// Errors: Unavailable if the chain cannot be read, and then no agent is frozen.
func (r *Reconciler) Run(ctx context.Context, at Block, agent string) (Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspects == nil {
		r.suspects, r.agreed = map[string]suspect{}, map[string]uint64{}
	}
	report := Report{Network: r.Client.Network().Name, Block: at, Accounts: []Account{}}
	wallets, err := r.Store.Wallets(ctx)
	if err != nil {
		return report, err
	}
	var addresses []common.Address
	own := map[string][]common.Address{} // by agent, the present wallet first
	for a, o := range wallets {
		if agent != "" && agent != o.Agent {
			continue
		}
		addresses = append(addresses, a)
		if own[o.Agent] = append(own[o.Agent], a); !o.Next && !o.Retired {
			n := len(own[o.Agent]) - 1
			own[o.Agent][0], own[o.Agent][n] = a, own[o.Agent][0]
		}
	}
	if agent != "" && len(addresses) == 0 {
		return report, &api.Error{Code: api.NotFound, Message: fmt.Sprintf("agent %.40q has no wallet", agent), Next: "anima agent list shows the agents"}
	}
	balances, err := r.Client.BalancesAt(ctx, at.Hash, addresses...)
	if err != nil {
		return report, err
	}
	chain := map[string]api.Micros{} // of all wallets of an agent
	for i, a := range addresses {
		chain[wallets[a].Agent] += balances[i]
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		account, err := r.compare(ctx, at, name, own[name], chain[name])
		if err != nil {
			return report, err
		}
		report.Accounts = append(report.Accounts, account)
	}
	return report, nil
}

func (r *Reconciler) compare(ctx context.Context, at Block, agent string, wallets []common.Address, chain api.Micros) (Account, error) {
	network := r.Client.Network().Name
	b, err := r.Store.Books(ctx, network, agent)
	if err != nil {
		return Account{}, err
	}
	a := Account{Agent: agent, Address: wallets[0], Ledger: b.Total, Chain: chain, Held: b.Held, Frozen: b.Frozen}
	a.Difference = unexplained(b, chain)
	if a.Difference == 0 {
		delete(r.suspects, agent)
		r.agreed[agent] = at.Number
		return a, nil
	}
	first := r.agreed[agent] + 1
	if first == 1 && at.Number > scanBlocks {
		first = at.Number - scanBlocks
	}
	// The difference is of the blocks right after the agreement, however long it lasts.
	if last := min(at.Number, first+lookBack); first <= last {
		for _, w := range wallets {
			used, err := r.Client.AuthorizationsUsed(ctx, first, last, w)
			if err != nil {
				return a, err
			}
			a.Used = append(a.Used, used...)
		}
	}
	now := r.Now()
	s, known := r.suspects[agent]
	if !known || s.difference != a.Difference {
		r.suspects[agent] = suspect{a.Difference, now}
		return a, nil
	}
	if a.Frozen || now.Sub(s.since) < r.Grace {
		return a, nil
	}
	if made, err := r.Store.Freeze(ctx, network, agent, b.Accepted, a.Difference, at.Number, now.UnixMicro()); err != nil || !made {
		return a, err
	}
	a.Frozen = true
	r.Log.ErrorContext(ctx, "the ledger and the chain differ: the USDC of the agent is frozen", "agent", agent, "address", a.Address,
		"ledger", a.Ledger, "chain", a.Chain, "difference", a.Difference, "block", at.Number, "authorizations", len(a.Used))
	if r.Frozen != nil {
		r.Frozen(ctx, a)
	}
	return a, nil
}

// unexplained returns the difference that neither holds nor waiting deposits nor earlier
// acceptance explain: positive if the ledger has more than the chain.
func unexplained(b Books, chain api.Micros) api.Micros {
	d := b.Total + b.Waiting - chain - b.Accepted
	switch {
	case d > b.Held:
		return d - b.Held
	case d >= 0:
		return 0
	}
	return d
}
