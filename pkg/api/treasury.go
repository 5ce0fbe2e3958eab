package api

// Messages of treasury, which owns wallets and the ledger: double entry, append only,
// hash chained (docs/reference/treasury.md, Transactions). Every change has an id from the
// caller and is idempotent by it: the same id with the same content returns the first
// answer, with other content it is a Conflict.
//
// History: v1 2026-11 first version.

// OpenAccount creates the account and the wallet of an agent, unless they exist. The
// answer is the [Account].
type OpenAccount struct {
	Agent string `json:"agent"`
}

// Account is an agent's account.
type Account struct {
	Agent   string `json:"agent"`
	Address string `json:"address"` // of its wallet, EIP-55
}

// GetBalance requests the [Balance] of an agent. Errors: NotFound.
type GetBalance struct {
	Agent string `json:"agent"`
}

// Balance holds the credits of an agent, and its USDC as the ledger knows it. Its balance
// is Available + Held, and its tier is that of Available + Held, because held credits are
// not spent yet. USDC and debts do not change the tier.
type Balance struct {
	Agent     string `json:"agent"`
	Address   string `json:"address"`
	Available Micros `json:"available"`
	Held      Micros `json:"held"`
	Tier      Tier   `json:"tier"`
	Entries   int64  `json:"entries"` // number of transactions on the account
	At        int64  `json:"at"`
	USDC      Micros `json:"usdc,omitempty"` // available
	USDCHeld  Micros `json:"usdcHeld,omitempty"`
	// Debt and USDCDebt are owed after a reversal of what the agent had spent already. The
	// next deposits repay them.
	Debt     Micros `json:"debt,omitempty"`
	USDCDebt Micros `json:"usdcDebt,omitempty"`
}

// Funds holds the credits of an agent at one time, as in [Balance].
type Funds struct {
	Available Micros `json:"available"`
	Held      Micros `json:"held"`
	Tier      Tier   `json:"tier"` // of Available + Held
}

// Hold reserves Amount of Asset before it is spent. The answer is the [HoldState]. A repeated
// request returns the current state of the hold, which may be settled or expired, so
// the caller has to check its Status. Errors: Denied with ReasonInsufficient (the
// available credits do not suffice) or with a reason of [OverLimit], NotFound (no such
// account), Invalid (amount not positive).
type Hold struct {
	ID        string `json:"id"`
	Agent     string `json:"agent"`
	Amount    Micros `json:"amount"`
	Category  string `json:"category"` // inference, transfer, x402, other
	Turn      string `json:"turn,omitempty"`
	ExpiresAt int64  `json:"expiresAt"` // treasury releases the hold afterwards
	Asset     Asset  `json:"asset,omitempty"`
	// Payee is the account that the holder is about to pay. Whoever settles the hold of a
	// crashed holder reads it in the [HoldState]. "": unknown.
	Payee string `json:"payee,omitempty"`

	// What the limits of the agent depend on, besides the amount and the payee
	// (docs/limits.md).
	Session     string        `json:"session,omitempty"`
	By          PrincipalKind `json:"by,omitempty"`          // principal of the turn; "": unknown
	Domain      string        `json:"domain,omitempty"`      // host that an x402 payment is for
	Chain       string        `json:"chain,omitempty"`       // CAIP-2
	Facilitator string        `json:"facilitator,omitempty"` // host
	// Owed says that the amount was spent before the hold: it counts for the limits, which
	// do not refuse it.
	Owed bool `json:"owed,omitempty"`
}

// Settle transfers Amount of a hold to Payee and releases the rest. The answer is the
// [HoldState]. Errors: NotFound, Conflict (released, expired, or settled with another
// amount), Invalid (more than was held).
type Settle struct {
	ID     string `json:"id"` // of the hold
	Amount Micros `json:"amount"`
	Payee  string `json:"payee"` // account that is paid, in the asset of the hold, for example "provider:openai"
	Memo   string `json:"memo,omitempty"`
}

// MaxSettlements is the limit of settlements in one [SettleMany].
const MaxSettlements = 128

// SettleMany settles holds of any agents in one commit. Each settlement is decided
// separately, in the order of the list, as by [Settle]: a refused one does not affect
// the others. The answer is [Settled]. The request fails as a whole only with Invalid
// (no settlement, or more than [MaxSettlements]) or with an error after which it can be
// repeated; a repeated settlement is settled once.
type SettleMany struct {
	Settlements []Settlement `json:"settlements"`
}

