package sqlstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// model is a minimal second implementation of the rules of the ledger.
type model struct {
	available, held map[string]api.Micros
	holds           map[string]*ledger.Hold
	moves           map[string]string // content by id
	now             int64
}

func (m *model) hold(r ledger.HoldRequest) (api.Code, string) {
	if h, ok := m.holds[r.ID]; ok {
		if h.Agent != r.Agent || h.Amount != r.Amount {
			return api.Conflict, ""
		}
		return "", ""
	}
	if m.available[r.Agent] < r.Amount {
		return api.Denied, api.ReasonInsufficient
	}
	m.available[r.Agent] -= r.Amount
	m.held[r.Agent] += r.Amount
	m.holds[r.ID] = &ledger.Hold{ID: r.ID, Agent: r.Agent, Amount: r.Amount, Status: api.HoldActive, ExpiresAt: r.ExpiresAt}
	return "", ""
}

func (m *model) end(id string, status api.HoldStatus, paid api.Micros) api.Code {
	h, ok := m.holds[id]
	switch {
	case !ok:
		return api.NotFound
	case status == api.HoldSettled && h.Status == api.HoldSettled && h.Settled == paid:
		return ""
	case status == api.HoldReleased && (h.Status == api.HoldReleased || h.Status == api.HoldExpired):
		return ""
	case h.Status != api.HoldActive:
		return api.Conflict
	case paid > h.Amount:
		return api.Invalid
	}
	h.Status, h.Settled = status, paid
	m.held[h.Agent] -= h.Amount
	m.available[h.Agent] += h.Amount - paid
	return ""
}

func (m *model) move(id, from, to string, amount api.Micros) (api.Code, string) {
	content := fmt.Sprint(from, to, amount)
	if was, ok := m.moves[id]; ok {
		if was != content {
			return api.Conflict, ""
		}
		return "", ""
	}
	if from != "" {
		if m.available[from] < amount {
			return api.Denied, api.ReasonInsufficient
		}
		m.available[from] -= amount
	}
	m.available[to] += amount
	m.moves[id] = content
	return "", ""
}

// randomOperations applies the same operations to a Ledger and to the model, with few ids
// and small amounts, so that operations collide.
func randomOperations(t *testing.T, open func() ledger.Store) {
	c := newClock()
	b := run(t, open(), ledger.Options{Now: c.now})
	var world atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := world.Add(1) // each check has its own agents and ids in the same ledger
		agents := []string{fmt.Sprintf("a-%d", w), fmt.Sprintf("b-%d", w)}
		m := model{
			available: map[string]api.Micros{}, held: map[string]api.Micros{},
			holds: map[string]*ledger.Hold{}, moves: map[string]string{}, now: c.now().UnixMicro(),
		}
		for _, a := range agents {
			if err := b.Open(ctx, a); err != nil {
				t.Fatalf("open: %v", err)
			}
		}
		var (
			agent  = rapid.SampledFrom(agents)
			amount = rapid.Int64Range(1, 30)
			id     = rapid.IntRange(0, 5)
		)
		pick := func(kind string) string { return fmt.Sprintf("%s-%d-%d", kind, w, id.Draw(t, kind)) }
		for range rapid.IntRange(5, 25).Draw(t, "steps") {
			var err error
			var code api.Code
			var reason string
			op := rapid.IntRange(0, 6).Draw(t, "operation")
			switch op {
			case 0, 1:
				r := ledger.HoldRequest{ID: pick("h"), Agent: agent.Draw(t, "agent"), Amount: api.Micros(amount.Draw(t, "amount")), ExpiresAt: m.now + amount.Draw(t, "life")*1_000_000}
				_, err = b.Hold(ctx, r)
				code, reason = m.hold(r)
			case 2:
				r := ledger.SettleRequest{ID: pick("h"), Amount: api.Micros(amount.Draw(t, "amount")), Payee: "provider:x"}
				_, err = b.Settle(ctx, r)
				code = m.end(r.ID, api.HoldSettled, r.Amount)
			case 3:
				h := pick("h")
				_, err = b.Release(ctx, h, "", "")
				code = m.end(h, api.HoldReleased, 0)
			case 4:
				r := ledger.DepositRequest{ID: pick("d"), Agent: agent.Draw(t, "agent"), Amount: api.Micros(2 * amount.Draw(t, "amount")), Source: "faucet"}
				_, err = b.Deposit(ctx, r)
				code, reason = m.move(r.ID, "", r.Agent, r.Amount)
			case 5:
				from := agent.Draw(t, "from")
				to := agents[0]
				if from == to {
					to = agents[1]
				}
				r := ledger.TransferRequest{ID: pick("t"), From: from, To: to, Amount: api.Micros(amount.Draw(t, "amount"))}
				_, err = b.Transfer(ctx, r)
				code, reason = m.move(r.ID, r.From, r.To, r.Amount)
			case 6:
				step := time.Duration(amount.Draw(t, "seconds")) * time.Second
				c.advance(step)
				m.now += step.Microseconds()
				_, err = b.Expire(ctx, 0)
				for id, h := range m.holds {
					if h.Status == api.HoldActive && h.ExpiresAt <= m.now {
						code = m.end(id, api.HoldExpired, 0)
					}
				}
			}
			if api.CodeOf(err) != code || api.ReasonOf(err) != reason {
				t.Fatalf("operation %d: got error %v, want code %q and reason %q", op, err, code, reason)
			}
			for _, a := range agents {
				got, err := b.Balance(ctx, a)
				if err != nil || got.Available != m.available[a] || got.Held != m.held[a] {
					t.Fatalf("after operation %d %s: got %+v, %v, want %d available and %d held", op, a, got, err, m.available[a], m.held[a])
				}
			}
		}
	})
	wantSound(t, b)
}
