package api

// treasury owns wallets and the ledger: double entry, append only, hash
// chained (design §5). Every change takes an id from the caller and is
// idempotent on it: the same id with the same content answers as the first time,
// with other content it is a Conflict.
//
// History: v1 2026-11 first version.

// OpenAccount makes sure that an agent has an account and a wallet. Answers
// [Account].
type OpenAccount struct {
	Agent string `json:"agent"`
}

// Subject of the message.
func (OpenAccount) Subject() Subject { return request(Treasury, "open_account") }

// Account is an agent's account.
type Account struct {
	Agent   string `json:"agent"`
	Address string `json:"address"` // of its wallet, EIP-55
}

// GetBalance answers [Balance]. Errors: NotFound.
type GetBalance struct {
	Agent string `json:"agent"`
}

// Subject of the message.
func (GetBalance) Subject() Subject { return request(Treasury, "get_balance") }

// Balance is what an agent owns. Available + Held is its whole balance, and the
// tier is that of Available + Held: money held for a thought is not yet spent.
type Balance struct {
	Agent     string `json:"agent"`
	Address   string `json:"address"`
	Available Micros `json:"available"`
	Held      Micros `json:"held"`
	Tier      Tier   `json:"tier"`
	Entries   int64  `json:"entries"` // transactions that touched the account
	At        int64  `json:"at"`
}

// Funds are what an agent owns at one moment, as in [Balance].
type Funds struct {
	Available Micros `json:"available"`
	Held      Micros `json:"held"`
	Tier      Tier   `json:"tier"` // of Available + Held
}

// Hold reserves Amount before it is spent. Answers [HoldState]; asked again, the
// hold as it is now, which may be settled or expired: look at its Status.
// Errors: Denied with ReasonInsufficient (what is available does not suffice),
// NotFound (no such account), Invalid (amount not positive).
type Hold struct {
	ID        string `json:"id"`
	Agent     string `json:"agent"`
	Amount    Micros `json:"amount"`
	Category  string `json:"category"` // inference, transfer, x402, other
	Turn      string `json:"turn,omitempty"`
	ExpiresAt int64  `json:"expiresAt"` // released by itself afterwards
}

// Subject of the message.
func (Hold) Subject() Subject { return request(Treasury, "hold") }

// Settle pays Amount of a hold to Payee and gives the rest back. Answers
// [HoldState]. Errors: NotFound, Conflict (released, expired, or settled with
// another amount), Invalid (more than was held).
type Settle struct {
	ID     string `json:"id"` // of the hold
	Amount Micros `json:"amount"`
	Payee  string `json:"payee"` // who is paid, for example "provider:openai"
	Memo   string `json:"memo,omitempty"`
}

// Subject of the message.
func (Settle) Subject() Subject { return request(Treasury, "settle") }

// MaxSettlements is how many settlements a [SettleMany] may have.
const MaxSettlements = 128

// SettleMany settles holds, of any agents, in one commit. Each settlement is
// decided by itself, in the order of the list, as [Settle] decides it: a refused
// one changes nothing for the others. Answers [Settled]. The request fails as a
// whole only with Invalid (no settlement, or more than [MaxSettlements]) or with an
// error after which it is asked again; what was settled is settled once.
type SettleMany struct {
	Settlements []Settlement `json:"settlements"`
}

// Subject of the message.
func (SettleMany) Subject() Subject { return request(Treasury, "settle_many") }

// Settlement is one member of a [SettleMany].
type Settlement struct {
	ID     string `json:"id"` // of the hold
	Amount Micros `json:"amount"`
	Payee  string `json:"payee"` // as in [Settle]
	Memo   string `json:"memo,omitempty"`
	// TraceParent is the W3C traceparent of the work that is paid for; "" means that
	// of the request.
	TraceParent string `json:"traceparent,omitempty"`
}

// Settled answers [SettleMany].
type Settled struct {
	Results []SettleResult `json:"results"` // one for each settlement, in their order
	// Funds are those of every agent whose hold was found, after all settlements, by
	// agent.
	Funds []AgentFunds `json:"funds,omitempty"`
}

// SettleResult is what became of one settlement: exactly one of its fields is set.
type SettleResult struct {
	Hold  *HoldState `json:"hold,omitempty"`
	Error *Error     `json:"error,omitempty"` // as in [Settle]
}

// AgentFunds are the funds of an agent.
type AgentFunds struct {
	Agent string `json:"agent"`
	Funds Funds  `json:"funds"`
}

// Release gives a hold back whole. Releasing twice changes nothing. Answers
// [HoldState]. Errors: NotFound, Conflict (settled).
type Release struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (Release) Subject() Subject { return request(Treasury, "release") }

// HoldStatus is where a hold is.
type HoldStatus string

// The states of a hold; active is the only one that changes.
const (
	HoldActive   HoldStatus = "active"
	HoldSettled  HoldStatus = "settled"
	HoldReleased HoldStatus = "released"
	HoldExpired  HoldStatus = "expired"
)

// HoldState is a hold and the balance it left behind.
type HoldState struct {
	ID        string     `json:"id"`
	Agent     string     `json:"agent"`
	Status    HoldStatus `json:"status"`
	Amount    Micros     `json:"amount"`
	Settled   Micros     `json:"settled,omitempty"`
	Available Micros     `json:"available"` // of the account, after this
	Tier      Tier       `json:"tier"`
}

// ListHolds answers [Holds]; Agent "" means everyone's, Status "" means active.
type ListHolds struct {
	Agent  string     `json:"agent,omitempty"`
	Status HoldStatus `json:"status,omitempty"`
	Limit  int        `json:"limit,omitempty"`
}

