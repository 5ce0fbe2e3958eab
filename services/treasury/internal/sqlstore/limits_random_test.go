package sqlstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// spending is a second implementation of the limits: it keeps every payment and sums them
// for each decision.
type spending struct {
	limits    map[string]api.Limits
	available map[string]api.Micros
	payments  []*payment
	approved  map[string]int64 // when the approval of a payment ends; 0: there is none
	now       int64
}

type payment struct {
	id, agent, turn, session, category, payee string
	asset                                     api.Asset
	peer                                      bool
	amount, held                              api.Micros // held: of the active hold
	at, expires                               int64
	gone                                      bool // released
	settled                                   bool
}

func (s *spending) matches(p *payment, category string) bool {
	return category == "" || category == "peer" && p.peer || category == p.category
}

func (s *spending) above(agent string) (names []string) {
	for agent != "" {
		names = append(names, agent)
		agent = s.limits[agent].Parent
	}
	return names
}

// refusals returns the reasons that refuse a payment.
func (s *spending) refusals(r *payment) (reasons []string) {
	if s.available[r.agent] < r.amount {
		return []string{api.ReasonInsufficient}
	}
	outgoing := r.category == "transfer" || r.category == "x402"
	for _, name := range s.above(r.agent) {
		l := s.limits[name]
		for _, w := range l.Windows {
			if !s.matches(r, w.Category) || (w.Window != "lineage" && name != r.agent) {
				continue
			}
			var amount api.Micros
			var n int64
			for _, p := range s.payments {
				in := map[api.Window]bool{
					"turn": p.agent == name && p.turn == r.turn, "session": p.agent == name && p.session == r.session && r.session != "",
					"hour":    p.agent == name && p.at > s.now-time.Hour.Microseconds(),
					"day":     p.agent == name && p.at > s.now-24*time.Hour.Microseconds(),
					"lineage": p.at > s.now-24*time.Hour.Microseconds() && slices.Contains(s.above(p.agent), name),
				}[w.Window]
				if in && !p.gone && s.matches(p, w.Category) {
					amount += p.amount
					n++
				}
			}
			if w.Amount != nil && *w.Amount >= 0 && amount+r.amount > *w.Amount {
				reason := string(w.Window) + "_limit"
				if w.Category == "peer" && w.Window != "call" {
					reason = api.ReasonPeerLimit
				}
				reasons = append(reasons, reason)
			}
			if w.Payments != nil && *w.Payments >= 0 && n >= *w.Payments {
				reasons = append(reasons, api.ReasonVelocity)
			}
		}
	}
	l := s.limits[r.agent]
	if l.Reserve != nil && outgoing && r.asset == api.Credits && s.available[r.agent]-r.amount < *l.Reserve {
		reasons = append(reasons, api.ReasonReserve)
	}
	known := false
	for _, p := range s.payments {
		if l.CooldownMS != nil && *l.CooldownMS > 0 && r.category == "transfer" && p.category == "transfer" && p.agent == r.agent && p.at+*l.CooldownMS*1000 > s.now {
			reasons = append(reasons, api.ReasonCooldown)
		}
		known = known || r.payee != "" && p.agent == r.agent && p.payee == r.payee && p.settled && (p.category == "transfer" || p.category == "x402")
	}
	if l.NewPayee != nil && outgoing && !known && r.amount > *l.NewPayee {
		reasons = append(reasons, api.ReasonNewPayee)
	}
	if l.Payees != nil && outgoing && !slices.Contains(l.Payees, r.payee) {
		reasons = append(reasons, api.ReasonPayee)
	}
	if len(reasons) == 0 && l.ApproveAbove != nil && outgoing && r.amount > *l.ApproveAbove && s.approved[r.content()] <= s.now {
		reasons = append(reasons, api.ReasonApproval)
	}
	return reasons
}

// content identifies the request for an approval.
func (r *payment) content() string { return fmt.Sprint(r.agent, r.amount, r.category, r.payee) }

