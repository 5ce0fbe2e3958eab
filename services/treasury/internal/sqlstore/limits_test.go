package sqlstore_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// eachLimited calls test with an empty ledger of each engine. open returns another process.
func eachLimited(t *testing.T, test func(t *testing.T, c *clock, open func() *ledger.Ledger)) {
	t.Helper()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		c := newClock()
		test(t, c, func() *ledger.Ledger {
			return run(t, sqlstore.New(reopen(t, db), nil), ledger.Options{Now: c.now})
		})
	})
}

func limitTo(w api.Window, category string, amount api.Micros) api.WindowLimit {
	return api.WindowLimit{Window: w, Category: category, Amount: &amount}
}

func setLimits(t *testing.T, b *ledger.Ledger, agent string, l api.Limits) {
	t.Helper()
	was, err := b.Limits(t.Context(), agent, "", "")
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("limits-%s-%d", agent, was.Own.Revision)
	if _, err := b.SetLimits(t.Context(), ledger.SetLimitsRequest{ID: id, Agent: agent, Limits: l, Revision: was.Own.Revision}); err != nil {
		t.Fatal(err)
	}
}

// TestLimitsHoldForAllSpenders lets 64 spenders of three agents, at two processes, spend as
// fast as they can, while each process is replaced several times. All windows are used up
// to the last micro-USD and not beyond.
func TestLimitsHoldForAllSpenders(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, _ *clock, open func() *ledger.Ledger) {
		ctx := t.Context()
		const pool, own, turn = 1000, 700, 90
		first := open()
		agents := []string{"root", "kid", "grandkid"}
		for i, a := range agents {
			funded(t, first, a, 1_000_000)
			l := api.Limits{Windows: []api.WindowLimit{limitTo(api.WindowDay, "", own), limitTo(api.WindowTurn, "", turn)}}
			if i == 0 {
				l.Windows = append(l.Windows, limitTo(api.WindowLineage, "", pool))
			} else {
				l.Parent = agents[i-1]
			}
			setLimits(t, first, a, l)
		}
		var mu sync.Mutex
		spent, inTurn := map[string]api.Micros{}, map[string]api.Micros{}
		for round := range 3 {
			processes := []*ledger.Ledger{open(), open()}
			var wg sync.WaitGroup
			for s := range 64 {
				wg.Go(func() {
					b, agent := processes[s%2], agents[s%3]
					for i := range 6 {
						id, in := fmt.Sprintf("%d-%d-%d", round, s, i), fmt.Sprintf("t%d", s%12)
						amount := api.Micros(1 + (s*7+i)%9)
						_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: agent, Amount: amount, Turn: in, ExpiresAt: soon})
						if api.OverLimit(api.ReasonOf(err)) {
							continue
						}
						paid := amount - api.Micros(i%2)
						if i%5 == 4 {
							paid = 0
						}
						if err == nil && paid == 0 {
							_, err = b.Release(ctx, id, "", "")
						} else if err == nil {
							_, err = b.Settle(ctx, ledger.SettleRequest{ID: id, Amount: paid, Payee: "provider:x"})
						}
						if err != nil {
							t.Errorf("%s: %v", id, err)
							return
						}
						mu.Lock()
						spent[agent] += paid
						inTurn[agent+in] += paid
						mu.Unlock()
					}
				})
			}
			wg.Wait()
		}
		var all api.Micros
		for _, a := range agents {
			all += spent[a]
			if spent[a] > own {
				t.Errorf("%s spent %d, want at most %d", a, spent[a], own)
			}
		}
		for name, sum := range inTurn {
			if sum > turn {
				t.Errorf("turn %s spent %d, want at most %d", name, sum, turn)
			}
		}
		if all > pool {
			t.Errorf("the lineage spent %d, want at most %d", all, pool)
		}
		// What is left can be spent, to the last micro-USD.
		last := open()
		left := func() (n api.Micros) {
			for i := 0; ; i++ {
				_, err := last.Hold(ctx, ledger.HoldRequest{ID: fmt.Sprintf("last-%d", i), Agent: agents[i%3], Amount: 1, Turn: fmt.Sprintf("l%d", i/3), ExpiresAt: soon})
				if err != nil {
					if api.ReasonOf(err) == api.ReasonLineageLimit {
						return n
					}
					if !api.OverLimit(api.ReasonOf(err)) || i > 3*pool {
						t.Fatal(err)
					}
					continue
				}
				n++
			}
		}()
		if all+left != pool {
			t.Errorf("the lineage spent %d and then %d, want %d", all, left, pool)
		}
		wantSound(t, last)
	})
}

