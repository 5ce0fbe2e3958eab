package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

const (
	spenders      = 64
	spender       = "spender"
	spendersHouse = "family" // whose lineage the spender belongs to
	spendersPayee = "provider:x"

	spendersMost    = 40   // the most that a hold of the spenders asks for
	spendersCall    = 30   // limit of one x402 payment
	spendersTurn    = 400  // limit of a turn
	spendersPerTurn = 24   // limit of the payments of a turn
	spendersReserve = 50   // that x402 payments must leave
	spendersRaise   = 1000 // by which the limits of a day rise
	spendersDeposit = 4000
)

// bound is an amount, and what the spenders count of it. An amount is counted after it was
// granted, and not any more before it is returned; a bound is raised before the request
// that raises it. So the count of a correct ledger never passes the bound.
type bound struct {
	name       string
	most, used atomic.Int64
}

func newBound(name string, most int64) *bound {
	b := &bound{name: name}
	b.most.Store(most)
	return b
}

// take counts an amount and returns an error if it is more than the bound.
func (b *bound) take(n int64) error {
	if used := b.used.Add(n); used > b.most.Load() {
		return fmt.Errorf("overspent: %s is %d, and %d were granted", b.name, b.most.Load(), used)
	}
	return nil
}

func (b *bound) giveBack(n int64) { b.used.Add(-n) }

// spending is the work of all spenders, and their counts.
type spending struct {
	t          *testing.T
	bus        *bus.Bus
	operations int64
	seed       uint64

	done, grants, paid, repeated atomic.Int64
	kills                        atomic.Int64 // of processes of treasury
	account                      *bound
	other                        *bound // the limit of a day for the category other
	lineage                      *bound // the limit of the lineage for x402
	turns                        sync.Map
	refusals                     map[string]*atomic.Int64
	poor                         chan struct{} // a hold was refused for lack of money
	limited                      chan string   // the reason for which a hold was refused
	verified                     int64         // transactions
}

// spendersTurns are the bounds of one turn.
type spendersTurns struct{ amount, payments *bound }

func newSpending(t *testing.T, b *bus.Bus, operations int, seed uint64) *spending {
	t.Helper()
	s := &spending{
		t: t, bus: b, operations: int64(operations), seed: seed, refusals: map[string]*atomic.Int64{},
		account: newBound("what was deposited", 0), other: newBound("the limit of the day", 0), lineage: newBound("the limit of the lineage", 0),
		poor: make(chan struct{}, 1), limited: make(chan string, 1),
	}
	for _, reason := range append(s.wanted(), api.ReasonVelocity) {
		s.refusals[reason] = &atomic.Int64{}
	}
	for _, agent := range []string{spendersHouse, spender} {
		if _, err := bus.Call[api.Account](t.Context(), b, api.OpenAccount{Agent: agent}); err != nil {
			t.Fatal(err)
		}
	}
	s.raise(t.Context(), 0, api.ReasonDayLimit)
	s.raise(t.Context(), 1, api.ReasonLineageLimit)
	s.deposit(t.Context(), 0)
	return s
}

// wanted are the refusals that every run must have.
func (s *spending) wanted() []string {
	return []string{api.ReasonInsufficient, api.ReasonTurnLimit, api.ReasonDayLimit, api.ReasonLineageLimit, api.ReasonCallLimit, api.ReasonReserve}
}

// provide deposits money and raises the limits of a day when spenders are refused, until
// finished is closed.
func (s *spending) provide(ctx context.Context, finished <-chan struct{}) {
	for n := 2; ; n++ {
		select {
		case <-finished:
			return
		case <-s.poor:
			s.deposit(ctx, n)
		case reason := <-s.limited:
			s.raise(ctx, n, reason)
		}
	}
}

