package api

import (
	"errors"
	"fmt"
	"time"
)

// Code is the class of an error. It is encoded as text. By the code, pkg/bus
// acknowledges, retries or terminates a message. Codes are only added, never removed.
type Code string

// The six codes (docs/reference/platform.md, Error codes).
const (
	Invalid     Code = "invalid"     // the request is not valid: do not retry
	NotFound    Code = "not_found"   // does not exist now
	Conflict    Code = "conflict"    // the state has changed: read it again, then decide
	Denied      Code = "denied"      // not allowed: do not retry
	Unavailable Code = "unavailable" // try again, after RetryAfter if it is set
	Internal    Code = "internal"    // any error without a code
)

// Reasons that callers act on. A reason refines a code. An unknown reason is handled by
// its code alone. Each comment gives the codes that the reason occurs with.
const (
	ReasonInsufficient = "insufficient_funds"   // Denied: the account cannot pay
	ReasonLimit        = "limit_reached"        // Denied or Unavailable: a budget, a queue or a rate is full
	ReasonNoModel      = "no_model"             // Unavailable: no usable model for this tier and task
	ReasonTooLong      = "context_too_long"     // Invalid: the prompt does not fit any usable model
	ReasonProvider     = "provider_error"       // Unavailable: the model provider failed; the call may be made again
	ReasonAttempts     = "attempts_used"        // Unavailable: all attempts of the call or the run have failed
	ReasonAuth         = "provider_auth"        // Unavailable: the provider refuses the key (401, 403)
	ReasonQuota        = "provider_quota"       // Unavailable: the account at the provider is empty (402)
	ReasonEndpoint     = "provider_endpoint"    // Unavailable: the address is not a provider's API
	ReasonRefused      = "request_refused"      // Invalid: the provider refuses this request (400, 422); the message is the provider's. Denied: the seller refuses the payment
	ReasonTimeout      = "timeout"              // Denied or Unavailable: the time limit of a run or a call has passed
	ReasonBusy         = "busy"                 // Unavailable: all workers are busy. Conflict: the session is busy
	ReasonNoAnswer     = "no_answer"            // Unavailable: no replica received the request
	ReasonCancelled    = "cancelled"            // Denied: the run was cancelled by a request
	ReasonCostCap      = "cost_cap"             // Denied: the run has reached its task's cost limit
	ReasonExpired      = "expired"              // Denied: the message waited too long for its session
	ReasonTerminated   = "terminated"           // Conflict: the session accepts no more messages
	ReasonPolicy       = "policy_down"          // Unavailable: no tool call is executed while policy does not answer
	ReasonNoSpace      = "no_space"             // Unavailable: only the reserve of the disk is free
	ReasonOverflow     = "irreducible_overflow" // Invalid: the context cannot be reduced to the window
	ReasonKeyTaken     = "key_taken"            // Conflict: the idempotency key belongs to another request
	ReasonScope        = "scope"                // Denied: the API key does not permit it
	ReasonTooLarge     = "too_large"            // Invalid: a message, file or body exceeds its limit
	ReasonNoChain      = "no_chain"             // Denied: no chain is configured
	ReasonOffer        = "no_offer"             // Denied: no offer of a seller is acceptable
	ReasonTooSlow      = "too_slow"             // Invalid: the body of a request did not arrive in time
	ReasonNotSigned    = "not_signed"           // Denied: the signer refuses the data, whatever the caller has decided
	ReasonChain        = "chain_down"           // Unavailable: the chain cannot be read, so the balance is unknown
	ReasonNoParent     = "no_parent"            // Denied: the agent is not the child of the other one
	ReasonFrozen       = "frozen"               // Denied: the ledger and the chain differ; an operator has to resolve it
)

// Reasons of treasury for payments that a limit of the agent refuses, all with Denied
// (docs/limits.md). RetryAfter is set where waiting helps.
const (
	ReasonCallLimit    = "call_limit"              // the amount of one payment
	ReasonTurnLimit    = "turn_limit"              // the sum of a turn
	ReasonSessionLimit = "session_limit"           // the sum of a session
	ReasonHourLimit    = "hour_limit"              // the sum of an hour
	ReasonDayLimit     = "day_limit"               // the sum of a day
	ReasonLineageLimit = "lineage_limit"           // the sum of a day of an agent and its descendants
	ReasonPeerLimit    = "peer_limit"              // the sum that peers may cause
	ReasonVelocity     = "velocity_limit"          // the number of payments in a window
	ReasonCooldown     = "cooldown"                // the time between two transfers
	ReasonReserve      = "reserve"                 // the credits that a payment must leave
	ReasonNewPayee     = "new_payee_limit"         // the first payment to a payee
	ReasonPayee        = "payee_not_allowed"       // not on the allow-list of payees
	ReasonDomain       = "domain_not_allowed"      // not on the allow-list of domains
	ReasonAsset        = "asset_not_allowed"       // not on the allow-list of assets
	ReasonFacilitator  = "facilitator_not_allowed" // not on the allow-list of facilitators
	ReasonApproval     = "approval_required"       // the creator has to approve the payment
)

// OverLimit reports whether a reason is that of a limit of the agent. Such a refusal
// ends a run: repeating the same payment at once is of no use.
func OverLimit(reason string) bool {
	switch reason {
	case ReasonCallLimit, ReasonTurnLimit, ReasonSessionLimit, ReasonHourLimit, ReasonDayLimit, ReasonLineageLimit, ReasonPeerLimit,
		ReasonVelocity, ReasonCooldown, ReasonReserve, ReasonNewPayee, ReasonPayee, ReasonDomain, ReasonAsset, ReasonFacilitator, ReasonApproval:
		return true
	}
	return false
}

// Error is an error that another service or a person can act on. Any other error is
// [Internal], and its text is only written to the log of the process.
type Error struct {
	Code       Code     `json:"code"`
	Reason     string   `json:"reason,omitempty"`
	Message    string   `json:"message"`           // cause, for people
	Next       string   `json:"next,omitempty"`    // what to do about it
	Details    []string `json:"details,omitempty"` // all faults, one per element
	RetryAfter int64    `json:"retryAfterMs,omitempty"`
}

// Error returns the code, the message and, if it is set, Next in parentheses.
func (e *Error) Error() string {
	if e.Next == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Message + " (" + e.Next + ")"
}

// Retry returns the time to wait before the next attempt. 0 means that the caller
// chooses it.
func (e *Error) Retry() time.Duration { return time.Duration(e.RetryAfter) * time.Millisecond }

// Errorf returns an [Error] with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: "" for nil, and [Internal] if err wraps no [Error].
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return Wire(err).Code
}

// ReasonOf returns the reason of err, or "" if it has none.
func ReasonOf(err error) string { return Wire(err).Reason }

// Wire returns err as it may leave the process: the [Error] that it wraps, or else an
// Internal error without the text of err, which belongs in the log.
func Wire(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: Internal, Message: "internal error", Next: "see the log of the service that answered"}
}