// TestLimitsOfTheOperator checks limits that no request has set, and an amount that is owed.
func TestLimitsOfTheOperator(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		c := newClock()
		b := run(t, sqlstore.New(db, nil), ledger.Options{Now: c.now, Limits: &api.Limits{Windows: []api.WindowLimit{limitTo(api.WindowHour, "inference", 10)}}})
		funded(t, b, "lucky", 100)
		hold(t, b, "h1", "lucky", 8)
		r := ledger.HoldRequest{ID: "h2", Agent: "lucky", Amount: 3, Category: "inference", ExpiresAt: soon}
		_, err := b.Hold(ctx, r)
		wantRefused(t, "beyond the limit", err, api.Denied, api.ReasonHourLimit)
		if got := api.Wire(err).Retry(); got != time.Hour {
			t.Errorf("retry: got %s, want an hour", got)
		}
		r.Owed = true
		if _, err := b.Hold(ctx, r); err != nil {
			t.Errorf("owed: %v", err)
		}
		if s, err := b.Limits(ctx, "lucky", "", ""); err != nil || len(s.Usage) != 1 || s.Usage[0].Spent != 11 || s.Usage[0].Count != 2 || s.Usage[0].FreesAt != start+time.Hour.Microseconds() {
			t.Errorf("usage: got %+v, %v, want 11 of 2 payments", s, err)
		}
		if again, err := b.Hold(ctx, r); err != nil || again.Status != api.HoldActive {
			t.Errorf("the same hold again: got %+v, %v", again, err)
		}
		setLimits(t, b, "lucky", api.Limits{Windows: []api.WindowLimit{limitTo(api.WindowHour, "inference", api.Unlimited)}})
		hold(t, b, "h3", "lucky", 50)
	})
}

// TestParentsAbove checks that a payment counts for the lineage limits of eight parents, and
// that an agent has at most so many.
func TestParentsAbove(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, _ *clock, open func() *ledger.Ledger) {
		ctx, b := t.Context(), open()
		for i := range 10 {
			agent := fmt.Sprintf("a%d", i)
			funded(t, b, agent, 100)
			if i > 0 && i < 9 {
				setLimits(t, b, agent, api.Limits{Parent: fmt.Sprintf("a%d", i-1)})
			}
		}
		setLimits(t, b, "a0", api.Limits{Windows: []api.WindowLimit{limitTo(api.WindowLineage, "", 10)}})
		_, err := b.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "a8", Amount: 11, ExpiresAt: soon})
		wantRefused(t, "more than the eighth parent allows", err, api.Denied, api.ReasonLineageLimit)
		_, err = b.SetLimits(ctx, ledger.SetLimitsRequest{ID: "nine", Agent: "a9", Limits: api.Limits{Parent: "a8"}})
		wantRefused(t, "nine parents", err, api.Invalid, "")
	})
}

