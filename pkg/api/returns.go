package api

// Messages of treasury about credits that a child returns to its parent
// (docs/reference/treasury.md, Children).
//
// History: v1 2026-11 first version.

// SignReturn has the wallet of a child sign a return of Amount credits to its parent, for
// at most an hour. Nothing is transferred: any holder of the answer, a [ReturnCredits], may
// present it. The parent is that of the child's limits. Errors: Invalid, NotFound, Denied
// with ReasonNoParent.
type SignReturn struct {
	ID     string `json:"id"` // of the return; its hash is signed
	Child  string `json:"child"`
	Amount Micros `json:"amount"`
}

// ReturnCredits transfers credits from a child to its parent, by a message that the
// child's wallet has signed. A repeated return transfers once. The limits of the child
// apply. The answer is [CreditsReturned]. Errors: Invalid, NotFound, Conflict (another
// return has the ID), Denied with ReasonNoParent, ReasonNotSigned (the signature is not
// the child's for this return to its present parent), ReasonExpired, ReasonInsufficient or
// a reason of a limit.
type ReturnCredits struct {
	ID          string `json:"id"`
	Child       string `json:"child"` // an agent, or the address of an account
	Amount      Micros `json:"amount"`
	ValidAfter  int64  `json:"validAfter"`  // Unix seconds
	ValidBefore int64  `json:"validBefore"` // Unix seconds
	Signature   string `json:"signature"`   // EIP-712, 0x and 65 bytes in hex
}

// CreditsReturned is a return that was made.
type CreditsReturned struct {
	ID     string `json:"id"`
	Child  string `json:"child"`
	Parent string `json:"parent"`
	Amount Micros `json:"amount"`
	Left   Micros `json:"left"` // available credits of the child right after it
	At     int64  `json:"at"`   // Unix microseconds
}

// The implementations of [Message] by the types of this file.

func (SignReturn) Subject() Subject    { return request(Treasury, "sign_return") }
func (ReturnCredits) Subject() Subject { return request(Treasury, "return_credits") }