// Settlement is one member of a [SettleMany].
type Settlement struct {
	ID     string `json:"id"` // of the hold
	Amount Micros `json:"amount"`
	Payee  string `json:"payee"` // as in [Settle]
	Memo   string `json:"memo,omitempty"`
	// TraceParent is the W3C traceparent of the work that is paid; "" means that of the
	// request.
	TraceParent string `json:"traceparent,omitempty"`
}

// Settled is the answer to [SettleMany].
type Settled struct {
	Results []SettleResult `json:"results"` // one for each settlement, in the same order
	// Funds holds the funds of every agent with a hold that was found, after all
	// settlements, by agent.
	Funds []AgentFunds `json:"funds,omitempty"`
}

// SettleResult is the result of one settlement. Exactly one of its fields is set.
type SettleResult struct {
	Hold  *HoldState `json:"hold,omitempty"`
	Error *Error     `json:"error,omitempty"` // as in [Settle]
}

// AgentFunds is an agent with its funds.
type AgentFunds struct {
	Agent string `json:"agent"`
	Funds Funds  `json:"funds"`
}

// Release releases a hold. It is idempotent. The answer is the [HoldState]. Errors:
// NotFound, Conflict (settled).
type Release struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// HoldStatus is the status of a hold.
type HoldStatus string

// The statuses of a hold; only active changes.
const (
	HoldActive   HoldStatus = "active"
	HoldSettled  HoldStatus = "settled"
	HoldReleased HoldStatus = "released"
	HoldExpired  HoldStatus = "expired"
)

// HoldState is a hold with the resulting balance of its account.
type HoldState struct {
	ID        string     `json:"id"`
	Agent     string     `json:"agent"`
	Status    HoldStatus `json:"status"`
	Amount    Micros     `json:"amount"`
	Settled   Micros     `json:"settled,omitempty"`
	Available Micros     `json:"available"` // in the asset of the hold, after the change
	Tier      Tier       `json:"tier"`
	// ExpiresAt is that of the request that made the hold, which tells it from a repeated
	// one. 0: unknown, from an earlier release.
	ExpiresAt int64 `json:"expiresAt,omitempty"`
	Asset     Asset `json:"asset,omitempty"`
	// Category, Turn and Payee are those of the request, and the Payee of a settled hold is
	// the account that was paid. "": unknown, from an earlier release.
	Category string `json:"category,omitempty"`
	Turn     string `json:"turn,omitempty"`
	Payee    string `json:"payee,omitempty"`
}

// ListHolds requests [Holds], the oldest first; Agent "" means all agents, Category "" all categories,
// Status "" means active. Limit 0 means 100, and at most 250 holds are returned. A treasury of the release
// before returns those of all categories.
type ListHolds struct {
	Agent    string     `json:"agent,omitempty"`
	Category string     `json:"category,omitempty"`
	Status   HoldStatus `json:"status,omitempty"`
	Limit    int        `json:"limit,omitempty"`
}

// Holds is a list of holds.
type Holds struct {
	Holds []HoldState `json:"holds"`
}

// CategoryInference is the category of holds for model calls.
const CategoryInference = "inference"

// GetSpent requests the [Spent] of a turn: the settled and held amounts of its holds of
// one category.
type GetSpent struct {
	Agent    string `json:"agent"`
	Turn     string `json:"turnId"`
	Category string `json:"category"`
}

// Spent is the amount paid for a turn. Paid may still increase while Held is not 0.
type Spent struct {
	Paid Micros `json:"paid"`
	Held Micros `json:"held,omitempty"`
}

// Deposit adds credits from outside the ledger. The source is the account of the
// opposite posting. There are no deposits from the chain yet; for development, the
// source is "faucet". The answer is [Posted]. Errors: Invalid, NotFound, Denied (the
// source is not enabled).
type Deposit struct {
	ID     string `json:"id"`
	Agent  string `json:"agent"`
	Amount Micros `json:"amount"`
	Source string `json:"source"`
	Memo   string `json:"memo,omitempty"`
}

// Transfer transfers credits from one agent to another. The answer is [Posted]. Errors:
// as [Hold], and Invalid if both agents are the same.
type Transfer struct {
	ID     string `json:"id"`
	From   string `json:"from"`
	To     string `json:"to"`
	Amount Micros `json:"amount"`
	Memo   string `json:"memo,omitempty"`
}

