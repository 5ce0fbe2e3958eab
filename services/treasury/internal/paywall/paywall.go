// Package paywall makes HTTP routes cost money: a request without a payment is answered
// with 402 and the price, and one with a payment runs the handler at most once for it
// (docs/x402.md, Being paid). It must not submit transactions, which a facilitator does,
// and must not know what is sold.
//
// A payment is claimed in the store before anything is done for it, for one resource. If
// the process stops, the claim ends by its time, and the payer continues by repeating the
// same request: from the settlement if the handler has run, from the handler otherwise.
// So a handler may run again after a crash, and must be idempotent by [Paid.Key].
package paywall

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Facilitator verifies and settles payments. An error means that the outcome is not known
// and that the request may be repeated.
type Facilitator interface {
	Verify(ctx context.Context, o x402.Order) (x402.Verdict, error)
	Settle(ctx context.Context, o x402.Order) (x402.Receipt, error)
}

// State is the state of a payment that was presented.
type State string

// The states, in their order. A route that settles first has paid, the others served.
const (
	Claimed State = "claimed" // the handler may be running
	PaidFor State = "paid"    // settled; the handler has not succeeded yet
	Served  State = "served"  // the handler has succeeded; not settled yet
	Done    State = "done"    // settled, and the answer is stored
)

// Use is a payment that was presented for a resource.
type Use struct {
	ID          string // network, payer and nonce
	Payer       string
	Identifier  string // that the payer has given to the payment; "" without one
	Resource    string
	Fingerprint string // of the payment and the request
	State       State
	Until       int64 // it is in progress until then, Unix microseconds; of a Done one: when it is confirmed, 0 for never
	Transaction string
	Answer      Answer
	At          int64
}

func useID(n x402.Network, a *x402.Authorization) string {
	return n.ID() + "/" + a.From.Hex() + "/" + hex.EncodeToString(a.Nonce[:])
}

// Authorization returns the network, payer and nonce of the payment. They are in its id.
func (u *Use) Authorization() (network string, payer common.Address, nonce common.Hash) {
	parts := append(strings.Split(u.ID, "/"), "", "") // of an invalid id the rest is empty
	return parts[0], common.HexToAddress(parts[1]), common.HexToHash(parts[2])
}

// Answer is the answer of a handler.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Store keeps the payments that were presented. It must be safe for concurrent use, also
// by several processes.
type Store interface {
	// ClaimUse stores u unless there is a use with its id, or with its payer and
	// identifier. It also takes over one with the same id and fingerprint that is not done
	// and whose time has passed at u.At. It returns the stored use as it was before, with
	// the state "" if there was none, and whether the caller has it now.
	ClaimUse(ctx context.Context, u Use) (before Use, claimed bool, err error)
	// SaveUse stores the state of a claimed use.
	SaveUse(ctx context.Context, u Use) error
	// DropUse removes a claimed use for which nothing was done.
	DropUse(ctx context.Context, id string) error
	// DueUses returns uses that are done and to be confirmed at a time, the oldest first.
	DueUses(ctx context.Context, at int64, limit int) ([]Use, error)
	// ConfirmUse stores that a use is confirmed.
	ConfirmUse(ctx context.Context, id string) error
}

// Options are the options of a Paywall.
type Options struct {
	Facilitator Facilitator
	Store       Store
	Log         *slog.Logger
	Now         func() time.Time
	// SettleFirst is the price from which a payment is settled before the handler runs.
	// Below it, the handler runs after the payment is verified, and is not paid if it
	// fails. 0 means that every payment is settled first.
	SettleFirst api.Micros
	// Transferred, which may be nil, returns the transaction in which the token has executed
	// an authorization, "" without one. It is asked if the facilitator refuses a payment whose
	// settlement had no outcome before: most refuse what they have settled themselves.
	Transferred func(ctx context.Context, a x402.Authorization) (hash string, err error)
	// Confirm, which may be nil, is called for each sale when its authorization has ended: a
	// reorganization of the chain may have removed the settlement. After an error it is called
	// again, and after a crash also if it has returned nil.
	Confirm func(ctx context.Context, u Use) error
	// Handled, which may be nil, is called after each request with a payment.
	Handled func(ctx context.Context, outcome string)
}

