package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// errCrash is the error of a step during which the process ends, and of all later ones.
var errCrash = &api.Error{Code: api.Unavailable, Message: "the process has crashed"}

// fuse ends a process at an await, before or after a step. From then on no step of the
// process has an effect.
type fuse struct {
	awaits int // until the crash; 0: none is planned
	blown  bool
}

func (f *fuse) await() error {
	if !f.blown && f.awaits > 0 {
		f.awaits--
		f.blown = f.awaits == 0
	}
	if f.blown {
		return errCrash
	}
	return nil
}

// step does a step with an await before and after it.
func (f *fuse) step(do func() error) error {
	if err := f.await(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.await()
}

// crashing is the store of the ledger in a process with a fuse.
type crashing struct {
	ledger.Store
	*fuse
}

func (c *crashing) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	return c.step(func() error { return c.Store.Update(ctx, keys, change) })
}

func (c *crashing) Transaction(ctx context.Context, id string) (t ledger.Transaction, err error) {
	err = c.step(func() (err error) {
		t, err = c.Store.Transaction(ctx, id)
		return err
	})
	return t, err
}

func (c *crashing) Due(ctx context.Context, after, at int64, limit int) (ids []string, err error) {
	err = c.step(func() (err error) {
		ids, err = c.Store.Due(ctx, after, at, limit)
		return err
	})
	return ids, err
}

// process is a ledger and a payer that a crash ends and a restart replaces.
type process struct {
	db     *sqldb.DB
	clock  *clock
	market *bazaar
	fuse   *fuse
	store  *sqlstore.Store
	*ledger.Ledger
	payer *pay.Payer
	stop  func()
}

func (p *process) start() {
	p.fuse, p.store = &fuse{}, sqlstore.New(p.db, nil)
	p.Ledger = ledger.New(&crashing{p.store, p.fuse}, ledger.Options{Now: p.clock.now})
	p.payer = pay.New(pay.Options{
		Store: crashingPayments{p.store, p.fuse}, Money: usdc{p.Ledger}, Signer: crashingSigner{p.market, p.fuse}, Chain: p.market,
		Networks: x402.Networks{x402.BaseSepolia}, Outbound: safehttp.Options{AllowPrivate: true}, Log: slog.New(slog.DiscardHandler), Now: p.clock.now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func(l *ledger.Ledger) { l.Run(ctx); close(done) }(p.Ledger)
	p.stop = func() { cancel(); <-done; p.payer.Close() }
}

// do runs an operation that crashes at an await, if it has that many. After a crash the
// process is restarted, its claims end, the operation is repeated, as its caller does, and
// the payments are reconciled.
func (p *process) do(awaits int, op func() error, ids []string) (crashed bool, err error) {
	ctx := context.Background()
	p.fuse.awaits = awaits
	err = op()
	p.fuse.awaits = 0
	if !p.fuse.blown {
		return false, err
	}
	p.stop()
	p.start()
	for _, id := range ids {
		row, err := p.store.Payment(ctx, id)
		if api.CodeOf(err) == api.NotFound {
			continue
		}
		claim := row.BusyUntil
		row.BusyUntil = 0
		if err = errors.Join(err, p.store.SavePayment(ctx, row, claim)); err != nil {
			return true, err
		}
	}
	err = op()
	_, rerr := p.payer.Reconcile(ctx)
	return true, errors.Join(err, rerr)
}

// TestHistories runs random histories of operations in both assets, with limits, with
// payments over x402 to sellers that do not always settle them, with reversals and
// reorganizations of the chain, and with crashes at any await, beside a single-threaded
// model. At the end of a history the ledger
// is compared with the chain, and at the end of all it is verified. make histories runs
// 10,000 on each engine.
func TestHistories(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		p := &process{db: db, clock: newClock()}
		p.market = newBazaar(t, p.clock.now)
		p.start()
		defer func() { p.stop() }()
		var worlds int64
		counts := map[string]int{}
		rapid.Check(t, func(t *rapid.T) {
			worlds++
			if worlds%500 == 0 && db.Engine == sqldb.Postgres {
				// The cluster of the tests has no autovacuum, which has the plans of the
				// statements renewed when the tables grow.
				if _, err := db.ExecContext(context.Background(), "analyze"); err != nil {
					t.Fatal(err)
				}
			}
			newHistory(t, p, worlds, counts).run()
		})
		r, err := p.Verify(t.Context(), nil)
		if err != nil || len(r.Faults) != 0 {
			t.Errorf("verify: got %+v, %v, want no faults", r, err)
		}
		t.Logf("%d histories, %d transactions, %v", worlds, r.Transactions, counts)
		for _, what := range []string{"crash", "limited", "repeated", "paid after a crash", "bill settled", "bill expired", "bill reopened"} {
			if counts[what] == 0 && worlds >= 100 {
				t.Errorf("no history has: %s", what)
			}
		}
	})
}

// history is one history, with agents and ids of its own.
type history struct {
	t      *rapid.T
	p      *process
	world  int64
	agents []string
	book   *book
	counts map[string]int
}

