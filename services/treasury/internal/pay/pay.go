package pay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Options are the options of a Payer.
type Options struct {
	Store    Store
	Money    Money
	Signer   Signer
	Chain    Chain
	Networks x402.Networks // the networks that are paid on, with their tokens
	Outbound safehttp.Options
	Own      http.RoundTripper // sends the requests that treasury makes for its own purpose; nil means as those of agents
	Log      *slog.Logger
	Now      func() time.Time
	// Changed, which may be nil, is called after each change of a state.
	Changed func(ctx context.Context, p *Payment)
}

// Payer makes payments. It is safe for concurrent use. Close it after use.
type Payer struct {
	o      Options
	client *http.Client
	own    *http.Client
}

// New returns a payer.
func New(o Options) *Payer {
	p := &Payer{o: o, client: o.Outbound.Client()}
	p.client.Transport = telemetry.NewTransport(p.client.Transport)
	if p.own = p.client; o.Own != nil {
		p.own = &http.Client{Transport: o.Own}
	}
	return p
}

// Close closes idle connections.
func (p *Payer) Close() { p.client.CloseIdleConnections() }

// Times of one request. A claim is longer than the work on a payment, so that two
// processes never work on one. holdTime is how long the money is held at most: a hold
// ends earlier, by the outcome, unless the chain does not answer for so long.
const (
	workTime  = 90 * time.Second
	claimTime = workTime + 30*time.Second
	holdTime  = 30 * 24 * time.Hour

	patience = 8 * time.Second        // with which a request waits for another one with its id
	busyPoll = 100 * time.Millisecond // how often it looks
)

// Pay makes the request and pays for it if the seller demands it. The same request with
// the same id continues an interrupted payment, or returns the stored answer. Errors:
// Invalid; Conflict (the id belongs to another request); Denied (no acceptable offer, the
// limits, missing funds); Unavailable (the outcome is not known yet: repeat the request
// with the same id).
//
// If the process stops between two steps, the row has the last one. Until the
// authorization is stored nothing can be paid; from then on it is the only one.
func (p *Payer) Pay(ctx context.Context, r Request) (Payment, error) {
	if err := p.check(&r); err != nil {
		return Payment{}, err
	}
	telemetry.MarkPayment(ctx, r.ID)
	w := &work{Payer: p, r: &r, hash: r.hash()}
	stored, claimed, err := p.claim(ctx, Payment{
		ID: r.ID, Agent: r.Agent, Session: r.Session, Turn: r.Turn, By: r.By, Request: w.hash, Method: r.Method, URL: r.URL, State: api.PaymentIntended, Parent: r.Parent,
	})
	same := stored.Request == w.hash && stored.Agent == r.Agent
	switch {
	case err != nil:
		return Payment{}, err
	case !same || stored.ended() || stored.final() && !claimed:
		w.Payment = stored
		if claimed {
			if same {
				w.look(ctx)
			}
			w.leave(ctx)
		}
		if same {
			return w.Payment, outcome(&w.Payment)
		}
		return Payment{}, &api.Error{Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: "the id belongs to another request", Next: "use a new id for a new request"}
	case !claimed:
		return stored, &api.Error{Code: api.Unavailable, Reason: api.ReasonBusy, Message: "the payment is in progress", Next: "repeat the request with the same id", RetryAfter: 1000}
	}
	w.Payment = stored
	w.Own = r.Own
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	if w.final() {
		err = w.collect(ctx)
	} else {
		err = w.run(ctx)
	}
	w.leave(ctx)
	return w.Payment, err
}

// claim claims the payment of a request. While another request works on it, which may be
// an earlier delivery of the same one, claim waits for its end.
func (p *Payer) claim(ctx context.Context, fresh Payment) (stored Payment, claimed bool, err error) {
	for end := p.o.Now().Add(patience); ; {
		now := p.o.Now()
		fresh.CreatedAt, fresh.UpdatedAt, fresh.BusyUntil = now.UnixMicro(), now.UnixMicro(), now.Add(claimTime).UnixMicro()
		stored, claimed, err = p.o.Store.ClaimPayment(ctx, fresh)
		busy := err == nil && !claimed && stored.Request == fresh.Request && !stored.final()
		if !busy || !now.Before(end) || wait.For(ctx, busyPoll) != nil {
			return stored, claimed, err
		}
	}
}

// look asks the chain for the outcome of a payment that the seller has answered. If it has
// none, or does not answer, the reconciliation asks again.
func (w *work) look(ctx context.Context) {
	if !w.final() && w.decide(ctx) == nil && w.final() {
		w.post(ctx)
	}
}

// outcome returns the error that a payment ends with.
func outcome(p *Payment) error {
	switch p.State {
	case api.PaymentFailed:
		return &api.Error{Code: api.Denied, Reason: api.ReasonOffer, Message: p.Reason, Next: "use a new id to try again"}
	case api.PaymentExpired:
		return &api.Error{Code: api.Denied, Reason: api.ReasonExpired, Message: "the payment was not settled in time; nothing was paid: " + p.Reason, Next: "use a new id to try again"}
	case api.PaymentSettled, api.PaymentFree, api.PaymentIntended, api.PaymentHeld, api.PaymentSigned, api.PaymentSubmitted, api.PaymentUnknown:
	}
	return nil
}

// work is a claimed payment.
type work struct {
	*Payer
	Payment

	r    *Request // nil in a reconciliation
	hash string
}

