package api

import (
	"errors"
	"fmt"
	"time"
)

// Code is the class of an error. It crosses the wire as text and decides, in
// pkg/bus, whether a message is acked, retried or given up. Codes are only ever
// added.
type Code string

// The six codes of design §3.
const (
	Invalid     Code = "invalid"     // never valid: do not retry
	NotFound    Code = "not_found"   // not there now
	Conflict    Code = "conflict"    // the state moved on: read again, then decide
	Denied      Code = "denied"      // not allowed: do not retry
	Unavailable Code = "unavailable" // try again, after RetryAfter if it is set
	Internal    Code = "internal"    // anything without a code
)

// Reasons that callers act on. A reason refines a code; an unknown reason is
// handled as its code alone.
const (
	ReasonInsufficient = "insufficient_funds"   // Denied: the account cannot pay
	ReasonLimit        = "limit_reached"        // Denied or Unavailable: a budget, a queue or a rate is full
	ReasonNoModel      = "no_model"             // Unavailable: no usable model for this tier and task
	ReasonTooLong      = "context_too_long"     // Invalid: the prompt does not fit any usable model
	ReasonProvider     = "provider_error"       // Unavailable: the model provider failed; the call may be made again
	ReasonAttempts     = "attempts_used"        // Unavailable: the provider failed as often as a call or a run may try
	ReasonAuth         = "provider_auth"        // Unavailable: the provider refuses the key (401, 403)
	ReasonQuota        = "provider_quota"       // Unavailable: the account at the provider is empty (402)
	ReasonEndpoint     = "provider_endpoint"    // Unavailable: the address is not that of a provider's API
	ReasonRefused      = "request_refused"      // Invalid: the provider refuses this very request (400, 422); the message is the provider's
	ReasonTimeout      = "timeout"              // Denied or Unavailable: the time of a run or of a call is over
	ReasonBusy         = "busy"                 // Unavailable: every worker of the pool is taken
	ReasonNoAnswer     = "no_answer"            // Unavailable: no service took the question
	ReasonCancelled    = "cancelled"            // Denied: somebody asked for the run to stop
	ReasonCostCap      = "cost_cap"             // Denied: the run has cost what its task may cost
	ReasonExpired      = "expired"              // Denied: the message waited too long for its session
	ReasonTerminated   = "terminated"           // Conflict: the session takes no messages any more
	ReasonPolicy       = "policy_down"          // Unavailable: nothing may run while policy does not answer
	ReasonNoSpace      = "no_space"             // Unavailable: the disk is full but for the reserve
	ReasonOverflow     = "irreducible_overflow" // Invalid: the context cannot be made to fit the window
	ReasonKeyTaken     = "key_taken"            // Conflict: the idempotency key belongs to another request
	ReasonTooLarge     = "too_large"            // Invalid: a message, file or body is over its limit
	ReasonTooSlow      = "too_slow"             // Invalid: the body of a request did not arrive in time
)

// Error is an error that another service or a person can act on. Any other
// error is [Internal] and its text stays in this process's log.
type Error struct {
	Code       Code     `json:"code"`
	Reason     string   `json:"reason,omitempty"`
	Message    string   `json:"message"`           // the cause, for people
	Next       string   `json:"next,omitempty"`    // what to do about it
	Details    []string `json:"details,omitempty"` // one fault a line, all of them
	RetryAfter int64    `json:"retryAfterMs,omitempty"`
}

func (e *Error) Error() string {
	if e.Next == "" {
		return string(e.Code) + ": " + e.Message
	}
	return string(e.Code) + ": " + e.Message + " (" + e.Next + ")"
}

// Retry is how long to wait before trying again; 0 means the caller chooses.
func (e *Error) Retry() time.Duration { return time.Duration(e.RetryAfter) * time.Millisecond }

// Errorf returns an [Error] with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: "" for nil and [Internal] for foreign errors.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// ReasonOf returns the reason of err, "" where it has none.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// Wire returns err as it may cross a process boundary: an [Error] as it is,
// anything else as Internal without its text, which belongs in the log.
func Wire(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: Internal, Message: "internal error", Next: "see the log of the service that answered"}
}