// Subject of the message.
func (ListHolds) Subject() Subject { return request(Treasury, "list_holds") }

// Holds is a list of holds.
type Holds struct {
	Holds []HoldState `json:"holds"`
}

// CategoryInference is what is held for calls of models.
const CategoryInference = "inference"

// GetSpent answers [Spent]: what holds of one category came to that were made for a
// turn.
type GetSpent struct {
	Agent    string `json:"agent"`
	Turn     string `json:"turnId"`
	Category string `json:"category"`
}

// Subject of the message.
func (GetSpent) Subject() Subject { return request(Treasury, "get_spent") }

// Spent is what was paid for a turn. While something is held for it, more may be.
type Spent struct {
	Paid Micros `json:"paid"`
	Held Micros `json:"held,omitempty"`
}

// Deposit adds money from outside the books; the source is the other side of
// the posting. The dev profile deposits from "faucet", until the chain arrives.
// Answers [Posted]. Errors: Invalid, NotFound, Denied (the source is switched off).
type Deposit struct {
	ID     string `json:"id"`
	Agent  string `json:"agent"`
	Amount Micros `json:"amount"`
	Source string `json:"source"`
	Memo   string `json:"memo,omitempty"`
}

// Subject of the message.
func (Deposit) Subject() Subject { return request(Treasury, "deposit") }

// Transfer moves credits between two agents. Answers [Posted].
// Errors: as [Hold], and Invalid for a transfer to oneself.
type Transfer struct {
	ID     string `json:"id"`
	From   string `json:"from"`
	To     string `json:"to"`
	Amount Micros `json:"amount"`
	Memo   string `json:"memo,omitempty"`
}

// Subject of the message.
func (Transfer) Subject() Subject { return request(Treasury, "transfer") }

// ListEntries answers [Entries]: transactions that touched the agent's account
// (Agent "": all), after sequence number After, in order; Limit 0 means 100.
type ListEntries struct {
	Agent string `json:"agent,omitempty"`
	After int64  `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListEntries) Subject() Subject { return request(Treasury, "list_entries") }

// Entries is a part of the ledger.
type Entries struct {
	Entries []Posted `json:"entries"`
	More    bool     `json:"more,omitempty"`
}

// VerifyLedger walks the whole ledger. Answers [LedgerReport]; a broken ledger
// is an answer, not an error.
type VerifyLedger struct{}

// Subject of the message.
func (VerifyLedger) Subject() Subject { return request(Treasury, "verify_ledger") }

// LedgerReport says whether the books are right.
type LedgerReport struct {
	Transactions int64    `json:"transactions"`
	Accounts     int64    `json:"accounts"`
	ActiveHolds  int64    `json:"activeHolds"`
	Head         string   `json:"head"` // hash of the last transaction
	OK           bool     `json:"ok"`
	Faults       []string `json:"faults,omitempty"`
}

// SignMessage signs a social message with the agent's wallet; the canonical
// string is spec-social §2.1's. No other text can be signed. Answers
// [Signature]. Errors: NotFound, Invalid.
type SignMessage struct {
	Agent    string `json:"agent"`
	To       string `json:"to"`
	Content  string `json:"content"`
	SignedAt string `json:"signedAt"` // ISO 8601, milliseconds, Z
}

// Subject of the message.
func (SignMessage) Subject() Subject { return request(Treasury, "sign_message") }

// Signature is an EIP-191 signature.
type Signature struct {
	From      string `json:"from"`
	Signature string `json:"signature"` // 0x + 65 bytes
}

// Posting is one side of a transaction; the sum of a transaction's is zero.
type Posting struct {
	Account string `json:"account"` // "agent:<id>", "held:<id>", "faucet", "provider:<name>"
	Amount  Micros `json:"amount"`
}

// Posted is a transaction of the ledger: in answers, and in [PostedBatch].
type Posted struct {
	Seq      int64     `json:"seq"`
	ID       string    `json:"id"` // the caller's, with what was done to it: "<id>/settle"
	Kind     string    `json:"kind"`
	Agent    string    `json:"agent"`
	Postings []Posting `json:"postings"`
	Memo     string    `json:"memo,omitempty"`
	Turn     string    `json:"turn,omitempty"`
	Trace    string    `json:"trace,omitempty"`
	At       int64     `json:"at"`
	Previous string    `json:"previous"` // hash of the transaction before
	Hash     string    `json:"hash"`
}

// PostedBatch is a part of the ledger. Each follows the one before without a gap and
// without an overlap, so a reader that follows the subject has the whole ledger, in its
// order, since treasury began to publish it. A message comes some time after the commit
// and holds transactions of any agents.
//
// History: v1 2026-11, in place of an event posted.v1 for each transaction, which had no
// reader.
type PostedBatch struct {
	First   int64    `json:"first"` // sequence of the first transaction
	Last    int64    `json:"last"`
	Entries []Posted `json:"entries"` // all from First to Last, in order
}

// Subject of the message.
func (PostedBatch) Subject() Subject {
	return Subject{Owner: Treasury, Class: Event, Name: "posted_batch", Version: 1}
}

// TierChanged says that an agent's tier is another one now.
type TierChanged struct {
	Agent    string `json:"agent"`
	From     Tier   `json:"from"`
	To       Tier   `json:"to"`
	Balance  Micros `json:"balance"`
	EntrySeq int64  `json:"entrySeq"` // of the transaction that changed it
	At       int64  `json:"at"`
}

// Subject of the message.
func (m TierChanged) Subject() Subject { return event(Treasury, "tier_changed", m.Agent) }