func (s *spending) deposit(ctx context.Context, n int) {
	s.account.most.Add(spendersDeposit)
	_, err := patiently[api.Posted](ctx, s, api.Deposit{ID: fmt.Sprintf("d%d", n), Agent: spender, Amount: spendersDeposit, Source: "faucet"})
	if err != nil {
		s.t.Errorf("deposit: %v", err)
	}
}

// raise raises the limit that is the reason of a refusal, of the day or of the lineage.
func (s *spending) raise(ctx context.Context, n int, reason string) {
	if reason == api.ReasonDayLimit {
		s.other.most.Add(spendersRaise)
	} else {
		s.lineage.most.Add(spendersRaise / 2)
	}
	unlimited := new(api.Micros(api.Unlimited))
	limit := func(w api.Window, category string, most int64) api.WindowLimit {
		return api.WindowLimit{Window: w, Category: category, Amount: new(api.Micros(most))}
	}
	turn := limit(api.WindowTurn, "", spendersTurn)
	turn.Payments = new(int64(spendersPerTurn))
	for agent, l := range map[string]api.Limits{
		spendersHouse: {Windows: []api.WindowLimit{limit(api.WindowLineage, api.CategoryX402, s.lineage.most.Load())}},
		spender: {Parent: spendersHouse, Reserve: new(api.Micros(spendersReserve)), NewPayee: unlimited, ApproveAbove: unlimited, Windows: []api.WindowLimit{
			turn, limit(api.WindowCall, api.CategoryX402, spendersCall), limit(api.WindowDay, api.CategoryOther, s.other.most.Load()),
			{Window: api.WindowDay, Category: api.CategoryInference, Amount: unlimited},
		}},
	} {
		now, err := patiently[api.AgentLimits](ctx, s, api.GetLimits{Agent: agent})
		if err == nil {
			_, err = patiently[api.AgentLimits](ctx, s, api.SetLimits{ID: fmt.Sprintf("l%d-%s", n, agent), Agent: agent, Limits: l, Revision: now.Revision})
		}
		if err != nil {
			s.t.Errorf("limits: %v", err)
		}
	}
}

// patiently sends a request until it is answered. A process that is killed does not answer.
func patiently[Resp any](ctx context.Context, s *spending, m api.Message) (Resp, error) {
	for {
		once, cancel := context.WithTimeout(ctx, time.Second)
		answer, err := bus.Call[Resp](once, s.bus, m)
		cancel()
		if ctx.Err() != nil || api.CodeOf(err) != api.Unavailable {
			s.done.Add(1)
			return answer, err
		}
		s.repeated.Add(1)
	}
}

// spend makes payments until all operations are done.
func (s *spending) spend(ctx context.Context, who int) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(who)+1)) //nolint:gosec // reproducible
	for n := 0; (s.done.Load() < s.operations || s.kills.Load() < spendersKills) && !s.t.Failed(); n++ {
		if err := s.payment(ctx, rng, fmt.Sprintf("s%d-%d", who, n)); err != nil {
			s.t.Errorf("spender %d: %v", who, err)
			return
		}
	}
}

