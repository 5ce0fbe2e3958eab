package ledger

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// Store is the persistence of a ledger. Its errors are failures of the storage:
// [api.Unavailable] if a retry may help, any other error if not. It must be safe for
// concurrent use, also by several processes.
type Store interface {
	// Update calls change with the current state and stores the changes that it returns,
	// in one serialized transaction: no other Update runs concurrently. change may be
	// called more than once, inside a transaction or before it; only the result of the
	// last call counts. If the changes are empty, Update writes no row.
	Update(ctx context.Context, keys Keys, change func(State) Changes) error

	// Open creates the two accounts of an agent unless they exist.
	Open(ctx context.Context, agent string) error

	// Balance returns the balance of an agent. Errors: [api.NotFound].
	Balance(ctx context.Context, agent string) (Balance, error)

	// Holds lists holds, oldest first.
	Holds(ctx context.Context, f HoldFilter) ([]HoldState, error)
	// Spent returns the sums of an agent's holds of a category for a turn: the settled
	// amounts, and the amounts still held.
	Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error)

	// Ask makes the request for an approval open, unless it is open, or approved and not
	// past its end.
	Ask(ctx context.Context, a Approval) error
	// Decide changes an open request to a status with an end. Errors: [api.NotFound],
	// [api.Conflict].
	Decide(ctx context.Context, id string, status api.ApprovalStatus, endsAt int64) (Approval, error)
	// Approvals lists requests, the latest first.
	Approvals(ctx context.Context, agent string, status api.ApprovalStatus, limit int) ([]Approval, error)

	// Due returns the ids of at most limit active holds that expire later than after, and at
	// or before at. Both are in Unix microseconds.
	Due(ctx context.Context, after, at int64, limit int) ([]string, error)

	// Transactions lists the transactions of an agent ("": of all) after a sequence
	// number, in order.
	Transactions(ctx context.Context, agent string, after int64, limit int) ([]Transaction, error)

	// Transaction returns a transaction by its id. Errors: [api.NotFound].
	Transaction(ctx context.Context, id string) (Transaction, error)

	// Head returns the end of the chain.
	Head(ctx context.Context) (Head, error)

	// Time returns the time of a transaction. Errors: [api.NotFound].
	Time(ctx context.Context, seq int64) (int64, error)

	// BalanceAt returns the balance of an agent after a transaction, without Entries.
	// Errors: [api.NotFound], if the agent has no account today.
	BalanceAt(ctx context.Context, agent string, seq int64) (Balance, error)

	// HoldsByID returns holds by their ids; those that do not exist are missing.
	HoldsByID(ctx context.Context, ids []string) (map[string]Hold, error)
	// Categories returns the categories of holds, by their ids.
	Categories(ctx context.Context, holds []string) (map[string]string, error)

	// Snapshot reads, at one point in time, the transactions after a sequence number and
	// the state that must agree with all transactions.
	Snapshot(ctx context.Context, after int64) (Snapshot, error)
}

// Keys names the rows that a change reads. The store adds the accounts of each hold that
// it finds ([Hold.Accounts]). NewHolds and NewTransactions are ids that the change creates
// unless they exist. That is rare, so a store may rely on the insert to detect it.
type Keys struct {
	Accounts        []string
	Holds           []string
	NewHolds        []string
	NewTransactions []string
	Tallies         []string // see [State]
	Approvals       []string // see [State]
}

// Empty reports whether no row is named.
func (k *Keys) Empty() bool {
	return len(k.Accounts)+len(k.Holds)+len(k.NewHolds)+len(k.NewTransactions)+len(k.Tallies)+len(k.Approvals) == 0
}

// Add adds the rows of more.
func (k *Keys) Add(more Keys) {
	k.Accounts = append(k.Accounts, more.Accounts...)
	k.Holds = append(k.Holds, more.Holds...)
	k.NewHolds = append(k.NewHolds, more.NewHolds...)
	k.NewTransactions = append(k.NewTransactions, more.NewTransactions...)
	k.Tallies = append(k.Tallies, more.Tallies...)
	k.Approvals = append(k.Approvals, more.Approvals...)
}

// State holds the rows that the store found. Rows that do not exist are missing in the
// maps, except in Tallies and Approvals: these have the zero value for a row that was read
// and does not exist.
type State struct {
	Head         Head
	Accounts     map[string]Account
	Holds        map[string]Hold
	Transactions map[string]Transaction
	Tallies      map[string]limits.Tally
	Approvals    map[string]Approval
}

// Head is the end of the chain. The zero value is that of an empty ledger.
type Head struct {
	Seq  int64
	Hash Hash
}

// Account is an account with its running balance.
type Account struct {
	ID      string
	Balance api.Micros
	Entries int64 // number of its transactions; those of an agent are counted on its available account

	// Only of the available account of an agent.
	Meter  limits.Meter // its payments
	Pool   limits.Meter // its payments and those of its descendants, if its lineage is limited
	Limits *OwnLimits   // nil: none are set; not modified
}

// Changes are the effects of a group of operations. Each changed account and hold is
// listed once, in its final state.
//
// If Need is not empty, the group cannot be decided without these rows: the store writes
// nothing, and calls the change again with them.
type Changes struct {
	Need         Keys
	Head         Head
	Transactions []Transaction
	Accounts     []Account
	Holds        []Hold
	Tiers        []TierChange
	Tallies      map[string]limits.Tally // changed ones
	Approvals    []Approval              // used ones
	Limited      []string                // accounts whose Limits have changed
}

// Balance is the balance of an agent: its credits and, if read by [Store.Balance], its
// USDC and its debts.
type Balance struct {
	Agent     string
	Available api.Micros
	Held      api.Micros
	Entries   int64
	USDC      api.Micros // available
	USDCHeld  api.Micros
	Debt      api.Micros // of credits, 0 or more
	USDCDebt  api.Micros
}

// Tier returns the tier by the total of credits: held credits are not spent yet. USDC and
// debts do not count.
func (b Balance) Tier() api.Tier { return api.TierOf(b.Available + b.Held) }

// TierChange is the change of an agent's tier by one transaction.
type TierChange struct {
	Agent    string
	From, To api.Tier
	Balance  api.Micros
	Seq      int64 // sequence number of the transaction
	At       int64
	Cause    Hash   // hash of the transaction
	Parent   string // as in [Transaction]
}

// HoldFilter selects holds. An empty Agent selects the holds of all agents, an empty
// Category those of all categories.
type HoldFilter struct {
	Agent    string
	Category string
	Status   api.HoldStatus
	Limit    int
}

// Snapshot is the stored state of the ledger and the transactions after a sequence
// number.
type Snapshot struct {
	Head         Head
	Transactions []Transaction
	Accounts     []Account
	Active       []Hold
	Ended        map[api.HoldStatus]Tally
	Loose        int64 // number of lines without a transaction
}

// Tally holds the number and the sums of holds.
type Tally struct {
	Holds   int64
	Amount  api.Micros
	Settled api.Micros
}