// save stores the state. Another process may have the claim if this one was stopped for
// long; then it must not continue.
func (w *work) save(ctx context.Context, state api.PaymentState) error {
	changed := w.State != state
	w.State, w.UpdatedAt = state, w.o.Now().UnixMicro()
	if changed {
		w.Attempts = 0
	}
	if err := w.o.Store.SavePayment(ctx, w.Payment, w.BusyUntil); err != nil {
		return err
	}
	if changed && w.o.Changed != nil {
		w.o.Changed(ctx, &w.Payment)
	}
	return nil
}

// leave ends the claim. If that fails, it ends by its time.
func (w *work) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	claim := w.BusyUntil
	w.BusyUntil, w.UpdatedAt = 0, w.o.Now().UnixMicro()
	if err := w.o.Store.SavePayment(ctx, w.Payment, claim); err != nil {
		w.o.Log.WarnContext(ctx, "claim of a payment not ended; it ends by its time", "payment", w.ID, "err", err)
	}
}

// run continues a payment from its state.
func (w *work) run(ctx context.Context) error {
	if w.State == api.PaymentIntended && w.Network == "" {
		if paid, err := w.ask(ctx); paid || err != nil {
			return err
		}
	}
	if w.State == api.PaymentIntended {
		if err := w.hold(ctx); err != nil {
			return err
		}
	}
	if w.State == api.PaymentHeld {
		if err := w.sign(ctx); err != nil {
			return err
		}
	}
	return w.send(ctx)
}

// ask makes the request without a payment. done means that the seller wants none. Its
// answer is final unless the seller failed.
func (w *work) ask(ctx context.Context) (done bool, err error) {
	a, err := w.do(ctx, false)
	if err != nil {
		return true, lost(err)
	}
	if a.status != http.StatusPaymentRequired {
		w.Answer = a.answer()
		if a.status >= http.StatusInternalServerError {
			return true, nil // not stored: a repeated request asks again
		}
		return true, w.save(ctx, api.PaymentFree)
	}
	w.Answer = Answer{} // of an earlier attempt, at which the seller failed
	challenges, err := x402.ReadChallenges(a.header, a.body)
	if err != nil {
		return true, w.fail(ctx, &api.Error{Code: api.Denied, Reason: api.ReasonOffer, Message: "the seller's price cannot be read: " + err.Error(), Next: "use another seller"})
	}
	terms, q, err := choose(challenges, w.o.Networks, cmp.Or(w.r.Max, api.MaxMicros), w.r.Payees)
	if err != nil {
		return true, w.fail(ctx, err)
	}
	payer, err := w.o.Signer.Address(ctx, w.Agent)
	if err != nil {
		return true, err
	}
	if err := w.adopt(terms, q, payer, w.o.Now().Unix()); err != nil {
		return true, err
	}
	// Stored before the money is held, so that a hold always has a payment that ends it.
	w.NextAt = w.end()
	return false, w.save(ctx, api.PaymentIntended)
}

// fail ends a payment before anything is held. The same id has the same refusal.
func (w *work) fail(ctx context.Context, cause error) error {
	w.Reason = api.Wire(cause).Message
	w.Posted = true
	if err := w.save(ctx, api.PaymentFailed); err != nil {
		return err
	}
	return cause
}

// hold reserves the money. A refusal is not stored: the same payment may be repeated when
// there is money, or when the creator has approved it.
func (w *work) hold(ctx context.Context) error {
	if w.ValidBefore <= w.o.Now().Unix()+leastTimeout {
		w.NextAt = w.o.Now().UnixMicro()
		return lost(errors.New("the time to pay has passed"))
	}
	if err := w.o.Money.Hold(ctx, &w.Payment, w.r.address, w.o.Now().Add(holdTime).UnixMicro()); err != nil {
		if code := api.CodeOf(err); (code == api.Denied || code == api.Invalid) && api.ReasonOf(err) != api.ReasonFrozen {
			// Nothing is held, so the next attempt may take another offer. A frozen agent is refused
			// before the ledger is asked: an earlier attempt may have held the money.
			w.Network, w.NextAt = "", 0
		}
		return err
	}
	return w.save(ctx, api.PaymentHeld)
}

// sign signs the authorization and stores it before it is sent.
func (w *work) sign(ctx context.Context) error {
	a, terms, q, err := w.authorization(w.o.Networks)
	if err != nil {
		return err
	}
	s, err := failpoint.Value(ctx, failpoint.TreasuryPaySign, func(ctx context.Context) (x402.Signature, error) {
		return w.o.Signer.Sign(ctx, w.Agent, a, terms, w.o.Now())
	})
	if api.CodeOf(err) == api.Denied {
		w.Reason, w.NextAt = api.Wire(err).Message, w.o.Now().UnixMicro()
		if serr := w.save(ctx, api.PaymentFailed); serr != nil {
			return serr
		}
		w.post(ctx)
		return err
	}
	if err != nil {
		return err
	}
	w.Header, w.Value = q.wire(w.ID, a, s)
	return w.save(ctx, api.PaymentSigned)
}

// end returns when the authorization has ended for certain, for the reconciliation.
func (w *work) end() int64 { return (w.ValidBefore + expiryMargin) * 1_000_000 }

// lost is the error of a payment without an outcome.
func lost(cause error) error {
	return &api.Error{
		Code: api.Unavailable, Message: "the outcome is not known yet: " + safehttp.Explain(cause).Error(),
		Next: "repeat the request with the same id; it never pays twice", RetryAfter: 1000,
	}
}
