package treasury

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/conway"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/orders"
	"github.com/anima-run/anima/services/treasury/internal/topup"
)

// Times of orders. An order without a clear answer is repeated until orderLife, which is
// also the life of its hold.
const (
	orderLife  = 24 * time.Hour
	orderLead  = time.Hour       // before the end of the hold, in which the order is paid
	orderRest  = 2 * time.Minute // a younger order may still be on its way
	orderRound = 30 * time.Second
)

// ordersAtOnce is the most open orders that are read at once.
const ordersAtOnce = 100

// provider is the account to which agents pay sandboxes and domains.
const provider = "provider:conway"

// outside executes the tools of agents that use Conway, on the account of the operator.
type outside struct {
	*handlers

	client *conway.Client // nil if it is not configured
	store  orders.Store
	shown  shownPrices
}

func openOutside(h *handlers, store orders.Store) (*outside, error) {
	o := &outside{handlers: h, store: store, shown: newShownPrices()}
	if h.cfg.ConwayURL == "" {
		return o, nil
	}
	var err error
	o.client, err = conway.New(conway.Options{URL: h.cfg.ConwayURL, Key: h.cfg.ConwayKey, Now: h.now})
	return o, err
}

func (o *outside) close() {
	if o.client != nil {
		o.client.Close()
	}
}

// sandboxOrder and domainOrder are the requests of orders.
type sandboxOrder struct {
	Name     string `json:"name"` // unique, so that the sandbox of an order can be found
	VCPU     int64  `json:"vcpu"`
	MemoryMB int64  `json:"memory_mb"`
	DiskGB   int64  `json:"disk_gb"`
}

type domainOrder struct {
	Domain string `json:"domain"`
	Years  int64  `json:"years"`
}

// order makes an order, or continues it. If the process dies, the order is stored and the
// call or [outside.reconcile] continues it: holds, requests and ends are idempotent by the
// id of the order. The answer of an ended order is returned again.
func (o *outside) order(ctx context.Context, w orders.Order) (string, error) {
	w.CreatedAt = o.now().UnixMicro()
	stored, err := o.store.AddOrder(ctx, w)
	if err == nil {
		err = stored.Same(w)
	}
	if err != nil {
		return "", err
	}
	if stored.Status == orders.Pending {
		if stored, err = o.carry(ctx, stored, stored.CreatedAt != w.CreatedAt); err != nil {
			return "", err
		}
	}
	if stored.Status != orders.Done {
		return "", &api.Error{Code: api.Invalid, Message: stored.Answer, Next: "correct the arguments, or try something else"}
	}
	return stored.Answer, nil
}

// carry takes a pending order to its end: the price is held, the order is sent, its end is
// stored, and the hold is settled or released. With again it looks first whether an
// earlier attempt was executed. An error means that the order is still pending.
func (o *outside) carry(ctx context.Context, w orders.Order, again bool) (orders.Order, error) {
	h, err := o.holdPrice(ctx, w)
	if api.ReasonOf(err) == api.ReasonInsufficient && o.boughtFor(ctx, w) {
		h, err = o.holdPrice(ctx, w)
	}
	switch {
	case api.CodeOf(err) == api.Denied, api.CodeOf(err) == api.NotFound:
		return o.end(ctx, w, orders.Refused, api.Wire(err).Message, nil, false)
	case err != nil:
		return w, err
	case h.Status == api.HoldExpired: // treasury did not run for a day, and may have sent it before
		return o.giveUp(ctx, w)
	case h.Status == api.HoldReleased:
		return o.end(ctx, w, orders.Refused, "its money was released before it was sent", nil, false)
	}
	if again {
		thing, answer, err := o.find(ctx, w)
		switch {
		case errors.Is(err, errTaken):
			return o.end(ctx, w, orders.Refused, errTaken.Error(), nil, true)
		case err != nil:
			return w, conway.Explain(err)
		case thing != nil:
			return o.end(ctx, w, orders.Done, answer, thing, true)
		}
	}
	thing, answer, err := o.send(ctx, w)
	if err == nil {
		return o.end(ctx, w, orders.Done, answer, thing, true)
	}
	// An attempt that has not reached the provider says nothing about an earlier one.
	if f, ok := errors.AsType[*conway.Failure](err); ok && !f.Unknown && (!again || f.Status != 0 && f.Status != http.StatusTooManyRequests) {
		return o.end(ctx, w, orders.Refused, api.Wire(conway.Explain(err)).Message, nil, true)
	}
	return w, conway.Explain(err)
}

func (o *outside) holdPrice(ctx context.Context, w orders.Order) (ledger.HoldState, error) {
	return o.ledger.Hold(ctx, holdRequest(ctx, w))
}

func holdRequest(ctx context.Context, w orders.Order) ledger.HoldRequest {
	return ledger.HoldRequest{
		ID: w.Hold(), Agent: w.Agent, Amount: w.Price, Category: "other", Session: w.Session, Turn: w.Turn, By: w.By,
		ExpiresAt: time.UnixMicro(w.CreatedAt).Add(orderLife).UnixMicro(), Parent: bus.TraceParent(ctx),
	}
}