func randomLimits(t *rapid.T, world int64) api.Limits {
	var l api.Limits
	seen := map[string]bool{}
	for range rapid.IntRange(1, 5).Draw(t, "windows") {
		w := api.WindowLimit{
			Window:   rapid.SampledFrom(api.Windows()).Draw(t, "window"),
			Category: rapid.SampledFrom([]string{"", "inference", "transfer", "x402", "peer"}).Draw(t, "category"),
		}
		if name := string(w.Window) + w.Category; seen[name] {
			continue
		} else {
			seen[name] = true
		}
		w.Amount = new(api.Micros(rapid.Int64Range(-1, 120).Draw(t, "limit")))
		if w.Window != api.WindowCall && rapid.Bool().Draw(t, "velocity") {
			w.Payments = new(rapid.Int64Range(1, 6).Draw(t, "payments"))
		}
		l.Windows = append(l.Windows, w)
	}
	// An hour or a day is always limited, so that the sums are complete when other limits
	// are set.
	l.Windows = append(l.Windows, api.WindowLimit{Window: api.WindowDay, Category: "other", Amount: new(api.Micros(1000))})
	l.Reserve = new(api.Micros(rapid.Int64Range(0, 40).Draw(t, "reserve")))
	l.CooldownMS = new(rapid.SampledFrom([]int64{0, 0, 60_000}).Draw(t, "cooldown"))
	switch rapid.IntRange(0, 3).Draw(t, "more") {
	case 0:
		l.NewPayee = new(api.Micros(10))
	case 1:
		l.Payees = []string{fmt.Sprintf("agent:c-%d", world), "0x1"}
	case 2:
		l.ApproveAbove = new(api.Micros(20))
	}
	return l
}

