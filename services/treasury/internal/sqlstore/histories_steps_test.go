package sqlstore_test

import (
	"context"
	"fmt"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
)

// operations are the kinds of steps. Frequent ones are listed more than once.
var operations = []string{ //nolint:gochecknoglobals // a constant table
	"hold", "hold", "hold", "settle", "settle", "release", "deposit", "deposit", "deposit", "transfer", "give", "expire", "purchase", "sale",
	"reversal", "pay", "pay", "pay", "late settlement", "reconcile", "reorganization",
}

// step is an operation and what the model returns for it, which is asked afterwards. A
// refusal may have any of the reasons.
type step struct {
	op   func() error
	want func() (api.Code, []string)
}

func (h *history) agent() string { return rapid.SampledFrom(h.agents).Draw(h.t, "agent") }

func (h *history) micros(what string) api.Micros {
	return api.Micros(rapid.Int64Range(1, 30).Draw(h.t, what))
}

// id returns one of few ids, so that operations collide.
func (h *history) id(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, h.world, rapid.IntRange(0, 4).Draw(h.t, kind))
}

func (h *history) asset() api.Asset {
	return rapid.SampledFrom([]api.Asset{api.Credits, api.USDC}).Draw(h.t, "asset")
}

func (h *history) turn() string {
	return fmt.Sprintf("%s-%d", rapid.SampledFrom([]string{"t1", "t2"}).Draw(h.t, "turn"), h.world)
}

func (h *history) session() string { return fmt.Sprintf("s-%d", h.world) }

// by returns the principal of a turn.
func (h *history) by() api.PrincipalKind {
	return rapid.SampledFrom([]api.PrincipalKind{api.Self, api.Self, api.Peer}).Draw(h.t, "principal")
}

// pass advances the clock.
func (h *history) pass(seconds int64) {
	h.book.now += seconds * 1_000_000
	h.p.clock.set(h.book.now)
}

// plainly adapts an answer of the model without reasons.
func plainly(want func() api.Code) func() (api.Code, []string) {
	return func() (api.Code, []string) { return want(), nil }
}

func succeeds() (api.Code, []string) { return "", nil }

