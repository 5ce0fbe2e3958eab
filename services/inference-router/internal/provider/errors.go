package provider

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind classifies an error by how a caller can handle it.
type Kind string

// The kinds (docs/reference/inference-router.md, Error kinds and Statuses).
const (
	RetrySame      Kind = "retry_same"       // a transient failure: 408, 409, 500, 503, 529
	RateLimited    Kind = "rate_limited"     // 429: wait RetryAfter, or use another provider
	Failover       Kind = "failover"         // an incomplete or empty answer: a cut stream, an empty body, other 5xx
	Unreachable    Kind = "unreachable"      // no connection: unknown host, connection refused, an invalid certificate
	Stalled        Kind = "stalled"          // no token for too long
	NoModel        Kind = "no_model"         // 404, model_not_found: the model does not exist; others may
	Quota          Kind = "quota"            // 402, insufficient_quota: the account has no credit; waiting does not help
	Endpoint       Kind = "endpoint"         // a web page, or an unknown path: the address is not that of the API
	Auth           Kind = "auth"             // 401, 403: the key is wrong; other providers may work
	ContextTooLong Kind = "context_too_long" // the prompt does not fit this model
	Fatal          Kind = "fatal"            // the request is invalid for any provider
	Canceled       Kind = "canceled"         // the caller's context ended, or its onDelta returned an error
	Superseded     Kind = "superseded"       // answered, but another answer to the call was stored first
	Hedged         Kind = "hedged"           // canceled, because another attempt of the call had content first
	Lost           Kind = "lost"             // its process ended before it stored the outcome
)

// Error describes a failed call. Its text is safe to log and to show: it never contains
// the key or the request.
type Error struct {
	Kind       Kind
	Provider   string
	Status     int           // HTTP status; 0 if there was no answer
	RetryAfter time.Duration // the wait that the provider requests; 0 if none
	Message    string        // one line
	Refused    string        // what a refusal names besides its message: its code and the field of the request
	cause      error
}

// Error returns one line with provider, status and message.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("provider %s answered with status %d: %s", e.Provider, e.Status, e.Message)
	}
	return fmt.Sprintf("provider %s: %s", e.Provider, e.Message)
}

// Unwrap returns the context's error or that of onDelta for a Canceled error, else nil.
// Errors of a client library are not in the chain: they hold the request and its key.
func (e *Error) Unwrap() error { return e.cause }

// ErrNotConnected is in the chain of a transport's error if there was no connection: the
// provider has received nothing of the request, and bills nothing.
var ErrNotConnected = errors.New("no connection")

// NotConnected reports whether the error of an HTTP client is one of a connection that was
// not made.
func NotConnected(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, ErrNotConnected)
}

// CanceledError returns the Canceled error for a context's error or an error of onDelta.
func CanceledError(provider string, cause error) *Error {
	message := "stopped by the caller"
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		message = "the deadline passed before the answer was complete"
	case errors.Is(cause, context.Canceled):
		message = "canceled before the answer was complete"
	}
	return &Error{Kind: Canceled, Provider: provider, Message: message, cause: cause}
}

// KindOf returns the kind of an error, empty if the error has no [Error] in its chain.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// KindOfStatus returns the kind of an HTTP answer. The provider's error code and message
// distinguish cases with the same status.
func KindOfStatus(status int, code, message string) Kind {
	switch {
	case status == http.StatusRequestEntityTooLarge,
		code == "context_length_exceeded",
		status == http.StatusBadRequest && mentionsContext(message):
		return ContextTooLong
	case code == "insufficient_quota", status == http.StatusPaymentRequired,
		status == http.StatusBadRequest && strings.Contains(strings.ToLower(message), "credit balance is too low"): // Anthropic
		return Quota
	case code == "model_not_found":
		return NoModel
	case status == http.StatusTooManyRequests:
		return RateLimited
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Auth
	case status == http.StatusRequestTimeout, status == http.StatusConflict,
		status == http.StatusInternalServerError, status == http.StatusServiceUnavailable, status == 529:
		return RetrySame
	case status == http.StatusNotFound:
		if strings.Contains(strings.ToLower(message), "model") {
			return NoModel
		}
		return Endpoint
	case status >= http.StatusInternalServerError:
		return Failover
	case status >= http.StatusBadRequest:
		return Fatal
	}
	if status >= http.StatusMultipleChoices {
		return Endpoint // a redirect
	}
	return Failover // a success without an answer
}

// mentionsContext detects the messages of compatible servers that send no error code.
func mentionsContext(message string) bool {
	m := strings.ToLower(message)
	for _, words := range []string{
		"context length", "context window", "context size", "context limit", "maximum context",
		"prompt is too long", "maximum prompt length", "input is too long for", "exceeds the maximum number of tokens",
	} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}

// maxRetryAfter bounds the wait that a provider may request. No caller waits for a day.
const maxRetryAfter = 24 * time.Hour

// RetryAfter returns the wait that an answer requests: retry-after-ms, or Retry-After in
// seconds or as a date (RFC 9110 10.2.3) relative to now. It returns 0 if no header can
// be parsed.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	parse := func(value string, unit time.Duration) time.Duration {
		n, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(n) || n <= 0 {
			return 0
		}
		if n >= float64(maxRetryAfter/unit) {
			return maxRetryAfter
		}
		return time.Duration(n * float64(unit))
	}
	if d := parse(h.Get("Retry-After-Ms"), time.Millisecond); d > 0 {
		return d
	}
	value := h.Get("Retry-After")
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return parse(value, time.Second)
}

// maxMessage is the most bytes of a provider's message in an error.
const maxMessage = 500

// Clean makes a provider's message suitable for an error: one line without control
// characters, which PostgreSQL refuses and terminals obey, truncated, with the secrets
// replaced, because some providers echo them. Secrets shorter than 4 bytes are ignored.
func Clean(message string, secrets ...string) string {
	for _, s := range secrets {
		if len(s) >= 4 {
			message = strings.ReplaceAll(message, s, "***")
		}
	}
	blank := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	message = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(message, "?"), blank), " ")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}
