package router

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// takeRate takes the call from the rates of its provider. If they do not allow it now, it
// returns how long they do not.
func (m *candidate) takeRate() time.Duration {
	return m.h.rates.Take(m.provider.Name(), m.tokens, m.h.now())
}

// returnRate gives back what takeRate took, for a call that is not made.
func (m *candidate) returnRate() { m.h.rates.Return(m.provider.Name(), m.tokens) }

// limitRate delays the models of the provider of m, so that another provider is called
// first. It is no failed attempt: the provider was not called.
func (c *callState) limitRate(m *candidate, wait time.Duration) {
	ready := c.h.now().Add(wait)
	for _, other := range c.models {
		if other.provider.Name() == m.provider.Name() && other.notBefore.Before(ready) {
			other.notBefore, other.retryFirst = ready, false
		}
	}
	c.limited = &api.Error{
		Code: api.Unavailable, Reason: api.ReasonProvider, Message: fmt.Sprintf("the rates of %s do not allow a call for %s", m.provider.Name(), wait.Round(time.Second)),
		Next: "try again later, raise ANIMA_INFERENCE_ROUTER_RATES if the provider allows more, or configure another provider",
	}
}
