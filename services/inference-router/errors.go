package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// remedy is how the router handles a failed call to a provider, and the reason and advice
// for the caller when no attempt is left.
type remedy struct {
	transient   bool // the cause may pass: the call is repeated while attempts are left
	sameModel   bool // the first retry is made on the same model
	otherModels bool // another model of the same provider may succeed
	reason      string
	next        string
}

// remedyOf returns the remedy for an error (docs/reference/inference-router.md, Error
// kinds): a call with a transient cause is repeated; a lasting cause excludes the model or
// provider.
func remedyOf(e *provider.Error) remedy {
	setting, key, form := settingsOf(e.Provider)
	switch e.Kind {
	case provider.RetrySame:
		return remedy{true, true, true, api.ReasonProvider, "try again later, or configure another provider"}
	case provider.RateLimited:
		return remedy{true, true, true, api.ReasonProvider, "try again later, or raise the limit at the provider"}
	case provider.Failover:
		return remedy{true, false, true, api.ReasonProvider, "try again later, or configure another provider"}
	case provider.Stalled:
		return remedy{true, false, true, api.ReasonTimeout, "try again later, use a faster model, or raise ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT and ANIMA_INFERENCE_ROUTER_TOKEN_TIMEOUT"}
	case provider.Unreachable:
		return remedy{true, false, false, api.ReasonProvider, "check " + setting + " and that the server there runs"}
	case provider.NoModel:
		return remedy{false, false, true, api.ReasonNoModel, "name a model of anima model list in AGENT.md or in ANIMA_INFERENCE_ROUTER_MODELS"}
	case provider.Quota:
		return remedy{false, false, false, api.ReasonQuota, "add credit to the account at the provider, or configure another provider"}
	case provider.Auth:
		return remedy{false, false, false, api.ReasonAuth, "check " + key + " and its permissions"}
	case provider.Endpoint:
		return remedy{false, false, false, api.ReasonEndpoint, "check " + setting + ": it is the address of the " + form}
	case provider.ContextTooLong:
		return remedy{false, false, true, api.ReasonTooLong, "shorten the conversation or use a model with a larger window"}
	case provider.Fatal, provider.Canceled, provider.Superseded, provider.Hedged, provider.Lost:
	}
	return remedy{false, false, false, api.ReasonRefused, "the message is the provider's: it refuses this request as it is"}
}

// failureOf translates a provider's error to an [api.Error]. Its text is safe to show.
// Other errors are returned as they are.
func failureOf(err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok {
		return err
	}
	if e.Kind == provider.Canceled && errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{
			Code: api.Unavailable, Reason: api.ReasonTimeout, Message: e.Error(),
			Next: "try again later, use a faster model, or ask for less",
		}
	}
	if e.Kind == provider.Canceled { // the caller canceled, or this process is shutting down
		return &api.Error{Code: api.Unavailable, Message: "the call was stopped before its answer was complete", Next: "retry", RetryAfter: 1000}
	}
	r := remedyOf(e)
	out := &api.Error{Code: api.Unavailable, Reason: r.reason, Message: e.Error(), Next: r.next}
	if r.reason == api.ReasonTooLong || r.reason == api.ReasonRefused {
		out.Code = api.Invalid
	}
	if r.transient {
		out.RetryAfter = max(1000, e.RetryAfter.Milliseconds())
	}
	return out
}

// attemptsExhausted returns the error of a call that has no attempts left.
func attemptsExhausted(last error, tries int, run bool) *api.Error {
	w := api.Wire(last)
	out := &api.Error{Code: api.Unavailable, Reason: api.ReasonAttempts, Message: fmt.Sprintf("%s; given up after %d attempts", w.Message, tries), Next: w.Next}
	if run {
		out.Message = fmt.Sprintf("%s; given up after %d failed attempts in this run", w.Message, tries)
	}
	if w.Reason == api.ReasonTimeout {
		out.Reason = api.ReasonTimeout
	}
	return out
}

// exhausted is [attemptsExhausted] with the failed attempts of the call.
func (c *callState) exhausted(last error, tries int, run bool) *api.Error {
	out := attemptsExhausted(last, tries, run)
	out.Details = c.causes
	return out
}

// finalError returns the error of a call that no model answered. An error of a model takes
// precedence over the reason why a model was not called.
func (c *callState) finalError() error {
	if err := cmp.Or(c.lasting, refusal(&c.route)); err != nil {
		return err
	}
	return noModel(c.req.Complete, &c.route, c.h.models.faults())
}

// retryLater returns the error for a wait that is longer than maxWait or ends after the
// deadline; it gives the caller the wait as RetryAfter.
func retryLater(last error, wait time.Duration) error {
	w := *api.Wire(last)
	w.Reason, w.RetryAfter = api.ReasonProvider, max(1, wait.Milliseconds())
	return &w
}

// retryNote returns the note about a call that is repeated.
func retryNote(last error, wait time.Duration, model string) string {
	note := api.Wire(last).Message
	if wait > 0 {
		return fmt.Sprintf("%s; retrying with %s in %s", note, model, wait.Round(100*time.Millisecond))
	}
	return fmt.Sprintf("%s; retrying with %s", note, model)
}