// TestSetLimits checks who may be a parent, revisions, and repeated requests.
func TestSetLimits(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, _ *clock, open func() *ledger.Ledger) {
		ctx := t.Context()
		b, other := open(), open()
		for _, a := range []string{"ada", "bob", "cid"} {
			funded(t, b, a, 100)
		}
		set := func(b *ledger.Ledger, id, agent, parent string, revision int64) (ledger.LimitState, error) {
			return b.SetLimits(ctx, ledger.SetLimitsRequest{ID: id, Agent: agent, Revision: revision, Limits: api.Limits{Parent: parent}})
		}
		for _, tt := range []struct {
			id, agent, parent string
			revision          int64
			code              api.Code
		}{
			{"s1", "bob", "ada", 0, ""},
			{"s1", "bob", "ada", 0, ""}, // again
			{"s1", "cid", "ada", 0, api.Conflict},
			{"s2", "cid", "bob", 0, ""},
			{"s3", "cid", "bob", 0, api.Conflict}, // of an earlier revision
			{"s4", "ada", "cid", 0, api.Invalid},  // a circle
			{"s5", "ada", "ada", 0, api.Invalid},
			{"s6", "ada", "ghost", 0, api.NotFound},
			{"s7", "ghost", "", 0, api.NotFound},
			{"s8", "ada", "", -1, api.Conflict},
			{"x/hold", "ada", "", 0, api.Invalid},
			{"s9", "cid", "", 1, ""},
			{"s10", "ada", "cid", 0, ""}, // no circle any more
		} {
			for i, b := range []*ledger.Ledger{b, other} {
				if i > 0 && tt.code != "" {
					continue
				}
				if _, err := set(b, tt.id, tt.agent, tt.parent, tt.revision); api.CodeOf(err) != tt.code {
					t.Errorf("%+v at process %d: got %v, want %q", tt, i, err, tt.code)
				}
			}
		}
		if _, err := b.SetLimits(ctx, ledger.SetLimitsRequest{ID: "bad", Agent: "ada", Revision: 1, Limits: api.Limits{Windows: []api.WindowLimit{{Window: "week"}}}}); api.CodeOf(err) != api.Invalid {
			t.Errorf("unknown window: got %v, want invalid", err)
		}
		if r := wantSound(t, other); r.Transactions != 3+4 {
			t.Errorf("verify: got %d transactions, want 7", r.Transactions)
		}
		ts, _, err := b.Transactions(ctx, "cid", 0, 0)
		if err != nil || !slices.ContainsFunc(ts, func(t ledger.Transaction) bool { return t.Kind == ledger.KindLimits && len(t.Lines) == 0 }) {
			t.Errorf("transactions: got %+v, %v, want the change of the limits", ts, err)
		}
	})
}

// TestApproval follows a payment that needs an approval through refusal, approval and use.
func TestApproval(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, c *clock, open func() *ledger.Ledger) {
		ctx := t.Context()
		b, other := open(), open()
		funded(t, b, "lucky", 1000)
		setLimits(t, b, "lucky", api.Limits{ApproveAbove: new(api.Micros(10))})
		pay := func(b *ledger.Ledger, id string, amount api.Micros) error {
			_, err := b.Hold(ctx, ledger.HoldRequest{
				ID: id, Agent: "lucky", Amount: amount, Category: "transfer", Payee: "agent:bob", ExpiresAt: c.now().Add(time.Hour).UnixMicro(),
			})
			return err
		}
		wantRefused(t, "first", pay(b, "h1", 11), api.Denied, api.ReasonApproval)
		wantRefused(t, "again", pay(other, "h2", 11), api.Denied, api.ReasonApproval)
		all, err := other.Approvals(ctx, "", "")
		if err != nil || len(all) != 1 || all[0].Amount != 11 || all[0].Payee != "agent:bob" || all[0].Hold != "h1" {
			t.Fatalf("requests: got %+v, %v, want one", all, err)
		}
		id := all[0].ID
		if a, err := other.Decide(ctx, id, true); err != nil || a.Status != api.ApprovalApproved || a.EndsAt != start+24*time.Hour.Microseconds() {
			t.Fatalf("approve: got %+v, %v", a, err)
		}
		if _, err := b.Decide(ctx, id, false); api.CodeOf(err) != api.Conflict {
			t.Errorf("refuse an approved request: got %v, want a conflict", err)
		}
		if _, err := b.Decide(ctx, "approval-x", true); api.CodeOf(err) != api.NotFound {
			t.Errorf("approve nothing: got %v, want not found", err)
		}
		wantRefused(t, "another amount", pay(b, "h3", 12), api.Denied, api.ReasonApproval)

		// One of many repetitions uses the approval.
		var mu sync.Mutex
		var done []string
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				p, id := []*ledger.Ledger{b, other}[i%2], fmt.Sprintf("repeated-%d", i)
				if err := pay(p, id, 11); err == nil {
					mu.Lock()
					defer mu.Unlock()
					done = append(done, id)
				} else if api.ReasonOf(err) != api.ReasonApproval {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(done) != 1 {
			t.Fatalf("got %d payments, want one for one approval", len(done))
		}
		if err := pay(b, done[0], 11); err != nil { // the same hold
			t.Error(err)
		}

		// An approval ends after a day.
		wantRefused(t, "asked again", pay(b, "h4", 11), api.Denied, api.ReasonApproval)
		if _, err := b.Decide(ctx, id, true); err != nil {
			t.Fatal(err)
		}
		c.advance(24 * time.Hour)
		wantRefused(t, "too late", pay(b, "h5", 11), api.Denied, api.ReasonApproval)
		if _, err := b.Decide(ctx, id, false); err != nil {
			t.Fatal(err)
		}
		wantSound(t, b)
	})
}

