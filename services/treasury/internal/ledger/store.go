package ledger

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// Store keeps the books. Its errors are faults of keeping: [api.Unavailable]
// when trying again may help, anything else when not. It is safe for concurrent
// use, also by several processes.
type Store interface {
	// Update runs change on the current state and keeps what it returns, all in
	// one transaction that no other Update runs beside. change may be called more
	// than once, in a transaction or before one; only the last call counts. Nothing is written for no changes.
	Update(ctx context.Context, keys Keys, change func(State) Changes) error

	// Open makes sure that an agent has its two accounts.
	Open(ctx context.Context, agent string) error

	// Balance errors: [api.NotFound].
	Balance(ctx context.Context, agent string) (Balance, error)

	// Holds lists holds, oldest first.
	Holds(ctx context.Context, f HoldFilter) ([]HoldState, error)
	// Spent adds up what an agent's holds of a category that were made for a turn came
	// to, and what is held for it yet.
	Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error)

	// Due lists at most limit active holds that expire at or before the time.
	Due(ctx context.Context, at int64, limit int) ([]string, error)

	// Transactions lists what touched the agent ("": all) after a sequence
	// number, in order.
	Transactions(ctx context.Context, agent string, after int64, limit int) ([]Transaction, error)

	// Snapshot reads everything that must agree with the transactions at one
	// moment, and the transactions after a sequence number.
	Snapshot(ctx context.Context, after int64) (Snapshot, error)
}

// Keys name what a change reads. The store adds both accounts of the agent of
// every hold it finds. NewHolds and NewTransactions are ids that the change makes
// unless they are there already, which is rare: a store may learn it from the insert.
type Keys struct {
	Accounts        []string
	Holds           []string
	NewHolds        []string
	NewTransactions []string
}

func (k *Keys) add(more Keys) {
	k.Accounts = append(k.Accounts, more.Accounts...)
	k.Holds = append(k.Holds, more.Holds...)
	k.NewHolds = append(k.NewHolds, more.NewHolds...)
	k.NewTransactions = append(k.NewTransactions, more.NewTransactions...)
}

// State is what the store found; what is not there is missing in the maps.
type State struct {
	Head         Head
	Accounts     map[string]Account
	Holds        map[string]Hold
	Transactions map[string]Transaction
}

// Head is the end of the chain. The zero value is that of empty books.
type Head struct {
	Seq  int64
	Hash Hash
}

// Account is a running balance.
type Account struct {
	ID      string
	Balance api.Micros
	Entries int64 // transactions that touched it; an agent's are all counted on its available account
}

// Changes are what a group of operations did. Accounts and holds are as they
// are now, each once.
type Changes struct {
	Head         Head
	Transactions []Transaction
	Accounts     []Account
	Holds        []Hold
	Tiers        []TierChange
}

// Balance of an agent.
type Balance struct {
	Agent     string
	Available api.Micros
	Held      api.Micros
	Entries   int64
}

// Tier is that of everything the agent owns: what is held is not yet spent.
func (b Balance) Tier() api.Tier { return api.TierOf(b.Available + b.Held) }

// TierChange is the change of an agent's tier by one transaction.
type TierChange struct {
	Agent    string
	From, To api.Tier
	Balance  api.Micros
	Seq      int64 // of the transaction
	At       int64
	Cause    Hash   // of the transaction
	Parent   string // as in [Transaction]
}

// HoldFilter chooses holds. Agent "" means everyone's.
type HoldFilter struct {
	Agent  string
	Status api.HoldStatus
	Limit  int
}

// Snapshot is the books as they stand, beside the transactions that made them.
type Snapshot struct {
	Head         Head
	Transactions []Transaction
	Accounts     []Account
	Active       []Hold
	Ended        map[api.HoldStatus]Tally
	Loose        int64 // lines that belong to no transaction
}

// Tally counts holds.
type Tally struct {
	Holds   int64
	Amount  api.Micros
	Settled api.Micros
}