func newHistory(t *rapid.T, p *process, world int64, counts map[string]int) *history {
	h := &history{t: t, p: p, world: world, counts: counts, agents: []string{fmt.Sprintf("a-%d", world), fmt.Sprintf("b-%d", world)}}
	h.book = newBook(p.clock.now().UnixMicro())
	p.market.open()
	for i, a := range h.agents {
		if err := p.Open(context.Background(), a); err != nil {
			t.Fatalf("open: %v", err)
		}
		for _, source := range []string{"faucet", dev} {
			r := ledger.DepositRequest{ID: "begin-" + source + "-" + a, Agent: a, Amount: api.Micros(rapid.IntRange(1, 200).Draw(t, "begins with")), Source: source}
			if _, err := p.Deposit(context.Background(), r); err != nil {
				t.Fatalf("deposit: %v", err)
			}
			h.book.deposit(r)
		}
		if rapid.IntRange(0, 3).Draw(t, "unlimited") == 0 {
			continue
		}
		l := randomLimits(t, world)
		l.ApproveAbove = nil // see TestLimitsRandomly
		if l.Payees != nil {
			l.Payees = []string{"0x1", marketPayee, ledger.Available(h.agents[1-i])}[rapid.IntRange(0, 2).Draw(t, "payees"):]
		}
		if i > 0 && rapid.Bool().Draw(t, "child") {
			l.Parent = h.agents[0]
		}
		if _, err := p.SetLimits(context.Background(), ledger.SetLimitsRequest{ID: "limits-" + a, Agent: a, Limits: l}); err != nil {
			t.Fatalf("limits: %v", err)
		}
		h.book.rules.limits[a] = l
	}
	return h
}

func (h *history) run() {
	var ids []string
	for i := range 5 {
		ids = append(ids, fmt.Sprintf("x-%d-%d", h.world, i))
	}
	for range rapid.IntRange(5, 40).Draw(h.t, "steps") {
		kind := rapid.SampledFrom(operations).Draw(h.t, "operation")
		s := h.step(kind)
		awaits := 0
		if rapid.Bool().Draw(h.t, "crash") {
			awaits = rapid.IntRange(1, 4).Draw(h.t, "awaits")
			if kind == "pay" {
				awaits = rapid.IntRange(1, 26).Draw(h.t, "awaits of a payment")
			}
		}
		crashed, err := h.p.do(awaits, s.op, ids)
		code, reasons := s.want()
		if api.CodeOf(err) != code || len(reasons) > 0 && !slices.Contains(reasons, api.ReasonOf(err)) {
			h.t.Fatalf("%s (crashed: %t): got error %v, want code %q and a reason of %q", kind, crashed, err, code, reasons)
		}
		h.count(kind, crashed, err)
		h.compare(fmt.Sprintf("%s (crashed: %t)", kind, crashed))
	}
	h.p.market.Open(false)
	h.pass(3600) // every payment has its outcome, and the ledger has what the chain has
	if _, err := h.p.payer.Reconcile(context.Background()); err != nil {
		h.t.Fatal(err)
	}
	h.compare("the end")
	settled := 0
	for id, q := range h.book.bills {
		if q.state == api.PaymentUnknown || q.state == api.PaymentSettled != h.p.market.settled(q.nonce) || q.validBefore != 0 && !q.posted {
			h.t.Fatalf("payment %s: got %+v, and %t on the chain", id, q, h.p.market.settled(q.nonce))
		}
		if q.state == api.PaymentSettled {
			settled++
		}
		h.counts["bill "+string(q.state)]++
		if q.reopened > 0 {
			h.counts["bill reopened"]++
		}
	}
	if n := h.p.market.Transfers(); n != settled+h.p.market.removed {
		h.t.Fatalf("%d payments are settled, and the chain made %d transfers, of which %d were removed", settled, n, h.p.market.removed)
	}
	for _, a := range h.agents {
		if b, want := h.book.balance(a), h.book.usdc(a, h.p.market); b.USDC+b.USDCHeld-b.USDCDebt != want {
			h.t.Fatalf("%s has %+v in the ledger, and %d of USDC outside", a, b, want)
		}
	}
}

func (h *history) count(kind string, crashed bool, err error) {
	h.counts[kind]++
	if crashed {
		h.counts["crash"]++
	}
	if crashed && kind == "pay" && err == nil {
		h.counts["paid after a crash"]++
	}
	if reason := api.ReasonOf(err); reason != "" && reason != api.ReasonInsufficient && reason != api.ReasonRefused && reason != api.ReasonExpired {
		h.counts["limited"]++
	}
}

// compare compares the payments with the chain and the balances with the model.
func (h *history) compare(after string) {
	for id := range h.book.bills {
		row, err := h.p.store.Payment(context.Background(), id)
		if err == nil {
			err = h.book.observe(&row, h.p.market)
		}
		if err != nil {
			h.t.Fatalf("after %s: %v", after, err)
		}
	}
	for _, a := range h.agents {
		got, err := h.p.Balance(context.Background(), a)
		got.Entries = 0
		if want := h.book.balance(a); err != nil || got != want {
			h.t.Fatalf("after %s, %s: got %+v, %v, want %+v", after, a, got, err, want)
		}
	}
}