// TestApprovalOfAnotherPayment checks that an approved request admits only the payment that
// was shown, also if another one has the same id.
func TestApprovalOfAnotherPayment(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		b := run(t, sqlstore.New(db, nil), ledger.Options{Now: time.Now, Limits: &api.Limits{ApproveAbove: new(api.Micros(10))}})
		funded(t, b, "lucky", 1000)
		pay := func(id string) error {
			_, err := b.Hold(ctx, ledger.HoldRequest{
				ID: id, Agent: "lucky", Amount: 500, Category: "transfer", Payee: "agent:bob", ExpiresAt: time.Now().Add(time.Hour).UnixMicro(),
			})
			return err
		}
		wantRefused(t, "asked", pay("h1"), api.Denied, api.ReasonApproval)
		shown := func(amount int64) {
			t.Helper()
			if _, err := db.ExecContext(ctx, "update approvals set amount = $1, status = 'approved', ends_at = $2", amount, time.Now().Add(time.Hour).UnixMicro()); err != nil {
				t.Fatal(err)
			}
		}
		shown(11)
		wantRefused(t, "another payment was shown", pay("h2"), api.Denied, api.ReasonApproval)
		shown(500)
		if err := pay("h3"); err != nil {
			t.Errorf("this payment was shown: %v", err)
		}
	})
}

// TestHoldPaysItsPayee checks that a hold for an agent is settled to this agent only.
func TestHoldPaysItsPayee(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, _ *clock, open func() *ledger.Ledger) {
		b := open()
		for _, a := range []string{"lucky", "bob", "eve"} {
			funded(t, b, a, 100)
		}
		if _, err := b.Hold(t.Context(), ledger.HoldRequest{ID: "h", Agent: "lucky", Amount: 10, Category: "transfer", Payee: "agent:bob", ExpiresAt: soon}); err != nil {
			t.Fatal(err)
		}
		_, err := b.Settle(t.Context(), ledger.SettleRequest{ID: "h", Amount: 10, Payee: "agent:eve"})
		wantRefused(t, "settled to another agent", err, api.Invalid, "")
		_, err2 := b.Settle(t.Context(), ledger.SettleRequest{ID: "h", Amount: 10, Payee: "agent:bob"})
		if err := errors.Join(err2); err != nil {
			t.Error(err)
		}
		wantBalance(t, b, "bob", 110, 0)
	})
}

// TestLimitsCountWhatAPurchasePaid checks that the rest of a hold that paid for credits
// does not stay in the windows.
func TestLimitsCountWhatAPurchasePaid(t *testing.T) {
	t.Parallel()
	eachLimited(t, func(t *testing.T, _ *clock, open func() *ledger.Ledger) {
		b := open()
		funded(t, b, "lucky", 1_000_000)
		arrived(t, b, "tx1/0", "lucky", 1000)
		setLimits(t, b, "lucky", api.Limits{Windows: []api.WindowLimit{limitTo(api.WindowDay, "", 100)}})
		if _, err := holdUSDC(t.Context(), b, "buy", 100); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Purchase(t.Context(), ledger.PurchaseRequest{Hold: "buy", Agent: "lucky", USDC: 40, Credits: 40}); err != nil {
			t.Fatal(err)
		}
		if _, err := holdUSDC(t.Context(), b, "over", 61); !api.OverLimit(api.ReasonOf(err)) {
			t.Errorf("61 of the 60 that are left: got %v, want a refusal of the limit", err)
		}
		if _, err := holdUSDC(t.Context(), b, "rest", 60); err != nil {
			t.Errorf("the 60 that are left: got %v", err)
		}
	})
}