// boughtFor buys the credits that the agent lacks for an order, if its wallet can pay, and
// reports whether the price can be held now. If the process dies, the order is still
// pending and is continued with the same question.
func (o *outside) boughtFor(ctx context.Context, w orders.Order) bool {
	if !o.topups.on() {
		return false
	}
	b, err := o.ledger.Balance(ctx, w.Agent)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, triggerTime)
	defer cancel()
	bought, why, err := o.topups.Trigger(ctx, topup.Need{Agent: w.Agent, Cause: "order of a " + string(w.Kind), Refused: true, Missing: w.Price - b.Available})
	if err != nil || !bought {
		o.log.InfoContext(ctx, "no credits bought for an order", "order", w.ID, "agent", w.Agent, "why", why, "err", err)
	}
	return err == nil && bought
}

// end stores the end of an order and pays it. If the payment fails, it is made by
// [outside.reconcile].
func (o *outside) end(ctx context.Context, w orders.Order, status orders.Status, answer string, thing *orders.Thing, held bool) (orders.Order, error) {
	w, err := o.store.EndOrder(context.WithoutCancel(ctx), w.ID, status, answer, thing)
	if err != nil {
		return w, err
	}
	if err := o.pay(ctx, w, held); err != nil {
		o.log.WarnContext(ctx, "ended order not paid, retrying", "order", w.ID, "err", err)
	}
	return w, nil
}

// pay settles or releases the hold of an ended order.
func (o *outside) pay(ctx context.Context, w orders.Order, held bool) (err error) {
	ctx = context.WithoutCancel(ctx) // the request may have ended, the order has
	switch {
	case !held:
	case w.Status == orders.Refused:
		_, err = o.ledger.Release(ctx, w.Hold(), "order refused", bus.TraceParent(ctx))
		if api.CodeOf(err) == api.NotFound {
			err = nil // it was refused before the hold
		}
	default:
		err = o.settle(ctx, w, w.Hold())
		if api.CodeOf(err) == api.Conflict {
			err = o.payLate(ctx, w, err)
		}
	}
	if err != nil {
		return err
	}
	return o.store.PaidOrder(ctx, w.ID)
}

func (o *outside) settle(ctx context.Context, w orders.Order, hold string) error {
	_, err := o.ledger.Settle(ctx, ledger.SettleRequest{ID: hold, Amount: w.Price, Payee: provider, Memo: string(w.Kind), Parent: bus.TraceParent(ctx)})
	return err
}

// payLate pays an order whose hold has expired, because treasury did not run at the end of
// its life. The order is executed, so no limit refuses the payment; without credits it is
// repeated.
func (o *outside) payLate(ctx context.Context, w orders.Order, cause error) error {
	h, err := o.holdPrice(ctx, w)
	if err != nil || h.Status != api.HoldExpired {
		return errors.Join(cause, err)
	}
	late := holdRequest(ctx, w)
	late.Owed, late.ExpiresAt = true, o.now().Add(orderLife).UnixMicro()
	for n := 1; ; n++ {
		// An expired late hold is of a process that ended before it settled the hold.
		late.ID = w.Hold() + "/late"
		if n > 1 {
			late.ID += strconv.Itoa(n)
		}
		h, err := o.ledger.Hold(ctx, late)
		if err != nil {
			return err
		}
		if h.Status != api.HoldExpired {
			return o.settle(ctx, w, late.ID)
		}
	}
}

// send sends an order and returns what the agent owns then.
func (o *outside) send(ctx context.Context, w orders.Order) (*orders.Thing, string, error) {
	if w.Kind == orders.Sandbox {
		var r sandboxOrder
		if err := json.Unmarshal([]byte(w.Request), &r); err != nil {
			return nil, "", err
		}
		box, err := o.client.CreateSandbox(ctx, w.ID, conway.Sandbox{Name: r.Name, VCPU: r.VCPU, MemoryMB: r.MemoryMB, DiskGB: r.DiskGB})
		if err != nil {
			return nil, "", err
		}
		return o.rented(w, r, box)
	}
	var r domainOrder
	if err := json.Unmarshal([]byte(w.Request), &r); err != nil {
		return nil, "", err
	}
	got, err := o.client.RegisterDomain(ctx, w.ID, r.Domain, r.Years)
	if err != nil {
		return nil, "", err
	}
	return o.registered(w, r, got.Expires)
}

// errTaken is the error of [outside.find] for a domain that another order has brought. It
// is the answer of the order.
var errTaken = errors.New("the domain was registered by another order")