// ListEntries requests [Entries]: the transactions on the agent's account (Agent "":
// all) after sequence number After, in order; Limit 0 means 100.
type ListEntries struct {
	Agent string `json:"agent,omitempty"`
	After int64  `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// Entries is a part of the ledger.
type Entries struct {
	Entries []Posted `json:"entries"`
	More    bool     `json:"more,omitempty"`
}

// VerifyLedger checks the complete ledger. The answer is a [LedgerReport], also if the
// ledger has faults.
type VerifyLedger struct{}

// LedgerReport is the result of [VerifyLedger].
type LedgerReport struct {
	Transactions int64    `json:"transactions"`
	Accounts     int64    `json:"accounts"`
	ActiveHolds  int64    `json:"activeHolds"`
	Head         string   `json:"head"` // hash of the last transaction
	OK           bool     `json:"ok"`
	Faults       []string `json:"faults,omitempty"`
}

// SignMessage signs a social message with the agent's wallet, in its canonical form
// (docs/reference/social.md, Signature). Treasury signs no other text. The answer is
// the [Signature]. Errors: NotFound, Invalid.
type SignMessage struct {
	Agent    string `json:"agent"`
	To       string `json:"to"`
	Content  string `json:"content"`
	SignedAt string `json:"signedAt"` // ISO 8601, milliseconds, Z
}

// Signature is an EIP-191 signature.
type Signature struct {
	From      string `json:"from"`
	Signature string `json:"signature"` // 0x + 65 bytes
}

// Posting is one line of a transaction. The amounts of a transaction's postings add up
// to zero in each asset.
type Posting struct {
	Account string `json:"account"` // "agent:<id>", "held:<id>", "faucet", "provider:<name>", "usdc:<agent>"; see [Asset]
	Amount  Micros `json:"amount"`
}

// Posted is a transaction of the ledger, in answers and in [PostedBatch].
type Posted struct {
	Seq      int64     `json:"seq"`
	ID       string    `json:"id"` // the caller's id with the operation: "<id>/settle"
	Kind     string    `json:"kind"`
	Agent    string    `json:"agent"`
	Postings []Posting `json:"postings"`
	Memo     string    `json:"memo,omitempty"`
	Turn     string    `json:"turn,omitempty"`
	Trace    string    `json:"trace,omitempty"`
	At       int64     `json:"at"`
	Previous string    `json:"previous"` // hash of the previous transaction
	Hash     string    `json:"hash"`
}

// PostedBatch is a range of the ledger. The batches are consecutive, without gaps and
// overlaps, so a reader of the subject receives the complete ledger in order, from the
// transaction with which treasury began to publish it. A batch is published some time
// after the commit and has transactions of any agents.
//
// History: v1 2026-11, replaces the event posted.v1 for each transaction, which had no
// reader.
type PostedBatch struct {
	First   int64    `json:"first"` // sequence of the first transaction
	Last    int64    `json:"last"`
	Entries []Posted `json:"entries"` // all from First to Last, in order
}

// TierChanged is published when the tier of an agent has changed.
type TierChanged struct {
	Agent    string `json:"agent"`
	From     Tier   `json:"from"`
	To       Tier   `json:"to"`
	Balance  Micros `json:"balance"`
	EntrySeq int64  `json:"entrySeq"` // of the transaction that changed it
	At       int64  `json:"at"`
}

// The implementations of [Message] by the types of this file.

func (OpenAccount) Subject() Subject  { return request(Treasury, "open_account") }
func (GetBalance) Subject() Subject   { return request(Treasury, "get_balance") }
func (Hold) Subject() Subject         { return request(Treasury, "hold") }
func (Settle) Subject() Subject       { return request(Treasury, "settle") }
func (SettleMany) Subject() Subject   { return request(Treasury, "settle_many") }
func (Release) Subject() Subject      { return request(Treasury, "release") }
func (ListHolds) Subject() Subject    { return request(Treasury, "list_holds") }
func (GetSpent) Subject() Subject     { return request(Treasury, "get_spent") }
func (Deposit) Subject() Subject      { return request(Treasury, "deposit") }
func (Transfer) Subject() Subject     { return request(Treasury, "transfer") }
func (ListEntries) Subject() Subject  { return request(Treasury, "list_entries") }
func (VerifyLedger) Subject() Subject { return request(Treasury, "verify_ledger") }
func (SignMessage) Subject() Subject  { return request(Treasury, "sign_message") }
func (PostedBatch) Subject() Subject {
	return Subject{Owner: Treasury, Class: Event, Name: "posted_batch", Version: 1}
}
func (m TierChanged) Subject() Subject { return event(Treasury, "tier_changed", m.Agent) }
