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

// TopupUSD returns the amounts of USDC, in dollars, for which credits are sold.
func TopupUSD() []int64 { return []int64{5, 25, 100, 500, 1000, 2500} }

// IsTopup reports whether credits are sold for an amount of dollars.
func IsTopup(usd int64) bool { return slices.Contains(TopupUSD(), usd) }

// The implementations of [Message] by the types of this file.

func (TopUp) Subject() Subject { return request(Treasury, "top_up") }