// find returns what an order has brought, or nil if there is none or it cannot be told. Only
// the account of the operator can read the records of a domain that it owns. All agents
// share that account, so a domain that it owns may be that of another order.
func (o *outside) find(ctx context.Context, w orders.Order) (*orders.Thing, string, error) {
	if w.Kind == orders.Sandbox {
		var r sandboxOrder
		if err := json.Unmarshal([]byte(w.Request), &r); err != nil {
			return nil, "", err
		}
		all, err := o.client.Sandboxes(ctx)
		for _, box := range all {
			if err == nil && box.Name == r.Name {
				return o.rented(w, r, box)
			}
		}
		return nil, "", err
	}
	var r domainOrder
	if err := json.Unmarshal([]byte(w.Request), &r); err != nil {
		return nil, "", err
	}
	switch alone, err := o.ordersAlone(ctx, w, r.Domain); {
	case err != nil:
		return nil, "", err
	case !alone:
		return nil, "", nil // the provider decides, by the key of the order
	}
	_, err := o.client.Records(ctx, r.Domain)
	if f, ok := errors.AsType[*conway.Failure](err); ok && (f.Status == 404 || f.Status == 403) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return o.registered(w, r, "")
}

// ordersAlone reports whether no other pending order is for the same domain. The error is
// errTaken if another order has brought it.
func (o *outside) ordersAlone(ctx context.Context, w orders.Order, domain string) (bool, error) {
	// The pending orders are read first, because one of them may end meanwhile.
	open, err := o.store.OpenOrders(ctx, o.now().UnixMicro()+1, ordersAtOnce)
	if err != nil {
		return false, err
	}
	switch thing, ok, err := o.store.Thing(ctx, orders.Domain, domain); {
	case err != nil:
		return false, err
	case ok && (thing.Agent != w.Agent || thing.CreatedAt != w.CreatedAt):
		return false, errTaken
	}
	return !slices.ContainsFunc(open, func(other orders.Order) bool {
		var r domainOrder
		return other.ID != w.ID && other.Kind == orders.Domain && other.Status == orders.Pending &&
			json.Unmarshal([]byte(other.Request), &r) == nil && r.Domain == domain
	}), nil
}

func (o *outside) rented(w orders.Order, r sandboxOrder, box conway.Sandbox) (*orders.Thing, string, error) {
	return &orders.Thing{Kind: orders.Sandbox, ID: box.ID, Agent: w.Agent, Name: r.Name, CreatedAt: w.CreatedAt},
		fmt.Sprintf("rented the sandbox %s (%s) for a month, paid %s", box.ID, r.Name, w.Price), nil
}

func (o *outside) registered(w orders.Order, r domainOrder, expires string) (*orders.Thing, string, error) {
	answer := fmt.Sprintf("registered %s, paid %s", r.Domain, w.Price)
	if expires != "" {
		answer += ", until " + expires
	}
	return &orders.Thing{Kind: orders.Domain, ID: r.Domain, Agent: w.Agent, Name: r.Domain, CreatedAt: w.CreatedAt}, answer, nil
}

// reconcile continues orders without a clear end until ctx ends. Replicas may do it at
// the same time. Without a client open orders wait.
func (o *outside) reconcile(ctx context.Context) error {
	if o.client == nil {
		return nil
	}
	wait.Every(ctx, orderRound, func() { o.round(ctx) })
	return nil
}

func (o *outside) round(ctx context.Context) {
	now := o.now()
	open, err := o.store.OpenOrders(ctx, now.Add(-orderRest).UnixMicro(), ordersAtOnce)
	if err != nil && ctx.Err() == nil {
		o.log.WarnContext(ctx, "open orders not read, retrying", "err", err)
	}
	for _, w := range open {
		old := now.Sub(time.UnixMicro(w.CreatedAt)) > orderLife-orderLead
		switch {
		case w.Status != orders.Pending:
			err = o.pay(ctx, w, true)
		case old:
			_, err = o.giveUp(ctx, w)
		default:
			_, err = o.carry(ctx, w, true)
		}
		if err != nil && ctx.Err() == nil {
			o.log.WarnContext(ctx, "open order not continued, retrying", "order", w.ID, "err", err)
		}
	}
}

// giveUp ends an order that had no clear answer for a day. Treasury may not have run for
// most of it, so it looks once more whether the order was executed.
func (o *outside) giveUp(ctx context.Context, w orders.Order) (orders.Order, error) {
	hold := holdRequest(ctx, w)
	hold.ExpiresAt = 0 // no hold is made
	switch _, err := o.ledger.Hold(ctx, hold); api.CodeOf(err) {
	case "":
	case api.Invalid, api.NotFound: // the price was never held, so the order was never sent
		return o.end(ctx, w, orders.Refused, "it was not sent within a day", nil, false)
	default:
		return w, err
	}
	thing, answer, err := o.find(ctx, w)
	switch {
	case errors.Is(err, errTaken):
		return o.end(ctx, w, orders.Refused, errTaken.Error(), nil, true)
	case err == nil && thing != nil:
		return o.end(ctx, w, orders.Done, answer, thing, true)
	}
	o.log.ErrorContext(ctx, "order without an answer for a day is paid", "order", w.ID, "agent", w.Agent, "kind", string(w.Kind), "err", err)
	return o.end(ctx, w, orders.Unknown, "the provider has not said whether it executed the order; it was paid", nil, true)
}
