package api

import "slices"

// Messages of treasury about credits that are bought with the USDC of an agent's wallet
// (docs/reference/treasury.md, Top-ups).
//
// History: v1 2026-11 first version.

// TopUp buys credits for an agent with the USDC of its wallet. The same request with the
// same ID continues the purchase or returns its result. The answer is the [TopUpState].
// Errors: Invalid (the amount is not sold), NotFound (no such agent), Conflict (another
// purchase of the agent is under way, or the ID belongs to another one), Denied (not
// enough USDC, no chain, refused by the seller, or the last purchases had no effect),
// Unavailable (a balance is not known, or the outcome is not: repeat the request with the
// same ID).
type TopUp struct {
	ID    string `json:"id"`
	Agent string `json:"agent"`
	USD   int64  `json:"usd"` // one of [TopupUSD]
}

// TopUpState is the result of a purchase of credits.
type TopUpState struct {
	ID     string `json:"id"`
	Agent  string `json:"agent"`
	USD    int64  `json:"usd"`
	State  string `json:"state"`  // done, or futile: paid, and the credits have not increased
	Before Micros `json:"before"` // credits at its beginning
	After  Micros `json:"after"`
}

// TriggerTopUp has treasury buy credits for an agent, if its wallet can pay. Services send
// it where they learn that credits are missing; treasury reads the balances itself and
// decides. The answer is a [TopUpTriggered]. Repeated and concurrent requests buy once:
// one purchase of an agent is open at a time, and the next one is made a minute later at
// the earliest. Errors: NotFound (no such agent), Invalid, Denied (no seller is configured,
// or the last purchases had no effect), Unavailable (a balance is not known, or the outcome
// is not: treasury continues the purchase itself).
type TriggerTopUp struct {
	Agent string `json:"agent"`
	Cause string `json:"cause"` // who asks and why, for the log of purchases; 1 to 60 bytes
	// Refused says that a payment was refused for lack of credits. Then credits are bought
	// at every tier, and otherwise only at low_compute, critical and dead.
	Refused bool `json:"refused,omitempty"`
	// Missing is what the refused payment lacked; 0: not known. The smallest amount on sale
	// that covers it is bought.
	Missing Micros `json:"missing,omitempty"`
}

// TopUpTriggered is the answer of [TriggerTopUp].
type TopUpTriggered struct {
	Agent   string `json:"agent"`
	Bought  bool   `json:"bought"`        // credits were bought, now or in the last minute
	Credits Micros `json:"credits"`       // of the agent now, available and held
	Why     string `json:"why,omitempty"` // why nothing was bought
}

// TopupUSD returns the amounts of USDC, in dollars, for which credits are sold.
func TopupUSD() []int64 { return []int64{5, 25, 100, 500, 1000, 2500} }

// IsTopup reports whether credits are sold for an amount of dollars.
func IsTopup(usd int64) bool { return slices.Contains(TopupUSD(), usd) }

// The implementations of [Message] by the types of this file.

func (TopUp) Subject() Subject        { return request(Treasury, "top_up") }
func (TriggerTopUp) Subject() Subject { return request(Treasury, "trigger_top_up") }
