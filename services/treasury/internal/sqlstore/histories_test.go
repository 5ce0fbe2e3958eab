package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// errCrash is the error of a call of the store during which the process ends.
var errCrash = &api.Error{Code: api.Unavailable, Message: "the process has crashed"}

// crashing is a store whose process ends at an await: before or after a call.
type crashing struct {
	ledger.Store
	awaits int // until the crash; 0: none is planned
}

func (c *crashing) await() error {
	if c.awaits == 0 {
		return nil
	}
	if c.awaits--; c.awaits == 0 {
		return errCrash
	}
	return nil
}

func (c *crashing) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	if err := c.await(); err != nil {
		return err
	}
	if err := c.Store.Update(ctx, keys, change); err != nil {
		return err
	}
	return c.await()
}

func (c *crashing) Transaction(ctx context.Context, id string) (ledger.Transaction, error) {
	if err := c.await(); err != nil {
		return ledger.Transaction{}, err
	}
	t, err := c.Store.Transaction(ctx, id)
	return t, errors.Join(err, c.await())
}

func (c *crashing) Due(ctx context.Context, at int64, limit int) ([]string, error) {
	if err := c.await(); err != nil {
		return nil, err
	}
	ids, err := c.Store.Due(ctx, at, limit)
	if err == nil {
		err = c.await()
	}
	return ids, err
}

// process is a ledger that a crash ends and a restart replaces.
type process struct {
	db    *sqldb.DB
	clock *clock
	store *crashing
	*ledger.Ledger
	stop func()
}

func (p *process) start() {
	p.store = &crashing{Store: sqlstore.New(p.db, nil)}
	p.Ledger = ledger.New(p.store, ledger.Options{Now: p.clock.now})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func(l *ledger.Ledger) { l.Run(ctx); close(done) }(p.Ledger)
	p.stop = func() { cancel(); <-done }
}

// do runs an operation that crashes at an await, if it has that many. After a crash the
// process is restarted and the operation repeated, as its caller does.
func (p *process) do(awaits int, op func() error) (crashed bool, err error) {
	p.store.awaits = awaits
	err = op()
	if errors.Is(err, errCrash) {
		p.stop()
		p.start()
		return true, op()
	}
	p.store.awaits = 0
	return false, err
}

// TestHistories runs random histories of operations in both assets, with crashes at any
// await, beside a single-threaded model, and verifies the ledger at the end. make
// histories runs 10,000 on each engine.
func TestHistories(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		p := &process{db: db, clock: newClock()}
		p.start()
		defer func() { p.stop() }()
		var worlds, operations, crashes atomic.Int64
		rapid.Check(t, func(t *rapid.T) {
			n, c := history(t, p, worlds.Add(1))
			operations.Add(int64(n))
			crashes.Add(int64(c))
		})
		r, err := p.Verify(t.Context(), nil)
		if err != nil || len(r.Faults) != 0 {
			t.Errorf("verify: got %+v, %v, want no faults", r, err)
		}
		t.Logf("%d histories, %d operations, %d crashes, %d transactions", worlds.Load(), operations.Load(), crashes.Load(), r.Transactions)
	})
}