// payment makes one hold and ends it, or leaves it to expire.
func (s *spending) payment(ctx context.Context, rng *rand.Rand, id string) error {
	turn := fmt.Sprintf("t%d", s.done.Load()/60)
	r := api.Hold{
		ID: id, Agent: spender, Amount: api.Micros(1 + rng.IntN(spendersMost)), Turn: turn, Session: "s", ExpiresAt: time.Now().Add(time.Hour).UnixMicro(),
		Category: []string{api.CategoryInference, api.CategoryInference, api.CategoryInference, api.CategoryOther, api.CategoryX402}[rng.IntN(5)],
	}
	end := rng.IntN(20)
	if end == 0 {
		r.ExpiresAt = time.Now().Add(2 * time.Second).UnixMicro()
	}
	h, err := patiently[api.HoldState](ctx, s, r)
	switch {
	case end == 0 && api.CodeOf(err) == api.Invalid:
		return nil // it was first answered after its expiry
	case err != nil:
		return s.denied(&r, err)
	}
	s.grants.Add(1)
	if end == 0 { // nothing is paid from it, so nothing is counted
		return nil
	}
	if r.Category == api.CategoryX402 && r.Amount > spendersCall {
		return fmt.Errorf("overspent: one payment of %d was granted, and %d are allowed", r.Amount, spendersCall)
	}
	if h.Status != api.HoldActive || h.Amount != r.Amount || h.Available < 0 {
		return fmt.Errorf("hold %+v: got %+v", r, h)
	}
	bounds := s.bounds(&r)
	for _, b := range bounds {
		if err := b.take(int64(r.Amount)); err != nil {
			return err
		}
	}
	payments := s.turn(turn).payments
	if err := payments.take(1); err != nil {
		return err
	}
	paid := r.Amount
	if end > 10 {
		paid = api.Micros(rng.IntN(int(r.Amount) + 1))
	}
	for _, b := range bounds {
		b.giveBack(int64(r.Amount - paid))
	}
	if paid == 0 {
		payments.giveBack(1)
	}
	if end > 16 && paid == 0 {
		h, err = patiently[api.HoldState](ctx, s, api.Release{ID: id})
	} else {
		h, err = patiently[api.HoldState](ctx, s, api.Settle{ID: id, Amount: paid, Payee: spendersPayee})
	}
	if err != nil || h.Settled != paid {
		return fmt.Errorf("end of %+v with %d: got %+v, %w", r, paid, h, err)
	}
	s.paid.Add(int64(paid))
	if end == 1 { // a late copy of the request is not a second grant
		if h, err = patiently[api.HoldState](ctx, s, r); err != nil || h.Status == api.HoldActive {
			return fmt.Errorf("hold %s again: got %+v, %w", id, h, err)
		}
	}
	return nil
}

// denied counts a refusal, and asks for money or higher limits.
func (s *spending) denied(r *api.Hold, err error) error {
	reason := api.ReasonOf(err)
	n := s.refusals[reason]
	if n == nil {
		return fmt.Errorf("hold %+v: %w", r, err)
	}
	n.Add(1)
	switch reason {
	case api.ReasonInsufficient, api.ReasonReserve:
		select {
		case s.poor <- struct{}{}:
		default:
		}
	case api.ReasonDayLimit, api.ReasonLineageLimit:
		select {
		case s.limited <- reason:
		default:
		}
	}
	return nil
}

// bounds returns what the amount of a hold counts for.
func (s *spending) bounds(r *api.Hold) []*bound {
	all := []*bound{s.account, s.turn(r.Turn).amount}
	switch r.Category {
	case api.CategoryOther:
		all = append(all, s.other)
	case api.CategoryX402:
		all = append(all, s.lineage)
	}
	return all
}

func (s *spending) turn(id string) spendersTurns {
	t, _ := s.turns.LoadOrStore(id, spendersTurns{newBound("the limit of turn "+id, spendersTurn), newBound("the number of payments of turn "+id, spendersPerTurn)})
	return t.(spendersTurns)
}

func (s *spending) progress(began time.Time) {
	done, gone := s.done.Load(), time.Since(began)
	left := time.Duration(float64(gone) / float64(max(1, done)) * float64(max(0, s.operations-done)))
	s.t.Logf("%d of %d operations, %d kills; %s gone, about %s left", done, s.operations, s.kills.Load(), gone.Round(time.Second), left.Round(time.Second))
}

func (s *spending) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "deposited %s, paid %s, %d holds granted, %d requests repeated after no answer, %d transactions verified; refused:",
		api.Micros(s.account.most.Load()), api.Micros(s.paid.Load()), s.grants.Load(), s.repeated.Load(), s.verified)
	for _, reason := range append(s.wanted(), api.ReasonVelocity) {
		fmt.Fprintf(&b, " %s %d", reason, s.refusals[reason].Load())
	}
	return b.String()
}
