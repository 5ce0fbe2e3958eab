// Package topup buys credits for agents with the USDC of their wallets. There is one
// purchase at a time for each wallet, whether the agent, the operator or the watch over low
// balances requests it. Package topup must not know how a purchase is paid, and it
// never buys on a balance that is not known.
package topup

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Limits (docs/reference/treasury.md, Top-ups).
const (
	Cooldown  = time.Minute    // after a purchase, before the next automatic one
	MaxFutile = 3              // purchases in a row without an effect on the credits, after each of which
	Pause     = 24 * time.Hour // nothing more is bought
)

// State is the state of a purchase. An open purchase may have been paid.
type State string

// The values of State.
const (
	Open   State = "open"
	Done   State = "done"   // paid, and the credits have increased
	Futile State = "futile" // paid, and the credits have not increased
	Failed State = "failed" // not paid
)

// Purchase is a purchase of credits. It is stored before anything is signed.
type Purchase struct {
	ID        string
	Agent     string
	USD       int64 // one of [api.TopupUSD]
	Cause     string
	Automatic bool // by the watch over low balances
	State     State
	Reason    string     // why it failed
	Before    api.Micros // credits when it was stored
	After     api.Micros // credits when it ended
	CreatedAt int64      // Unix microseconds
	EndedAt   int64      // 0 while open
}

// Store stores purchases. It is safe for concurrent use, also by several processes.
type Store interface {
	// BeginTopup stores an open purchase, if next allows it with the open purchase and the
	// latest ended ones of the agent, the newest first. Calls for one agent are
	// serialised. If the id exists, the stored purchase is returned.
	BeginTopup(ctx context.Context, p Purchase, next func(open *Purchase, ended []Purchase) error) (Purchase, error)
	// EndTopup stores the end of an open purchase. One that has ended stays unchanged.
	EndTopup(ctx context.Context, p Purchase) (Purchase, error)
	// OpenTopups returns the open purchases, the oldest first.
	OpenTopups(ctx context.Context, limit int) ([]Purchase, error)
	// PoorAgents returns agents with a wallet that have at most some credits, and at least
	// some USDC in the ledger.
	PoorAgents(ctx context.Context, credits, usdc api.Micros, limit int) ([]string, error)
}

// Options are the parts of an [Actor].
type Options struct {
	Store Store
	// Credits returns what an agent owns, available and held.
	Credits func(ctx context.Context, agent string) (api.Micros, error)
	// USDC returns what an agent can pay with. It returns an error if that is not known, and
	// a Denied one if the agent may not pay.
	USDC func(ctx context.Context, agent string) (api.Micros, error)
	// Pay pays a purchase. Repeating it with the same id never pays twice. An Unavailable
	// error, one that is no [api.Error], and a Conflict, unless the id belongs to another
	// payment, mean that it may have been paid.
	Pay func(ctx context.Context, id, agent string, usd int64) error
	Now func() time.Time
	Log *slog.Logger
}

// Actor buys credits. It is safe for concurrent use.
type Actor struct{ Options }

// Buy buys credits, or continues the purchase with the id of p. If the process dies, the
// purchase is stored and [Actor.Round] continues it; the payment has its id, so it is made
// once. Errors: Invalid, NotFound (the agent has no account), Conflict (another purchase
// is open), Denied (not enough USDC, or the last purchases had no effect), Unavailable (a
// balance is not known, the cooldown, or no clear answer).
func (a *Actor) Buy(ctx context.Context, p Purchase) (Purchase, error) {
	p, _, err := a.buy(ctx, p)
	return p, err
}

