package treasury

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/topup"
)

// topups buys credits with the USDC of agents.
type topups struct {
	*handlers
	*topup.Actor

	kick <-chan struct{} // a tier has changed
}

func openTopups(h *handlers, store topup.Store, kick <-chan struct{}) *topups {
	t := &topups{handlers: h, kick: kick}
	t.Actor = &topup.Actor{Options: topup.Options{Store: store, Credits: t.credits, USDC: t.usdc, Pay: t.purchase, Now: h.now, Log: h.log}}
	return t
}

// on reports whether credits can be bought.
func (t *topups) on() bool {
	return t != nil && t.cfg.TopupURL != "" && t.link != nil && t.payer != nil
}

// noSeller is the error of a purchase where no seller or no chain is configured.
func noSeller() error {
	return &api.Error{
		Code: api.Denied, Reason: api.ReasonNoChain, Message: "no seller of credits is configured", Next: "set ANIMA_TREASURY_TOPUP_URL and a chain; docs/reference/treasury.md has the settings",
	}
}

func (t *topups) credits(ctx context.Context, agent string) (api.Micros, error) {
	b, err := t.ledger.Balance(ctx, agent)
	return b.Available + b.Held, err
}

// usdc returns the smaller of what is on the chain and what the ledger has available. If
// the chain cannot be read now, the balance is not known. The chain is not asked if the
// ledger has nothing: most agents have no USDC, and a lazy chain need not start for them.
// The USDC of an agent that is frozen is refused.
func (t *topups) usdc(ctx context.Context, agent string) (api.Micros, error) {
	b, err := t.ledger.Balance(ctx, agent)
	if err != nil || b.USDC <= 0 {
		return 0, err
	}
	if err := t.chain.spendable(ctx, agent); err != nil {
		return 0, err
	}
	onChain, err := t.onChain(ctx, agent)
	return min(onChain, b.USDC), err
}

// onChain returns the USDC of an agent's wallet.
func (h *handlers) onChain(ctx context.Context, agent string) (api.Micros, error) {
	address, err := h.wallets.Address(ctx, agent)
	if err != nil {
		return 0, err
	}
	h.chain.use()
	return h.link.Balance(ctx, common.HexToAddress(address))
}

// purchase pays for credits over x402. The payment has the id of the purchase.
func (t *topups) purchase(ctx context.Context, id, agent string, usd int64) error {
	address, err := t.wallets.Address(ctx, agent)
	if err != nil {
		return err
	}
	seller := t.cfg.TopupURL
	var payees []common.Address
	if seller == topupSelf {
		seller = selfURL
	} else {
		for _, a := range t.cfg.TopupPayees {
			payees = append(payees, common.HexToAddress(a))
		}
	}
	at, err := url.JoinPath(seller, "pay", fmt.Sprint(usd), address)
	if err != nil {
		return err
	}
	// A purchase that is continued after a rotation keeps the address that it was begun with.
	begun, err := t.payments.Payment(ctx, "topup/"+id)
	switch {
	case err == nil && unpriced(&begun, t.now()):
		return &api.Error{
			Code: api.Denied, Message: "the seller of credits has named no price for a day; nothing was paid", Next: "the operator has to look at ANIMA_TREASURY_TOPUP_URL",
		}
	case err == nil:
		at = begun.URL
	case api.CodeOf(err) != api.NotFound:
		return err
	}
	p, err := t.fetch(ctx, pay.Request{
		ID: "topup/" + id, Agent: agent, URL: at, Max: api.Micros(usd) * api.Dollar, Own: true, Payees: payees, Parent: bus.TraceParent(ctx),
	})
	switch {
	case api.ReasonOf(err) == api.ReasonRefused:
		return undecided(err)
	case err != nil:
		return err
	}
	return sold(&p, t.now())
}

// undecided returns the error of a purchase whose payment the seller has refused. The seller
// can settle the authorization until it ends, so the purchase stays open until the chain has
// decided: another purchase could be paid besides.
func undecided(refusal error) error {
	return &api.Error{
		Code: api.Unavailable, Message: api.Wire(refusal).Message,
		Next: "it is asked again with the same payment until its authorization has ended; do not buy again", RetryAfter: 30_000,
	}
}

// expected is how long the price of a purchase, or the credits of a paid one, are expected
// from a seller that has failed or whose answer is lost. Each round asks it again, with the
// same payment.
const expected = 24 * time.Hour

// unpriced reports whether a payment whose seller named no price is given up: its purchase
// would keep the agent from buying elsewhere. No request works on it.
func unpriced(p *pay.Payment, now time.Time) bool {
	return p.State == api.PaymentIntended && p.Network == "" && p.BusyUntil <= now.UnixMicro() && now.Sub(time.UnixMicro(p.CreatedAt)) > expected
}

