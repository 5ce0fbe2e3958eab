package provider

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind says what a caller can do about an error.
type Kind string

// The kinds. Spec V-26 names the statuses behind them; that 502 and network
// errors fail over is its correction.
const (
	RetrySame      Kind = "retry_same"       // trouble that passes: 408, 409, 500, 503, 529
	RateLimited    Kind = "rate_limited"     // 429: wait RetryAfter, or go elsewhere
	Failover       Kind = "failover"         // the answer broke off or came to nothing: a cut stream, an empty body, other 5xx
	Unreachable    Kind = "unreachable"      // no answer at all: no such host, connection refused or lost before a byte
	Stalled        Kind = "stalled"          // too long without a token
	NoModel        Kind = "no_model"         // 404, model_not_found: this model is not there; others may be
	Quota          Kind = "quota"            // 402, insufficient_quota: the account is empty, waiting does not fill it
	Endpoint       Kind = "endpoint"         // a web page, or no such path: the address is not the API's
	Auth           Kind = "auth"             // 401, 403: the key is wrong; other providers may work
	ContextTooLong Kind = "context_too_long" // the prompt does not fit this model
	Fatal          Kind = "fatal"            // the request itself is wrong everywhere
	Canceled       Kind = "canceled"         // the caller's context ended, or its onDelta refused
)

// Error is why a call failed. Its text is safe to log and to show: it never
// holds the key, nor the request.
type Error struct {
	Kind       Kind
	Provider   string
	Status     int           // HTTP status; 0 when there was no answer
	RetryAfter time.Duration // as the provider asked; 0 when it did not
	Message    string        // one line
	cause      error
}

// Error is one line: provider, status, message.
func (e *Error) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("provider %s answered with status %d: %s", e.Provider, e.Status, e.Message)
	}
	return fmt.Sprintf("provider %s: %s", e.Provider, e.Message)
}

// Unwrap is the context's error or onDelta's, of a Canceled error only. Errors
// of a client library stay out of the chain: they hold the request and its key.
func (e *Error) Unwrap() error { return e.cause }

// Stopped is the Canceled error for a cause of the caller's own.
func Stopped(provider string, cause error) *Error {
	message := "stopped by the caller"
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		message = "the deadline passed before the answer was complete"
	case errors.Is(cause, context.Canceled):
		message = "canceled before the answer was complete"
	}
	return &Error{Kind: Canceled, Provider: provider, Message: message, cause: cause}
}

// KindOf is the kind of an error; empty for one that is not of this package.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// KindOfStatus is the kind of an HTTP answer. The provider's own error code and
// message tell cases apart that share a status.
func KindOfStatus(status int, code, message string) Kind {
	switch {
	case status == http.StatusRequestEntityTooLarge,
		code == "context_length_exceeded",
		status == http.StatusBadRequest && mentionsContext(message):
		return ContextTooLong
	case code == "insufficient_quota", status == http.StatusPaymentRequired:
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
	return Failover // a success that is none
}

// mentionsContext knows the words of compatible servers that send no code.
func mentionsContext(message string) bool {
	m := strings.ToLower(message)
	for _, words := range []string{"context length", "context window", "context size", "maximum context", "prompt is too long"} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}

// maxRetryAfter bounds what a provider may ask for; a day is as good as never.
const maxRetryAfter = 24 * time.Hour

// RetryAfter reads the wait that an answer asks for: retry-after-ms, or
// Retry-After in seconds or as a date (RFC 9110 10.2.3) against now. It is 0
// without a header that can be read.
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

// maxMessage is how much of a provider's own message an error carries, in bytes.
const maxMessage = 500

// Clean makes a provider's message fit for an error: one line, cut, and without
// the secrets, which some providers send back. Secrets shorter than 4 bytes are
// none.
func Clean(message string, secrets ...string) string {
	for _, s := range secrets {
		if len(s) >= 4 {
			message = strings.ReplaceAll(message, s, "***")
		}
	}
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "?")), " ")
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + "…"
}