// history runs one history with agents and ids of its own.
func history(t *rapid.T, p *process, world int64) (operations, crashes int) {
	ctx := context.Background()
	agents := []string{fmt.Sprintf("a-%d", world), fmt.Sprintf("b-%d", world)}
	m := newBook(p.clock.now().UnixMicro())
	for _, a := range agents {
		if err := p.Open(ctx, a); err != nil {
			t.Fatalf("open: %v", err)
		}
	}
	agent, amount, number := rapid.SampledFrom(agents), rapid.Int64Range(1, 30), rapid.IntRange(0, 4)
	micros := func(what string) api.Micros { return api.Micros(amount.Draw(t, what)) }
	id := func(kind string) string { return fmt.Sprintf("%s-%d-%d", kind, world, number.Draw(t, kind)) }
	asset := func() api.Asset { return rapid.SampledFrom([]api.Asset{api.Credits, api.USDC}).Draw(t, "asset") }
	steps := rapid.IntRange(5, 30).Draw(t, "steps")
	for range steps {
		var op func() error
		var want func() (api.Code, string)
		kind := rapid.SampledFrom([]string{"hold", "hold", "hold", "settle", "settle", "release", "deposit", "deposit", "transfer", "expire", "purchase", "sale", "reversal"}).Draw(t, "operation")
		switch kind {
		case "hold":
			r := ledger.HoldRequest{ID: id("h"), Agent: agent.Draw(t, "agent"), Asset: asset(), Amount: micros("amount"), ExpiresAt: m.now + amount.Draw(t, "life")*1_000_000}
			op, want = func() error { _, err := p.Hold(ctx, r); return err }, func() (api.Code, string) { return m.hold(r) }
		case "settle":
			r := ledger.SettleRequest{ID: id("h"), Amount: micros("amount") - 1}
			r.Payee = m.payee(r.ID, agents, rapid.Bool().Draw(t, "to an agent"))
			op, want = func() error { _, err := p.Settle(ctx, r); return err }, func() (api.Code, string) { return m.settle(r), "" }
		case "release":
			h := id("h")
			op, want = func() error { _, err := p.Release(ctx, h, "", ""); return err }, func() (api.Code, string) { return m.release(h), "" }
		case "deposit":
			r := ledger.DepositRequest{ID: id("d"), Agent: agent.Draw(t, "agent"), Amount: 2 * micros("amount"), Source: "faucet"}
			if asset() == api.USDC {
				r.Source = dev
			}
			op, want = func() error { _, err := p.Deposit(ctx, r); return err }, func() (api.Code, string) { return m.deposit(r), "" }
		case "transfer":
			from := rapid.IntRange(0, 1).Draw(t, "from")
			r := ledger.TransferRequest{ID: id("t"), From: agents[from], To: agents[1-from], Amount: micros("amount")}
			op, want = func() error { _, err := p.Transfer(ctx, r); return err }, func() (api.Code, string) { return m.transfer(r) }
		case "expire":
			m.now += amount.Draw(t, "seconds") * 1_000_000
			p.clock.set(m.now)
			op, want = func() error { _, err := p.Expire(ctx); return err }, func() (api.Code, string) { m.expire(); return "", "" }
		case "purchase":
			r := ledger.PurchaseRequest{Hold: id("h"), Agent: agent.Draw(t, "agent"), USDC: micros("amount"), Credits: micros("credits")}
			op, want = func() error { _, err := p.Purchase(ctx, r); return err }, func() (api.Code, string) { return m.purchase(r), "" }
		case "sale":
			r := ledger.PurchaseRequest{ID: id("p"), Source: dev, Agent: agent.Draw(t, "agent"), USDC: micros("amount"), Credits: micros("credits")}
			op, want = func() error { _, err := p.Purchase(ctx, r); return err }, func() (api.Code, string) { return m.purchase(r), "" }
		case "reversal":
			of := rapid.SampledFrom([]string{"d", "p", "t", "h"}).Draw(t, "of")
			tx := id(of)
			if of == "h" {
				tx += rapid.SampledFrom([]string{"/settle", "/settle", "/hold"}).Draw(t, "part")
			}
			op, want = func() error { _, err := p.Reverse(ctx, ledger.ReverseRequest{ID: tx}); return err }, func() (api.Code, string) { return m.reverse(tx), "" }
		}
		crashed, err := p.do(rapid.SampledFrom([]int{0, 0, 1, 2, 3, 4}).Draw(t, "crash"), op)
		if crashed {
			crashes++
		}
		code, reason := want()
		if api.CodeOf(err) != code || api.ReasonOf(err) != reason {
			t.Fatalf("%s (crashed: %t): got error %v, want code %q and reason %q", kind, crashed, err, code, reason)
		}
		for _, a := range agents {
			got, err := p.Balance(ctx, a)
			got.Entries = 0
			if want := m.balance(a); err != nil || got != want {
				t.Fatalf("after %s (crashed: %t), %s: got %+v, %v, want %+v", kind, crashed, a, got, err, want)
			}
		}
	}
	return steps, crashes
}