// Paywall protects routes. It is safe for concurrent use.
type Paywall struct{ o Options }

// New returns a paywall.
func New(o Options) *Paywall { return &Paywall{o} }

// Limits of a protected request and its answer, in bytes. Both are kept in memory, and
// the answer is stored.
const (
	maxRequest = 1 << 20
	maxAnswer  = 1 << 20
)

// claimTime is how long a claim lasts, and workTime how long its visit works: a facilitator
// that another program runs, a search on the chain and a handler may take longer together.
// The rest is for storing the outcome, so that no visit changes a use that another one has
// claimed.
const (
	handlerTime = 60 * time.Second
	claimTime   = handlerTime + facilitator.SettleTime + 30*time.Second
	workTime    = claimTime - 15*time.Second
)

// Paid is the payment of a request, for its handler.
type Paid struct {
	Key         string // the same on every attempt to serve the payment
	Payer       string
	Network     x402.Network
	Amount      api.Micros
	Transaction string // "" if it is settled after the handler
}

type paidKey struct{}

// PaymentOf returns the payment of a request that passed a paywall.
func PaymentOf(ctx context.Context) (Paid, bool) {
	p, ok := ctx.Value(paidKey{}).(Paid)
	return p, ok
}

// PriceFunc returns the price of a request, or an error to answer without asking for
// money. The resource of the price is set by the paywall.
type PriceFunc func(r *http.Request) (x402.Price, error)

// Protect returns a handler that demands the price before it runs h. h gets the complete
// body; its answer is kept in memory, and is stored if its status is below 400.
func (p *Paywall) Protect(price PriceFunc, refuse func(http.ResponseWriter, int, error), h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		cost, err := price(r)
		if err != nil {
			refuse(w, 0, err)
			return
		}
		cost.Resource.URL = address(r)
		v := &visit{Paywall: p, w: w, r: r, price: cost, refuse: refuse, handler: h}
		outcome := v.serve()
		if p.o.Handled != nil {
			p.o.Handled(r.Context(), outcome)
		}
	}
}

// address returns the URL of a request as its client has written it, without the
// fragment.
func address(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host + r.URL.RequestURI()
}

// visit is one request to a protected route.
type visit struct {
	*Paywall
	w       http.ResponseWriter
	r       *http.Request
	price   x402.Price
	refuse  func(http.ResponseWriter, int, error)
	handler http.Handler

	body     []byte
	payment  x402.Payment
	order    x402.Order
	use      Use
	repeated bool // an earlier request with the payment had no outcome
}

// The outcomes of a request, for the metric.
const (
	OutcomeUnpaid   = "unpaid"
	OutcomeRefused  = "refused"
	OutcomeBusy     = "busy"
	OutcomeReplayed = "replayed"
	OutcomeServed   = "served"
	OutcomeFailed   = "failed"  // the handler
	OutcomeUnknown  = "unknown" // no outcome: the payer has to repeat the request
)