func (h *history) step(kind string) step {
	ctx, m, p := context.Background(), h.book, h.p
	switch kind {
	case "hold":
		r := ledger.HoldRequest{
			ID: h.id("h"), Agent: h.agent(), Asset: h.asset(), Amount: h.micros("amount"), ExpiresAt: m.now + int64(h.micros("life"))*1_000_000,
			Category: rapid.SampledFrom([]string{"inference", "inference", "x402", "other"}).Draw(h.t, "category"), Turn: h.turn(), Session: h.session(), By: h.by(),
		}
		if r.Asset == api.USDC && rapid.Bool().Draw(h.t, "payee") {
			r.Payee = "usdc-payee:0x1"
		}
		return step{func() error { _, err := p.Hold(ctx, r); return err }, func() (api.Code, []string) { return m.hold(r) }}
	case "settle":
		r := ledger.SettleRequest{ID: h.id("h"), Amount: h.micros("amount") - 1}
		r.Payee = m.payee(r.ID, h.agents, rapid.Bool().Draw(h.t, "to an agent"))
		return step{func() error { _, err := p.Settle(ctx, r); return err }, plainly(func() api.Code { return m.settle(r) })}
	case "release":
		id := h.id("h")
		return step{func() error { _, err := p.Release(ctx, id, "", ""); return err }, plainly(func() api.Code { return m.release(id) })}
	case "deposit":
		r := ledger.DepositRequest{ID: h.id("d"), Agent: h.agent(), Amount: 2 * h.micros("amount"), Source: "faucet"}
		if h.asset() == api.USDC {
			r.Source = dev
		}
		return step{func() error { _, err := p.Deposit(ctx, r); return err }, plainly(func() api.Code { return m.deposit(r) })}
	case "transfer":
		from := rapid.IntRange(0, 1).Draw(h.t, "from")
		r := ledger.TransferRequest{ID: h.id("t"), From: h.agents[from], To: h.agents[1-from], Amount: h.micros("amount")}
		return step{func() error { _, err := p.Transfer(ctx, r); return err }, func() (api.Code, []string) { return m.transfer(r) }}
	case "give":
		from := rapid.IntRange(0, 1).Draw(h.t, "from")
		r := ledger.GiveRequest{ID: h.id("g"), From: h.agents[from], To: h.agents[1-from], Amount: h.micros("amount"), Turn: h.turn(), By: h.by()}
		return step{func() error { _, err := p.Give(ctx, r); return err }, func() (api.Code, []string) { return m.give(r) }}
	case "expire":
		h.pass(int64(h.micros("seconds")) * rapid.SampledFrom([]int64{1, 1, 1, 1, 90, 1800}).Draw(h.t, "times"))
		return step{func() error { _, err := p.Expire(ctx, 0); return err }, plainly(func() api.Code { m.expire(); return "" })}
	case "purchase":
		r := ledger.PurchaseRequest{Hold: h.id("h"), Agent: h.agent(), USDC: h.micros("amount"), Credits: h.micros("credits")}
		return step{func() error { _, err := p.Purchase(ctx, r); return err }, plainly(func() api.Code { return m.purchase(r) })}
	case "sale":
		r := ledger.PurchaseRequest{ID: h.id("p"), Source: dev, Agent: h.agent(), USDC: h.micros("amount"), Credits: h.micros("credits")}
		return step{func() error { _, err := p.Purchase(ctx, r); return err }, plainly(func() api.Code { return m.purchase(r) })}
	case "reversal":
		of := rapid.SampledFrom([]string{"d", "d", "p", "t", "h", "g"}).Draw(h.t, "of")
		tx := h.id(of)
		if of == "h" || of == "g" {
			tx += rapid.SampledFrom([]string{"/settle", "/settle", "/hold"}).Draw(h.t, "part")
		}
		return step{
			func() error { _, err := p.Reverse(ctx, ledger.ReverseRequest{ID: tx}); return err },
			plainly(func() api.Code { return m.reverse(tx) }),
		}
	case "pay":
		return h.pay()
	case "late settlement":
		return step{func() error { p.market.settleLate(); return nil }, succeeds}
	case "reorganization":
		h.reorganize(rapid.Bool().Draw(h.t, "the payments stay"))
		return step{func() error {
			// The first pass posts a settlement that a crash has left. Only the next one, some
			// seconds later, compares it with the chain.
			for range 2 {
				if err := p.payer.Recheck(ctx); err != nil {
					return err
				}
				if _, err := p.payer.Reconcile(ctx); err != nil {
					return err
				}
			}
			return nil
		}, succeeds}
	default: // reconcile
		h.pass(rapid.SampledFrom([]int64{1, 100, 400, 3600}).Draw(h.t, "seconds"))
		return step{func() error { _, err := p.payer.Reconcile(ctx); return err }, succeeds}
	}
}

// pay pays a seller with one of few payment ids.
func (h *history) pay() step {
	seller := rapid.SampledFrom([]string{honest, honest, late, liar, refuser}).Draw(h.t, "seller")
	price := h.micros("price")
	r := pay.Request{
		ID: h.id("x"), Agent: h.agent(), Turn: h.turn(), Session: h.session(), By: h.by(), Method: "POST",
		URL: fmt.Sprintf("%s/%s/%d", h.p.market.url, seller, price),
	}
	if old := h.book.bills[r.ID]; old != nil && rapid.IntRange(0, 4).Draw(h.t, "another request") > 0 {
		r = old.request
		h.counts["repeated"]++
	}
	return step{
		func() error { _, err := h.p.payer.Pay(context.Background(), r); return err },
		func() (api.Code, []string) { return h.book.pay(r, seller, price, h.p.market) },
	}
}

// reorganize replaces the blocks of the chain, with the payments or without.
func (h *history) reorganize(keep bool) {
	if !keep {
		for _, q := range h.book.bills {
			if h.p.market.settled(q.nonce) {
				h.p.market.removed++
			}
		}
	}
	h.p.market.Reorganize(keep)
}
