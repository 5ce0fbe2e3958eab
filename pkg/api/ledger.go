package api

// Messages of treasury about the assets and the history of the ledger.
//
// History: v1 2026-11 first version.

// Asset is what an account of the ledger holds. It follows from the name of the account:
// those of USDC begin with "usdc" (docs/reference/treasury.md, Accounts). Amounts of both
// assets are [Micros].
type Asset string

// The assets. The zero value means credits.
const (
	Credits Asset = ""
	USDC    Asset = "usdc" // on chain, with 6 decimals
)

// GetBalanceAt requests the [BalanceAt] of an agent at a point of the ledger's history:
// after the transaction Seq, or after the last transaction that was posted at At or
// before. Exactly one of both is set. Errors: NotFound, Invalid (both or none, or the
// ledger has no transaction Seq).
type GetBalanceAt struct {
	Agent string `json:"agent"`
	Seq   int64  `json:"seq,omitempty"`
	At    int64  `json:"at,omitempty"` // Unix microseconds
}

// BalanceAt is what an agent had at a point of the ledger's history, as in [Balance]. All
// amounts are zero before its first transaction.
type BalanceAt struct {
	Agent     string `json:"agent"`
	Seq       int64  `json:"seq"`          // the last transaction of the ledger at that point, 0 before the first
	At        int64  `json:"at,omitempty"` // when it was posted
	Available Micros `json:"available"`
	Held      Micros `json:"held"`
	Tier      Tier   `json:"tier"`
	USDC      Micros `json:"usdc,omitempty"`
	USDCHeld  Micros `json:"usdcHeld,omitempty"`
	Debt      Micros `json:"debt,omitempty"`
	USDCDebt  Micros `json:"usdcDebt,omitempty"`
}

// ExportLedger requests a [LedgerPage]: the transactions of an agent (Agent "": of all)
// after the transaction After that were posted at Since or later, and before Until. A
// zero Since or Until is no bound. Limit 0 means 100, and at most 200 are returned. The
// next page is requested with After set to Next. Errors: Invalid.
type ExportLedger struct {
	Agent string `json:"agent,omitempty"`
	After int64  `json:"after,omitempty"`
	Since int64  `json:"since,omitempty"` // Unix microseconds
	Until int64  `json:"until,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// LedgerPage is a part of an export.
type LedgerPage struct {
	Entries []LedgerEntry `json:"entries"`
	Next    int64         `json:"next,omitempty"` // After of the next page, 0 after the last one
}

// LedgerEntry is a transaction with the balances after it.
type LedgerEntry struct {
	Seq      int64        `json:"seq"`
	ID       string       `json:"id"`
	Kind     string       `json:"kind"`
	Agent    string       `json:"agent"`
	At       int64        `json:"at"` // Unix microseconds
	Lines    []LedgerLine `json:"lines"`
	Memo     string       `json:"memo,omitempty"`
	Turn     string       `json:"turn,omitempty"`
	Trace    string       `json:"trace,omitempty"`
	Previous string       `json:"previous"` // hash of the previous transaction
	Hash     string       `json:"hash"`
}

// LedgerLine is one line of a transaction.
type LedgerLine struct {
	Account string `json:"account"`
	Asset   Asset  `json:"asset,omitempty"`
	Amount  Micros `json:"amount"`
	Balance Micros `json:"balance"` // of the account, after the transaction
}

// VerifyLedgerV2 is [VerifyLedger] for a ledger of any size: it streams [VerifyProgress]
// while it works, and then the [LedgerReport]. It ends when the caller cancels it.
type VerifyLedgerV2 struct{}

// VerifyProgress says how many transactions are verified.
type VerifyProgress struct {
	Done int64 `json:"done"`
	All  int64 `json:"all"` // at the start; more may be posted meanwhile
}

// GetEconomics requests the [Economics] of a group of agents from Since until Until, in
// Unix microseconds; Until 0 means now, Since 0 means a day before. Payments between the
// agents of the group cancel out. Buckets divides the period, 0 means 24. Errors: NotFound,
// Invalid (no agent, more than [MaxEconomicsAgents], or more than 366 buckets).
type GetEconomics struct {
	Agents  []string `json:"agents"`
	Since   int64    `json:"since,omitempty"`
	Until   int64    `json:"until,omitempty"`
	Buckets int      `json:"buckets,omitempty"`
}

// MaxEconomicsAgents is the limit of agents in a [GetEconomics].
const MaxEconomicsAgents = 1000

// Economics is what a group of agents earned and spent in a period, credits and USDC
// together. Profit is Earned and TransfersIn minus Spent and TransfersOut, with Exchange
// and Reversed; a deposit is no profit.
type Economics struct {
	Agents       []string        `json:"agents"`
	Since        int64           `json:"since"`
	Until        int64           `json:"until"`
	Balance      Micros          `json:"balance"` // credits at the time of the answer, available and held
	Spent        []CategorySpent `json:"spent"`   // by category
	Earned       Micros          `json:"earned"`  // payments of other agents
	TransfersIn  Micros          `json:"transfersIn"`
	TransfersOut Micros          `json:"transfersOut"`
	Deposits     Micros          `json:"deposits"`
	Exchange     Micros          `json:"exchange"` // credits bought, minus the USDC paid for them
	Reversed     Micros          `json:"reversed"` // change by reversals
	Profit       Micros          `json:"profit"`
	BurnPerHour  Micros          `json:"burnPerHour"` // what was spent and transferred, per hour since the first transaction
	Runway       int64           `json:"runway"`      // seconds that Balance lasts at that rate; -1: nothing is spent
	Turns        int64           `json:"turns"`       // that paid something
	CostPerTurn  Micros          `json:"costPerTurn"`
	Holds        []HoldsEnded    `json:"holds"` // by outcome
	Buckets      []EconomicsPart `json:"buckets"`
}

// CategorySpent is what was paid from holds of a category.
type CategorySpent struct {
	Category string `json:"category"`
	Amount   Micros `json:"amount"`
}

// HoldsEnded are the holds that ended with a status.
type HoldsEnded struct {
	Status HoldStatus `json:"status"`
	Holds  int64      `json:"holds"`
	Amount Micros     `json:"amount"` // reserved
	Paid   Micros     `json:"paid"`
}

// EconomicsPart is a part of the period, which begins at At.
type EconomicsPart struct {
	At     int64  `json:"at"`
	Spent  Micros `json:"spent"`
	Income Micros `json:"income"` // earned, transfers and deposits
}

// The implementations of [Message] by the types of this file.

func (GetBalanceAt) Subject() Subject   { return request(Treasury, "get_balance_at") }
func (ExportLedger) Subject() Subject   { return request(Treasury, "export_ledger") }
func (GetEconomics) Subject() Subject   { return request(Treasury, "get_economics") }
func (VerifyLedgerV2) Subject() Subject { return request(Treasury, "verify_ledger").version(2) }