func (v *visit) serve() string {
	p, ok, err := x402.ReadPayment(v.r.Header)
	switch {
	case !ok:
		return v.demand("", OutcomeUnpaid)
	case err != nil:
		return v.demand(err.Error(), OutcomeRefused)
	}
	if v.body, err = host.ReadBody(v.w, v.r, maxRequest); err != nil {
		v.refuse(v.w, 0, err)
		return OutcomeRefused
	}
	v.payment = p
	identifier, err := p.Identifier()
	if err != nil {
		return v.demand(err.Error(), OutcomeRefused)
	}
	if err := v.bind(); err != nil {
		return v.demand(err.Error(), OutcomeRefused)
	}
	now := v.o.Now()
	v.use = Use{
		ID:    useID(v.price.Network, &p.Authorization),
		Payer: p.Authorization.From.Hex(), Identifier: identifier, Resource: v.resource(), Fingerprint: v.fingerprint(),
		State: Claimed, At: now.UnixMicro(), Until: now.Add(claimTime).UnixMicro(),
	}
	// A payment of the past is verified by its stored use: its window has ended, and its
	// nonce is used. The use may also be one that was never verified, if the process stopped
	// before it was dropped, so the window alone may be at fault.
	verified := p.Verify(v.price.Terms, now)
	if verified != nil && (x402.ReasonOf(verified, "") != x402.BadValidBefore || !p.Pays(v.price.Terms)) {
		return v.demand(verified.Error(), OutcomeRefused)
	}
	before, claimed, err := v.claim()
	switch {
	case err != nil:
		v.refuse(v.w, 0, unknown(v.r.Context(), v.o.Log, err))
		return OutcomeUnknown
	case before.State != "" && before.ID != v.use.ID:
		v.refuse(v.w, 0, &api.Error{Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: "the payment identifier belongs to another payment", Next: "repeat the other payment, or use a new identifier"})
		return OutcomeRefused
	case before.State != "" && before.Fingerprint != v.use.Fingerprint:
		return v.demand(string(x402.BadState)+": the payment was used for another request", OutcomeRefused)
	case before.State == Done:
		v.use = before
		return v.answer(OutcomeReplayed)
	case !claimed:
		v.refuse(v.w, http.StatusConflict, &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "a request with this payment is in progress", Next: "repeat the request with the same payment", RetryAfter: 1000})
		return OutcomeBusy
	}
	// From here the work is finished even if the client disconnects: it has paid.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), workTime)
	defer cancel()
	if before.State != "" {
		v.repeated = true
		v.use.State, v.use.Transaction, v.use.Answer = before.State, before.Transaction, before.Answer
	} else if verified != nil {
		v.drop(ctx)
		return v.demand(verified.Error(), OutcomeRefused)
	}
	return v.work(ctx)
}

// claim stores the use before anything is done for the payment.
func (v *visit) claim() (before Use, claimed bool, err error) {
	type result struct {
		before  Use
		claimed bool
	}
	got, err := failpoint.Value(v.r.Context(), failpoint.TreasuryUse, func(ctx context.Context) (r result, err error) {
		r.before, r.claimed, err = v.o.Store.ClaimUse(ctx, v.use)
		return r, err
	})
	return got.before, got.claimed, err
}

// work brings a claimed use from its state to its end.
func (v *visit) work(ctx context.Context) string {
	first := v.price.Amount >= v.o.SettleFirst
	v.order = x402.Order{Payment: v.payment, Offer: v.price.Offer(&v.payment)}
	if v.use.State == Claimed && first {
		if outcome, ok := v.settle(ctx, PaidFor); !ok {
			return outcome
		}
	}
	if v.use.State == Claimed {
		verdict, err := v.o.Facilitator.Verify(ctx, v.order)
		switch {
		case err != nil:
			v.o.Log.WarnContext(ctx, "payment not verified", "payment", v.use.ID, "err", err)
			v.drop(ctx)
			v.refuse(v.w, 0, err)
			return OutcomeUnknown
		case !verdict.Valid:
			v.drop(ctx)
			return v.demand(string(verdict.Reason), OutcomeRefused)
		}
	}
	if v.use.State == Claimed || v.use.State == PaidFor {
		if outcome, ok := v.run(ctx); !ok {
			return outcome
		}
	}
	if v.use.State == Served {
		if outcome, ok := v.settle(ctx, Done); !ok {
			return outcome
		}
	}
	return v.answer(OutcomeServed)
}