// TestLimitsRandomly applies the same payments to ledgers and to [spending]. Two processes
// take turns at the ledger, and each is replaced now and then.
func TestLimitsRandomly(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		c := newClock()
		open := func() *ledger.Ledger { return run(t, sqlstore.New(db, nil), ledger.Options{Now: c.now}) }
		processes := []*ledger.Ledger{open(), open()}
		var world atomic.Int64
		var denied, made atomic.Int64
		rapid.Check(t, func(t *rapid.T) {
			ctx := context.Background()
			w := world.Add(1)
			if w%20 == 0 {
				processes[w/20%2] = open()
			}
			name := func(n string) string { return fmt.Sprintf("%s-%d", n, w) }
			m := spending{limits: map[string]api.Limits{}, available: map[string]api.Micros{}, approved: map[string]int64{}, now: c.now().UnixMicro()}
			process := func() *ledger.Ledger { return rapid.SampledFrom(processes).Draw(t, "process") }
			agents := []string{name("a"), name("b"), name("c")}
			for i, a := range agents {
				b := processes[0]
				if err := b.Open(ctx, a); err != nil {
					t.Fatal(err)
				}
				if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: "fund-" + a, Agent: a, Amount: 300, Source: "faucet"}); err != nil {
					t.Fatal(err)
				}
				l := randomLimits(t, w)
				if i > 0 && rapid.Bool().Draw(t, "child") {
					l.Parent = agents[i-1]
				}
				if _, err := b.SetLimits(ctx, ledger.SetLimitsRequest{ID: "limits-" + a, Agent: a, Limits: l}); err != nil {
					t.Fatal(err)
				}
				m.limits[a], m.available[a] = l, 300
			}
			for i := range rapid.IntRange(5, 50).Draw(t, "steps") {
				b := process()
				switch op := rapid.IntRange(0, 9).Draw(t, "operation"); {
				case op <= 5:
					p := &payment{
						id: fmt.Sprintf("h-%d-%d", w, i), agent: rapid.SampledFrom(agents).Draw(t, "agent"),
						turn: name(rapid.SampledFrom([]string{"t1", "t2"}).Draw(t, "turn")), session: name(rapid.SampledFrom([]string{"s1", "s2"}).Draw(t, "session")),
						category: rapid.SampledFrom([]string{"inference", "transfer", "x402", "other"}).Draw(t, "of"),
						peer:     rapid.Bool().Draw(t, "peer"), amount: api.Micros(rapid.Int64Range(1, 40).Draw(t, "amount")), at: m.now,
						payee: rapid.SampledFrom([]string{"agent:" + agents[2], "0x1", "0x2"}).Draw(t, "payee"), expires: m.now + 600_000_000,
					}
					if p.agent == agents[2] && p.payee == "agent:"+agents[2] {
						p.payee = "0x1" // an agent does not pay itself
					}
					by := api.Self
					if p.peer {
						by = api.Peer
					}
					refused := m.refusals(p)
					var err error
					transfer := op == 5 && p.agent != agents[2]
					if transfer {
						p.category, p.payee, p.session = "transfer", "agent:"+agents[2], ""
						refused = m.refusals(p)
						_, err = b.Give(ctx, ledger.GiveRequest{ID: p.id, From: p.agent, To: agents[2], Amount: p.amount, Turn: p.turn, By: by})
					} else {
						_, err = b.Hold(ctx, ledger.HoldRequest{
							ID: p.id, Agent: p.agent, Amount: p.amount, Category: p.category, Turn: p.turn, Session: p.session, By: by, Payee: p.payee,
							ExpiresAt: p.expires,
						})
					}
					reason := api.ReasonOf(err)
					switch {
					case (len(refused) > 0) != (err != nil), err != nil && !slices.Contains(refused, reason):
						t.Fatalf("%+v: got %v, want a refusal of %q", *p, err, refused)
					case err == nil:
						made.Add(1)
						if l := m.limits[p.agent]; l.ApproveAbove != nil && p.amount > *l.ApproveAbove {
							m.approved[p.content()] = 0
						}
						m.available[p.agent] -= p.amount
						p.held = p.amount
						if transfer {
							p.held, p.settled = 0, true
							m.available[agents[2]] += p.amount
						}
						m.payments = append(m.payments, p)
					case reason == api.ReasonApproval && rapid.Bool().Draw(t, "approve"):
						all, lerr := b.Approvals(ctx, p.agent, "")
						i := slices.IndexFunc(all, func(a ledger.Approval) bool {
							return a.Hold == p.id || a.Amount == p.amount && a.Payee == p.payee && a.Category == p.category
						})
						if lerr != nil || i < 0 || !strings.Contains(api.Wire(err).Next, all[i].ID) {
							t.Fatalf("approvals: got %+v, %v, want the request of %v", all, lerr, err)
						}
						if _, err := process().Decide(ctx, all[i].ID, true); err != nil {
							t.Fatal(err)
						}
						m.approved[p.content()] = m.now + 24*time.Hour.Microseconds()
						denied.Add(1)
					default:
						denied.Add(1)
					}
				case op <= 7:
					active := slices.DeleteFunc(slices.Clone(m.payments), func(p *payment) bool { return p.held == 0 })
					if len(active) == 0 {
						continue
					}
					p := rapid.SampledFrom(active).Draw(t, "hold")
					paid := api.Micros(rapid.Int64Range(0, int64(p.held)).Draw(t, "paid"))
					var err error
					if op == 6 {
						_, err = b.Settle(ctx, ledger.SettleRequest{ID: p.id, Amount: paid, Payee: settledTo(p)})
					} else {
						paid = 0
						_, err = b.Release(ctx, p.id, "", "")
					}
					if err != nil {
						t.Fatalf("end of %+v: %v", *p, err)
					}
					if strings.HasPrefix(p.payee, "agent:") {
						m.available[agents[2]] += paid
					}
					m.available[p.agent] += p.held - paid
					p.amount, p.held, p.gone, p.settled = paid, 0, paid == 0, paid > 0
				default:
					step := rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, 20 * time.Minute, time.Hour, 12 * time.Hour}).Draw(t, "step")
					c.advance(step)
					m.now += step.Microseconds()
					for _, p := range m.payments {
						if p.held > 0 && p.expires <= m.now {
							m.available[p.agent] += p.held
							p.held, p.gone = 0, true
						}
					}
					for n := 1; n > 0; {
						var err error
						if n, err = b.Expire(ctx, 0); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			for _, a := range agents {
				got, err := process().Balance(ctx, a)
				if err != nil || got.Available != m.available[a] {
					t.Fatalf("%s: got %+v, %v, want %d available", a, got, err, m.available[a])
				}
			}
		})
		t.Logf("%d payments made, %d refused", made.Load(), denied.Load())
		if made.Load() == 0 || denied.Load() == 0 {
			t.Error("got no payment or no refusal, want both")
		}
		wantSound(t, processes[0])
	})
}

// settledTo returns the payee of a settlement: that of the hold if it is an agent.
func settledTo(p *payment) string {
	if strings.HasPrefix(p.payee, "agent:") {
		return p.payee
	}
	return "provider:x"
}
