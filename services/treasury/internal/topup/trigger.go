package topup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Need is why another part of anima wants credits to be bought.
type Need struct {
	Agent   string
	Cause   string
	Refused bool       // a payment was refused for lack of credits, so the tier does not matter
	Missing api.Micros // what it lacked; 0: not known
}

// Trigger buys credits for an agent that needs them, the smallest amount that covers what
// is missing. It returns whether credits were bought, by this call or by another one up to
// [Cooldown] ago, and otherwise why not. While another purchase of the agent is open, it
// waits for its end until ctx ends. Repeated and concurrent calls buy once. If the process
// dies, [Actor.Round] continues the purchase. Errors are those of [Actor.Buy].
func (a *Actor) Trigger(ctx context.Context, n Need) (bought bool, why string, _ error) {
	credits, err := a.Credits(ctx, n.Agent)
	if err != nil {
		return false, "", err
	}
	if !n.Refused && credits > api.MaxLow {
		return false, fmt.Sprintf("the agent has %s and is not at a low tier", credits), nil
	}
	usd, err := covering(n.Missing)
	if err != nil {
		return false, "", err
	}
	p := Purchase{ID: fmt.Sprintf("auto/%s/%d", n.Agent, a.Now().UnixMicro()), Agent: n.Agent, USD: usd, Cause: n.Cause, Automatic: true}
	for {
		bought, last, err := a.buy(ctx, p)
		reason := api.ReasonOf(err)
		switch {
		case err == nil:
			return bought.State == Done, whyNot(bought), nil
		case reason == api.ReasonBusy:
			if err := wait.For(ctx, pollOpen); err != nil {
				return false, "", errors.Join(api.Errorf(api.Unavailable, "a purchase of credits is under way"), err)
			}
		case reason == api.ReasonLimit: // the last purchase has just ended, maybe after the caller was refused
			return last.State == Done, whyNot(last), nil
		case reason == api.ReasonInsufficient:
			return false, api.Wire(err).Message, nil
		default:
			return false, "", err
		}
	}
}

// pollOpen is how often Trigger looks for the end of another purchase.
const pollOpen = 100 * time.Millisecond

// whyNot returns why a purchase that has ended brought no credits.
func whyNot(p Purchase) string {
	switch p.State {
	case Futile:
		return "the purchase was paid and brought no credits"
	case Failed:
		return "the last purchase has failed: " + p.Reason
	case Open, Done:
	}
	return ""
}

// covering returns the smallest amount on sale, in dollars, that covers an amount.
func covering(missing api.Micros) (int64, error) {
	for _, usd := range api.TopupUSD() {
		if api.Micros(usd)*api.Dollar >= missing {
			return usd, nil
		}
	}
	return 0, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%s are missing, more than one purchase brings", missing), Next: fmt.Sprintf("use one of %v", api.TopupUSD())}
}