// settle settles the payment and stores the next state.
func (v *visit) settle(ctx context.Context, next State) (outcome string, ok bool) {
	telemetry.MarkPayment(ctx, v.use.ID)
	receipt, err := v.o.Facilitator.Settle(ctx, v.order)
	if err == nil && !receipt.Success && v.repeated && v.o.Transferred != nil {
		receipt, err = v.settledBefore(ctx, receipt)
	}
	if err != nil {
		v.o.Log.WarnContext(ctx, "payment not settled", "payment", v.use.ID, "err", err)
		v.end(ctx) // another request with the same payment continues
		v.refuse(v.w, 0, unknown(ctx, v.o.Log, err))
		return OutcomeUnknown, false
	}
	if !receipt.Success {
		if v.use.State == Claimed {
			v.drop(ctx)
		} else {
			v.end(ctx)
		}
		name, value := receipt.Header(&v.payment, v.price.Network)
		v.w.Header().Set(name, value)
		return v.demand(string(receipt.Reason), OutcomeRefused), false
	}
	v.use.State, v.use.Transaction = next, receipt.Transaction
	if next == Done {
		v.use.Until = v.confirmed()
	}
	if err := v.o.Store.SaveUse(context.WithoutCancel(ctx), v.use); err != nil {
		v.refuse(v.w, 0, unknown(ctx, v.o.Log, err))
		return OutcomeUnknown, false
	}
	return "", true
}

// settledBefore returns the receipt of a payment that was settled by an earlier request,
// whose answer is lost, and otherwise the refusal. While the authorization is valid, and a
// moment longer, its transaction may be included, or be in a block that the node of
// Transferred does not have yet: there is no outcome, and the payment is not forgotten.
func (v *visit) settledBefore(ctx context.Context, refusal x402.Receipt) (x402.Receipt, error) {
	hash, err := v.o.Transferred(ctx, v.payment.Authorization)
	switch {
	case err != nil: // the address of the RPC is for the log
		return refusal, fmt.Errorf("%w: %w", again("the outcome of the payment is not known"), err)
	case hash != "":
		return x402.Receipt{Success: true, Transaction: hash, Payer: v.use.Payer}, nil
	case v.payment.Authorization.ValidBefore > v.o.Now().Add(-claimTime).Unix():
		return refusal, again(fmt.Sprintf("the payment is refused (%s), and an earlier request may have settled it", refusal.Reason))
	}
	return refusal, nil
}

// unknown returns the error for a payer whose payment may be settled. A failure of this
// process, such as of its database or a full disk, must not look like the answer that was
// paid for: a client repeats after 503, and keeps 500 and 507.
func unknown(ctx context.Context, log *slog.Logger, err error) error {
	if api.CodeOf(err) != api.Internal && api.ReasonOf(err) != api.ReasonNoSpace {
		return err
	}
	log.ErrorContext(ctx, "paid request not completed; the payer can repeat it", "err", err)
	return again("the outcome of the payment is not stored")
}

// again returns the error after which a payer repeats its request.
func again(message string) error {
	return &api.Error{Code: api.Unavailable, Message: message, Next: "repeat the request with the same payment", RetryAfter: 1000}
}

// run runs the handler and stores its answer.
func (v *visit) run(ctx context.Context) (outcome string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, handlerTime)
	defer cancel()
	ctx = context.WithValue(ctx, paidKey{}, Paid{
		Key: v.use.ID, Payer: v.use.Payer, Network: v.price.Network, Amount: v.price.Amount, Transaction: v.use.Transaction,
	})
	rec := newRecorder()
	v.handler.ServeHTTP(rec, withBody(v.r.WithContext(ctx), v.body))
	if rec.full {
		rec.fail()
	}
	if rec.status >= http.StatusBadRequest {
		// Nothing is sold. A payment that is not settled can be used again, and a settled one
		// pays for the next attempt.
		if v.use.State == PaidFor {
			v.end(ctx)
			receipt := x402.Receipt{Success: true, Transaction: v.use.Transaction, Payer: v.use.Payer}
			name, value := receipt.Header(&v.payment, v.price.Network)
			v.w.Header().Set(name, value)
			if rec.status >= http.StatusInternalServerError {
				v.refuse(v.w, 0, again(fmt.Sprintf("the payment is settled, and the request has failed with status %d", rec.status)))
				return OutcomeFailed, false
			}
		} else {
			v.drop(ctx)
		}
		rec.writeTo(v.w)
		return OutcomeFailed, false
	}
	v.use.Answer = rec.answer()
	if v.use.State == PaidFor {
		v.use.State, v.use.Until = Done, v.confirmed()
	} else {
		v.use.State = Served
	}
	err := failpoint.Do(context.WithoutCancel(ctx), failpoint.TreasuryServe, func(ctx context.Context) error { return v.o.Store.SaveUse(ctx, v.use) })
	if err != nil {
		v.refuse(v.w, 0, unknown(ctx, v.o.Log, err))
		return OutcomeUnknown, false
	}
	return "", true
}