// sold returns an error unless a payment has ended: the credits of the agent show then
// what it has brought. After an Unavailable one the same payment is continued.
func sold(p *pay.Payment, now time.Time) error {
	status := p.Answer.Status
	switch {
	case p.State == api.PaymentFree:
		return &api.Error{
			Code: api.Denied, Message: fmt.Sprintf("the seller of credits has answered HTTP %d and named no price; nothing was paid", status),
			Next: "the operator has to look at ANIMA_TREASURY_TOPUP_URL",
		}
	case p.State == api.PaymentIntended:
		return &api.Error{
			Code: api.Unavailable, Message: fmt.Sprintf("the seller of credits answers HTTP %d; nothing was paid", status), Next: "it is asked again", RetryAfter: 30_000,
		}
	case status >= 200 && status < 300:
		return nil
	case p.State == api.PaymentSettled && (status > 0 && status < 500 || now.Sub(time.UnixMicro(p.CreatedAt)) > expected):
		return nil
	}
	return &api.Error{
		Code: api.Unavailable, Message: "the seller of credits has not given its answer to the payment " + p.ID,
		Next: "it is asked again with the same payment; do not buy again", RetryAfter: 30_000,
	}
}

func (t *topups) topUp(ctx context.Context, m api.TopUp) (api.TopUpState, error) {
	p, err := t.buy(ctx, topup.Purchase{ID: m.ID, Agent: strings.ToLower(m.Agent), USD: m.USD, Cause: "request"})
	return api.TopUpState{ID: p.ID, Agent: p.Agent, USD: p.USD, State: string(p.State), Before: p.Before, After: p.After}, err
}

func (t *topups) buy(ctx context.Context, p topup.Purchase) (topup.Purchase, error) {
	switch {
	case !t.on():
		return p, noSeller()
	case p.ID == "" || len(p.ID) > 120:
		return p, api.Errorf(api.Invalid, "the id of the purchase has %d bytes: use 1 to 120", len(p.ID))
	}
	return t.Buy(ctx, p)
}

// triggerTime limits a triggered purchase, and the wait for another one of the agent. A
// caller waits 10 s for the answer of a request.
const triggerTime = 8 * time.Second

// trigger buys credits for an agent that another service has found in need of them. If the
// process dies, the purchase is stored and [topups.watch] continues it; the caller asks
// again or learns from the balance.
func (t *topups) trigger(ctx context.Context, m api.TriggerTopUp) (api.TopUpTriggered, error) {
	switch {
	case !t.on():
		return api.TopUpTriggered{}, noSeller()
	case m.Cause == "" || len(m.Cause) > 60 || m.Missing < 0:
		return api.TopUpTriggered{}, &api.Error{Code: api.Invalid, Message: "the cause or the amount of the request is not valid", Next: "give a cause of 1 to 60 bytes and an amount of 0 or more"}
	}
	agent := strings.ToLower(m.Agent)
	ctx, cancel := context.WithTimeout(ctx, triggerTime)
	defer cancel()
	bought, why, err := t.Trigger(ctx, topup.Need{Agent: agent, Cause: m.Cause, Refused: m.Refused, Missing: m.Missing})
	if err != nil {
		return api.TopUpTriggered{}, err
	}
	credits, err := t.credits(ctx, agent)
	return api.TopUpTriggered{Agent: agent, Bought: bought, Credits: credits, Why: why}, err
}

// tool executes topup_credits. The key of the call is the id of the purchase, so a
// repeated call buys once.
func (t *topups) tool(ctx context.Context, c executor.Call) (string, error) {
	usd := c.Args.Float("amount_usd", 0)
	if usd != float64(int64(usd)) {
		return "", api.Errorf(api.Invalid, "credits are sold for whole dollars: use one of %v", api.TopupUSD())
	}
	p, err := t.buy(ctx, topup.Purchase{ID: "tool/" + c.Key, Agent: c.Agent, USD: int64(usd), Cause: "tool"})
	if err != nil {
		return "", err
	}
	if p.State == topup.Futile {
		return fmt.Sprintf("paid $%d in USDC, and the credits are still %s; do not buy again, tell your creator", p.USD, p.After), nil
	}
	return fmt.Sprintf("bought credits for $%d: you have %s", p.USD, p.After), nil
}

// watch continues open purchases, and buys credits for agents at a low tier: at the start,
// when a tier changes or USDC arrives, and every ANIMA_TREASURY_TOPUP_EVERY. What was pending before a crash is stored.
func (t *topups) watch(ctx context.Context) error {
	if !t.on() {
		return nil
	}
	for ctx.Err() == nil {
		t.Round(ctx)
		round, cancel := context.WithTimeout(ctx, t.cfg.TopupEvery)
		select {
		case <-t.kick:
		case <-round.Done():
		}
		cancel()
	}
	return nil
}
