package api

// Payments over HTTP 402 (x402), which agents make with the USDC of their wallets
// (docs/x402.md).
//
// History: v1 2026-11 first version.

// PaymentState is the state of a payment. From Signed on the money may be paid; the chain
// decides, and not the answer of the seller.
//
//	intended ─▶ held ─▶ signed ─▶ submitted ─▶ settled
//	   │                              └▶ unknown ─▶ settled | expired
//	   ├▶ free
//	   └▶ failed
//
// A settled payment is unknown again if a reorganization of the chain removes its
// transaction.
type PaymentState string

// The states of a payment.
const (
	PaymentIntended  PaymentState = "intended"  // requested
	PaymentFree      PaymentState = "free"      // the answer cost nothing
	PaymentHeld      PaymentState = "held"      // the money is held
	PaymentSigned    PaymentState = "signed"    // the authorization is stored, and not sent
	PaymentSubmitted PaymentState = "submitted" // the authorization may have been sent
	PaymentUnknown   PaymentState = "unknown"   // sent; the chain has not confirmed it
	PaymentSettled   PaymentState = "settled"   // paid
	PaymentExpired   PaymentState = "expired"   // the authorization has ended unused: nothing was paid
	PaymentFailed    PaymentState = "failed"    // refused before it was signed: nothing was paid
)

// PaymentStates returns all states of a payment.
func PaymentStates() []PaymentState {
	return []PaymentState{
		PaymentIntended, PaymentFree, PaymentHeld, PaymentSigned, PaymentSubmitted, PaymentUnknown, PaymentSettled, PaymentExpired, PaymentFailed,
	}
}

// MaxPaidBody is the limit of the stored body of a seller's answer, in bytes. The rest of
// a longer body is lost.
const MaxPaidBody = 512 << 10

// Pay makes an HTTP request for an agent, and pays for it if the seller demands it.
// The answer is the [Payment]. The same request with the same ID continues the payment or
// returns the stored answer: it never pays twice. Errors: Invalid; NotFound (no such
// agent); Conflict with ReasonKeyTaken (the ID belongs to another request); Denied with
// ReasonOffer (no acceptable offer), ReasonRefused (the seller refuses the payment),
// ReasonInsufficient or a reason of a limit; Unavailable (the outcome is not known yet:
// repeat the request with the same ID).
type Pay struct {
	ID      string            `json:"id"`
	Agent   string            `json:"agent"`
	Session string            `json:"session,omitempty"`
	Turn    string            `json:"turn,omitempty"`
	By      PrincipalKind     `json:"by,omitempty"`     // principal of the turn; "": unknown
	Method  string            `json:"method,omitempty"` // GET, POST, PUT, PATCH or DELETE; "" means GET
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    []byte            `json:"body,omitempty"`
	Max     Micros            `json:"max,omitempty"` // most that may be paid; 0 means the limits of the agent
}

// GetPayment requests the [Payment] with an ID, with the stored answer. Errors: NotFound.
type GetPayment struct {
	ID string `json:"id"`
}

// ListPayments requests [Payments]: of an agent ("": of all) in a state ("": any), created
// before a time in Unix microseconds (0: now), the newest first. Limit 0 means 50, at most
// 250. The answers of the sellers are not in the list. Errors: Invalid (no such state).
type ListPayments struct {
	Agent  string       `json:"agent,omitempty"`
	State  PaymentState `json:"state,omitempty"`
	Before int64        `json:"before,omitempty"`
	Limit  int          `json:"limit,omitempty"`
}

// Payment is a request of an agent with what was paid for it.
type Payment struct {
	ID          string       `json:"id"`
	Agent       string       `json:"agent"`
	Session     string       `json:"session,omitempty"`
	Turn        string       `json:"turn,omitempty"`
	Method      string       `json:"method"`
	URL         string       `json:"url"`
	State       PaymentState `json:"state"`
	Amount      Micros       `json:"amount,omitempty"` // of the chosen offer, in USDC
	Network     string       `json:"network,omitempty"`
	Payer       string       `json:"payer,omitempty"`
	Payee       string       `json:"payee,omitempty"`
	Facilitator string       `json:"facilitator,omitempty"` // host that settles the payment, as the seller says; "": it does not
	Nonce       string       `json:"nonce,omitempty"`
	ValidBefore int64        `json:"validBefore,omitempty"` // Unix seconds
	Transaction string       `json:"transaction,omitempty"` // as the seller reports it
	Reason      string       `json:"reason,omitempty"`      // why it is not settled
	Status      int          `json:"status,omitempty"`      // HTTP status of the answer; 0: no answer is stored
	ContentType string       `json:"contentType,omitempty"`
	Body        []byte       `json:"body,omitempty"`
	Cut         bool         `json:"cut,omitempty"` // the body is longer than MaxPaidBody
	CreatedAt   int64        `json:"createdAt"`
	UpdatedAt   int64        `json:"updatedAt"`
}

// Payments is a list of payments.
type Payments struct {
	Payments []Payment `json:"payments"`
	More     bool      `json:"more,omitempty"`
}

// The implementations of [Message] by the types of this file.

func (Pay) Subject() Subject          { return request(Treasury, "pay") }
func (GetPayment) Subject() Subject   { return request(Treasury, "get_payment") }
func (ListPayments) Subject() Subject { return request(Treasury, "list_payments") }