// Times of the confirmation of a sale. No authorization is valid for longer, and the block
// of a settlement is final by then, as a rule.
const (
	confirmAfter  = x402.MaxWindow + 15*time.Minute
	confirmAtOnce = 100
)

// confirmed returns when a sale that is done now is confirmed, 0 for never.
func (p *Paywall) confirmed() int64 {
	if p.o.Confirm == nil {
		return 0
	}
	return p.o.Now().Add(confirmAfter).UnixMicro()
}

// Confirm calls [Options.Confirm] for the sales whose authorizations have ended. Replicas
// may do it at the same time. It ends when the chain or the store is unavailable, for the
// next sale as well.
func (p *Paywall) Confirm(ctx context.Context) error {
	due, err := p.o.Store.DueUses(ctx, p.o.Now().UnixMicro(), confirmAtOnce)
	for _, u := range due {
		failed := p.o.Confirm(ctx, u)
		if failed == nil {
			failed = p.o.Store.ConfirmUse(ctx, u.ID)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("payment %s: %w", u.ID, failed))
		}
		if api.CodeOf(failed) == api.Unavailable {
			break
		}
	}
	return err
}

// answer sends the stored answer with the receipt.
func (v *visit) answer(outcome string) string {
	h := v.w.Header()
	for name, values := range v.use.Answer.Header {
		h[name] = values
	}
	h.Set("Cache-Control", "no-store")
	receipt := x402.Receipt{Success: true, Transaction: v.use.Transaction, Payer: v.use.Payer}
	name, value := receipt.Header(&v.payment, v.price.Network)
	h.Set(name, value)
	if outcome == OutcomeReplayed {
		h.Set("Idempotent-Replayed", "true")
	}
	v.w.WriteHeader(v.use.Answer.Status)
	_, _ = v.w.Write(v.use.Answer.Body) // fails only if the client has disconnected: it can ask again
	return outcome
}

// end ends the claim, so that the same payment can be continued at once.
func (v *visit) end(ctx context.Context) {
	v.use.Until = 0
	if err := v.o.Store.SaveUse(context.WithoutCancel(ctx), v.use); err != nil {
		v.o.Log.WarnContext(ctx, "claim of a payment not ended; it ends by its time", "payment", v.use.ID, "err", err)
	}
}

// drop forgets a payment for which nothing was done.
func (v *visit) drop(ctx context.Context) {
	if err := v.o.Store.DropUse(context.WithoutCancel(ctx), v.use.ID); err != nil {
		v.o.Log.WarnContext(ctx, "claim of a payment not removed; it ends by its time", "payment", v.use.ID, "err", err)
	}
}

// demand answers 402 with the price.
func (v *visit) demand(reason, outcome string) string {
	body := x402.Demand{Price: v.price, Reason: reason}.Write(v.w.Header())
	v.w.WriteHeader(http.StatusPaymentRequired)
	_, _ = v.w.Write(body) // fails only if the client has disconnected
	return outcome
}

// resource is what a payment is for.
func (v *visit) resource() string { return v.r.Method + " " + v.r.URL.RequestURI() }

// bind checks that the payment was made for this resource, as far as it says so. One of
// version 1 does not: its first use decides.
func (v *visit) bind() error {
	url, err := v.payment.ResourceURL()
	if err == nil && url != "" && url != v.price.Resource.URL {
		err = errors.New(string(x402.BadTerms) + ": the payment is for another resource")
	}
	return err
}

// fingerprint returns a hash of the payment and the request.
func (v *visit) fingerprint() string {
	content := v.payment.Authorization.StructHash()
	h := sha256.New()
	for _, part := range []string{string(content[:]), v.payment.Signature.String(), v.resource(), string(v.body)} {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash has no errors
	}
	return hex.EncodeToString(h.Sum(nil))
}