// buy is Buy. It also returns the last purchase of the agent that ended before this one
// began, the zero value if there was none.
func (a *Actor) buy(ctx context.Context, p Purchase) (_, last Purchase, _ error) {
	if !api.IsTopup(p.USD) {
		return p, last, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("credits are not sold for $%d", p.USD), Next: fmt.Sprintf("use one of %v", api.TopupUSD())}
	}
	usdc, err := a.USDC(ctx, p.Agent)
	switch {
	case api.CodeOf(err) == api.Denied, api.CodeOf(err) == api.NotFound:
		return p, last, err
	case err != nil:
		return p, last, unknown("USDC", err)
	}
	if p.Before, err = a.Credits(ctx, p.Agent); err != nil {
		return p, last, unknown("credits", err)
	}
	p.State, p.CreatedAt = Open, a.Now().UnixMicro()
	stored, err := a.Store.BeginTopup(ctx, p, func(open *Purchase, ended []Purchase) error {
		if len(ended) > 0 {
			last = ended[0]
		}
		if err := a.allowed(p, open, ended); err != nil {
			return err
		}
		if price := api.Micros(p.USD) * api.Dollar; usdc < price {
			return &api.Error{
				Code: api.Denied, Reason: api.ReasonInsufficient, Message: fmt.Sprintf("the wallet has %s of USDC and needs %s", usdc, price),
				Next: "send USDC to the address of the wallet",
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return p, last, err
	case stored.Agent != p.Agent || stored.USD != p.USD:
		return stored, last, &api.Error{Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: "the id belongs to another purchase"}
	}
	p, err = a.finish(ctx, stored)
	return p, last, err
}

func unknown(what string, err error) error {
	return &api.Error{Code: api.Unavailable, Message: "the balance of " + what + " is not known, so nothing is bought: " + api.Wire(err).Message, Next: "try again later", RetryAfter: 30_000}
}

// allowed decides whether a new purchase may begin.
func (a *Actor) allowed(p Purchase, open *Purchase, ended []Purchase) error {
	if open != nil {
		return &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: fmt.Sprintf("a purchase for $%d is under way", open.USD), Next: "wait for its end and look at the balance"}
	}
	futile := 0
	for futile < len(ended) && ended[futile].State == Futile {
		futile++
	}
	if futile >= MaxFutile && a.Now().Sub(time.UnixMicro(ended[0].EndedAt)) < Pause {
		return &api.Error{
			Code: api.Denied, Reason: reasonFutile, Message: fmt.Sprintf("the last %d purchases were paid and brought no credits", futile),
			Next: "the operator has to look at the payments; the next purchase is possible a day after the last one",
		}
	}
	if p.Automatic && len(ended) > 0 {
		if left := time.UnixMicro(ended[0].EndedAt).Add(Cooldown).Sub(a.Now()); left > 0 {
			return &api.Error{Code: api.Unavailable, Reason: api.ReasonLimit, Message: "credits were bought a moment ago", RetryAfter: left.Milliseconds()}
		}
	}
	return nil
}

// reasonFutile is the reason of a refusal after purchases without effect.
const reasonFutile = "topup_futile"

// finish pays an open purchase and stores its end. The result of an ended one is returned
// again.
func (a *Actor) finish(ctx context.Context, p Purchase) (Purchase, error) {
	if p.State == Open {
		err := a.Pay(ctx, p.ID, p.Agent, p.USD)
		switch code := api.CodeOf(err); {
		case code == api.Unavailable || code == api.Internal || code == api.Conflict && api.ReasonOf(err) != api.ReasonKeyTaken || ctx.Err() != nil:
			return p, err // it may be paid: it stays open
		case err != nil:
			p.State, p.Reason = Failed, api.Wire(err).Message
		default:
			if p.After, err = a.Credits(ctx, p.Agent); err != nil {
				return p, unknown("credits", err) // read again by the next attempt, which pays nothing
			}
			p.State = Done
			if p.After <= p.Before {
				p.State = Futile
			}
		}
		p.EndedAt = a.Now().UnixMicro()
		if p, err = a.Store.EndTopup(context.WithoutCancel(ctx), p); err != nil {
			return p, err
		}
		a.Log.InfoContext(ctx, "a purchase of credits has ended", "agent", p.Agent, "usd", p.USD, "cause", p.Cause, "state", string(p.State))
	}
	if p.State == Failed {
		return p, &api.Error{Code: api.Denied, Message: p.Reason, Next: "look at the payment topup/" + p.ID}
	}
	return p, nil
}

// Round continues open purchases, and buys the smallest amount for agents at a low tier
// whose wallets have enough. It ends when the chain does not answer. Replicas may do it at
// the same time.
func (a *Actor) Round(ctx context.Context) {
	open, err := a.Store.OpenTopups(ctx, 100)
	a.failed(ctx, "read open purchases", "", err)
	for _, p := range open {
		_, err := a.finish(ctx, p)
		a.failed(ctx, "continue an open purchase", p.Agent, err)
	}
	agents, err := a.Store.PoorAgents(ctx, api.MaxLow, smallest(), 1000)
	a.failed(ctx, "read the agents at a low tier", "", err)
	for _, agent := range agents {
		_, err := a.Low(ctx, agent, "low tier")
		a.failed(ctx, "buy credits", agent, err)
		if api.ReasonOf(err) == api.ReasonChain {
			return // the chain does not answer: no balance can be read
		}
	}
}

// smallest returns the price of the smallest purchase.
func smallest() api.Micros { return api.Micros(api.TopupUSD()[0]) * api.Dollar }

// Low buys the smallest amount of credits for an agent whose tier is low or critical. It
// returns false and buys nothing for another tier, or if the wallet has too little.
func (a *Actor) Low(ctx context.Context, agent, cause string) (bool, error) {
	credits, err := a.Credits(ctx, agent)
	if err != nil || credits > api.MaxLow {
		return false, err
	}
	usdc, err := a.USDC(ctx, agent)
	if api.CodeOf(err) == api.Denied { // until an operator changes it: there is nothing to try again
		return false, nil
	}
	if err != nil || usdc < smallest() {
		return false, err
	}
	_, err = a.Buy(ctx, Purchase{ID: fmt.Sprintf("auto/%s/%d", agent, a.Now().UnixMicro()), Agent: agent, USD: api.TopupUSD()[0], Cause: cause, Automatic: true})
	if code := api.CodeOf(err); code == api.Conflict || api.ReasonOf(err) == api.ReasonLimit {
		return false, nil // another one is under way, or has just ended
	}
	return err == nil, err
}

// failed logs an error of a step of a round, which the next round repeats.
func (a *Actor) failed(ctx context.Context, step, agent string, err error) {
	if err != nil && ctx.Err() == nil {
		a.Log.WarnContext(ctx, "top-up not made, trying again later", "step", step, "agent", agent, "err", err)
	}
}
