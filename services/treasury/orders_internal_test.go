package treasury

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/treasury/internal/conway"
	"github.com/anima-run/anima/services/treasury/internal/conway/conwaytest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/orders"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// bureau is an [outside] with a clock, whose pauses take no time.
type bureau struct {
	*outside

	mu sync.Mutex
	at time.Time
}

func (b *bureau) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

func (b *bureau) wait(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = b.at.Add(d)
}

func newBureau(t *testing.T, db *sqldb.DB, s *conwaytest.Server) *bureau {
	t.Helper()
	b := &bureau{at: time.Unix(1_790_000_000, 0)}
	store := sqlstore.New(db, nil)
	l := ledger.New(store, ledger.Options{Now: b.clock})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	c, err := conway.New(conway.Options{URL: s.URL, Key: conwaytest.Key, Now: b.clock, Pause: func(ctx context.Context, d time.Duration) error {
		b.wait(d)
		return ctx.Err()
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b.outside = &outside{handlers: &handlers{log: slog.New(slog.DiscardHandler), now: b.clock, ledger: l}, client: c, store: store}
	if err := l.Open(t.Context(), "lucky"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Deposit(t.Context(), ledger.DepositRequest{ID: "fund", Agent: "lucky", Amount: 100 * api.Dollar, Source: faucet}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bureau) rent(ctx context.Context, key string) (string, error) {
	return b.createSandbox(ctx, executor.Call{Agent: "lucky", Turn: "r.1", Key: key})
}

func (b *bureau) has(t *testing.T, available, held api.Micros) {
	t.Helper()
	got, err := b.ledger.Balance(t.Context(), "lucky")
	if err != nil || got.Available != available || got.Held != held {
		t.Errorf("lucky has %s and %s held (%v), want %s and %s", got.Available, got.Held, err, available, held)
	}
}

// TestUnclearOrders checks that an order whose answers are lost keeps its money held, and
// is completed by the reconciliation, once.
func TestUnclearOrders(t *testing.T) {
	t.Parallel()
	lost, failed := conwaytest.Fault{Lost: true}, conwaytest.Fault{Status: 500}
	for name, tt := range map[string]struct {
		faults []conwaytest.Fault // of the requests that create
		boxes  int                // rented before the reconciliation
	}{
		"executed, answers lost": {[]conwaytest.Fault{lost, lost, lost, lost}, 1},
		"not executed":           {[]conwaytest.Fault{failed, failed, failed, failed}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				s := conwaytest.Start(t, 100_000)
				b, ctx := newBureau(t, db, s), t.Context()
				s.Fail(append([]conwaytest.Fault{{}}, tt.faults...)...) // the first request asks for the prices
				if _, err := b.rent(ctx, "k1"); api.CodeOf(err) != api.Unavailable {
					t.Fatalf("got %v, want Unavailable", err)
				}
				b.has(t, 95*api.Dollar, 5*api.Dollar)
				if _, boxes, _ := s.Balance(); boxes != tt.boxes {
					t.Fatalf("%d sandboxes, want %d", boxes, tt.boxes)
				}
				b.round(ctx) // the order is young
				b.has(t, 95*api.Dollar, 5*api.Dollar)
				b.wait(orderRest + time.Minute)
				for range 2 {
					b.round(ctx)
					b.has(t, 95*api.Dollar, 0)
				}
				if cents, boxes, _ := s.Balance(); boxes != 1 || cents != 99_500 {
					t.Errorf("at Conway: %d cents, %d sandboxes; want 99500 and 1", cents, boxes)
				}
				if own, err := b.store.Things(ctx, "lucky", orders.Sandbox); err != nil || len(own) != 1 || own[0].ID != "sb_1" {
					t.Errorf("lucky owns %+v, %v; want sb_1", own, err)
				}
				if got, err := b.rent(ctx, "k1"); err != nil || got == "" {
					t.Errorf("the call again: got %q, %v", got, err)
				}
			})
		})
	}
}

// TestOrderWithoutEnd checks that an order is paid when the provider has not answered for
// a day, before its hold expires.
func TestOrderWithoutEnd(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := conwaytest.Start(t, 100_000)
		b, ctx := newBureau(t, db, s), t.Context()
		failed := make([]conwaytest.Fault, 1000)
		for i := range failed {
			failed[i].Status = 500
		}
		failed[0].Status = 0
		s.Fail(failed...)
		if _, err := b.rent(ctx, "k1"); api.CodeOf(err) != api.Unavailable {
			t.Fatalf("got %v, want Unavailable", err)
		}
		for range 3 {
			b.wait(time.Hour)
			b.round(ctx)
			b.has(t, 95*api.Dollar, 5*api.Dollar)
		}
		b.wait(orderLife - orderLead - 2*time.Hour)
		b.round(ctx)
		b.has(t, 95*api.Dollar, 0)
		before := len(s.Requests(""))
		if _, err := b.rent(ctx, "k1"); api.CodeOf(err) != api.Invalid {
			t.Errorf("the call afterwards: got %v, want Invalid", err)
		}
		if after := len(s.Requests("")); after != before {
			t.Errorf("an ended order was sent again")
		}
	})
}

// TestOrderPaidLater checks that an order that ended and was not paid is paid by the
// reconciliation.
func TestOrderPaidLater(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBureau(t, db, conwaytest.Start(t, 100_000)), t.Context()
		for i, status := range []orders.Status{orders.Done, orders.Refused} {
			w := orders.Order{ID: string(status), Agent: "lucky", Kind: orders.Domain, Request: "{}", Price: api.Dollar, CreatedAt: b.clock().UnixMicro()}
			if _, err := b.store.AddOrder(ctx, w); err != nil {
				t.Fatal(err)
			}
			if _, err := b.ledger.Hold(ctx, ledger.HoldRequest{ID: w.Hold(), Agent: "lucky", Amount: w.Price, ExpiresAt: b.clock().Add(orderLife).UnixMicro()}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.store.EndOrder(ctx, w.ID, status, "ended", nil); err != nil {
				t.Fatal(err)
			}
			b.has(t, 100*api.Dollar-api.Micros(i+1)*api.Dollar, api.Micros(i+1)*api.Dollar)
		}
		b.wait(orderRest + time.Second)
		b.round(ctx)
		b.has(t, 99*api.Dollar, 0)
		if open, err := b.store.OpenOrders(ctx, b.clock().UnixMicro(), 10); err != nil || len(open) != 0 {
			t.Errorf("open: got %+v, %v; want none", open, err)
		}
	})
}

// TestOrderAfterADayOffline leaves an order without an answer, or without its payment, and
// continues after its hold has expired: it is paid, and what it brought is the agent's.
func TestOrderAfterADayOffline(t *testing.T) {
	t.Parallel()
	lost, failed := conwaytest.Fault{Lost: true}, conwaytest.Fault{Status: 500}
	for name, tt := range map[string]struct {
		fault  conwaytest.Fault
		call   bool // the call is repeated
		things int
	}{
		"executed": {lost, false, 1}, "executed, called": {lost, true, 1},
		"not executed": {failed, false, 0}, "not executed, called": {failed, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				s := conwaytest.Start(t, 100_000)
				b, ctx := newBureau(t, db, s), t.Context()
				s.Fail(conwaytest.Fault{}, tt.fault, tt.fault, tt.fault, tt.fault)
				if _, err := b.rent(ctx, "k1"); api.CodeOf(err) != api.Unavailable {
					t.Fatalf("got %v, want Unavailable", err)
				}
				b.wait(orderLife + time.Hour)
				if n, err := b.ledger.Expire(ctx, 0); n != 1 || err != nil {
					t.Fatalf("expire: got %d, %v", n, err)
				}
				b.has(t, 100*api.Dollar, 0)
				if tt.call { // before the first round
					_, err := b.rent(ctx, "k1")
					if want := map[int]api.Code{0: api.Invalid, 1: ""}[tt.things]; api.CodeOf(err) != want {
						t.Errorf("the call again: got %v, want %q", err, want)
					}
				}
				for range 2 {
					b.round(ctx)
					b.has(t, 95*api.Dollar, 0)
				}
				if own, err := b.store.Things(ctx, "lucky", orders.Sandbox); err != nil || len(own) != tt.things {
					t.Errorf("lucky owns %+v, %v; want %d", own, err, tt.things)
				}
				if open, err := b.store.OpenOrders(ctx, b.clock().UnixMicro(), 10); err != nil || len(open) != 0 {
					t.Errorf("open: got %+v, %v; want none", open, err)
				}
			})
		})
	}
}

// TestLateHoldExpires stops treasury, twice for more than a day, before it has paid an order:
// after the order has ended, and after its late hold.
func TestLateHoldExpires(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBureau(t, db, conwaytest.Start(t, 100_000)), t.Context()
		w := orders.Order{ID: "k1", Agent: "lucky", Kind: orders.Domain, Request: "{}", Price: api.Dollar, CreatedAt: b.clock().UnixMicro()}
		if _, err := b.store.AddOrder(ctx, w); err != nil {
			t.Fatal(err)
		}
		late := holdRequest(ctx, w)
		late.ID, late.Owed = late.ID+"/late", true
		for i, hold := range []ledger.HoldRequest{holdRequest(ctx, w), late} {
			hold.ExpiresAt = b.clock().Add(orderLife).UnixMicro()
			if _, err := b.ledger.Hold(ctx, hold); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				if _, err := b.store.EndOrder(ctx, w.ID, orders.Done, "ended", nil); err != nil {
					t.Fatal(err)
				}
			}
			b.wait(orderLife + time.Hour)
			if n, err := b.ledger.Expire(ctx, 0); n != 1 || err != nil {
				t.Fatalf("expire: got %d, %v", n, err)
			}
		}
		for range 2 {
			b.round(ctx)
			b.has(t, 99*api.Dollar, 0)
		}
		if open, err := b.store.OpenOrders(ctx, b.clock().UnixMicro(), 10); err != nil || len(open) != 0 {
			t.Errorf("open: got %+v, %v; want none", open, err)
		}
	})
}

// TestDomainOfAnotherOrder continues an order of a domain after its process has ended before
// it sent the order. Another agent has ordered the domain as well: it has the domain and pays
// for it, and the first agent pays nothing.
func TestDomainOfAnotherOrder(t *testing.T) {
	t.Parallel()
	order := func(b *bureau, agent string) orders.Order {
		return orders.Order{ID: "of-" + agent, Agent: agent, Kind: orders.Domain, Request: `{"domain":"lab.com","years":1}`, Price: 12 * api.Dollar, CreatedAt: b.clock().UnixMicro()}
	}
	leave := func(t *testing.T, b *bureau) { // before it is sent
		t.Helper()
		w := order(b, "bob")
		if _, err := b.store.AddOrder(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := b.holdPrice(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		b.wait(time.Second)
	}
	lost := conwaytest.Fault{Lost: true}
	for name, tt := range map[string]struct {
		later  bool // bob orders after lucky
		faults []conwaytest.Fault
		wait   time.Duration
	}{
		"registered":                   {wait: orderRest + time.Minute},
		"registered, a day offline":    {wait: orderLife - orderLead + time.Minute},
		"without an answer":            {faults: []conwaytest.Fault{lost, lost, lost, lost}, wait: orderRest + time.Minute},
		"without an answer, the first": {faults: []conwaytest.Fault{lost, lost, lost, lost}, wait: orderRest + time.Minute, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				s := conwaytest.Start(t, 100_000)
				b, ctx := newBureau(t, db, s), t.Context()
				if err := b.ledger.Open(ctx, "bob"); err != nil {
					t.Fatal(err)
				}
				if _, err := b.ledger.Deposit(ctx, ledger.DepositRequest{ID: "bob's", Agent: "bob", Amount: 100 * api.Dollar, Source: faucet}); err != nil {
					t.Fatal(err)
				}
				if !tt.later {
					leave(t, b)
				}
				s.Fail(tt.faults...)
				if _, err := b.order(ctx, order(b, "lucky")); (err != nil) != (tt.faults != nil) {
					t.Fatalf("the order of lucky: %v", err)
				}
				if tt.later {
					leave(t, b)
				}
				b.wait(tt.wait)
				for range 2 {
					b.round(ctx)
				}
				b.has(t, 88*api.Dollar, 0)
				if got, err := b.ledger.Balance(ctx, "bob"); err != nil || got.Available != 100*api.Dollar || got.Held != 0 {
					t.Errorf("bob has %s and %s held (%v), want $100 and nothing held", got.Available, got.Held, err)
				}
				if got, _, err := b.store.Order(ctx, "of-bob"); err != nil || got.Status != orders.Refused || !got.Paid {
					t.Errorf("the order of bob: got %+v, %v; want it refused", got, err)
				}
				if thing, ok, err := b.store.Thing(ctx, orders.Domain, "lab.com"); err != nil || !ok || thing.Agent != "lucky" {
					t.Errorf("the domain: got %+v, %t, %v; want it to be of lucky", thing, ok, err)
				}
			})
		})
	}
}

// TestHoldsThatExpiredBeforeTheStart checks that a hold that expired while treasury did not
// run can still be settled after the start, and is released when nothing settles it.
func TestHoldsThatExpiredBeforeTheStart(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBureau(t, db, conwaytest.Start(t, 100_000)), t.Context()
		hold := func(id string, life time.Duration) {
			t.Helper()
			if _, err := b.ledger.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: api.Dollar, ExpiresAt: b.clock().Add(life).UnixMicro()}); err != nil {
				t.Fatal(err)
			}
		}
		hold("settled", time.Minute)
		hold("left", time.Minute)
		b.wait(time.Hour)
		started := b.clock()
		hold("later", time.Second)
		b.wait(2 * time.Second)
		b.expire(ctx, started) // "later" only
		b.has(t, 98*api.Dollar, 2*api.Dollar)
		if _, err := b.ledger.Settle(ctx, ledger.SettleRequest{ID: "settled", Amount: api.Dollar, Payee: provider}); err != nil {
			t.Errorf("settled after the start: %v", err)
		}
		b.wait(sweepLead)
		b.expire(ctx, started)
		b.has(t, 99*api.Dollar, 0)
	})
}

// TestReturnedSandbox checks that a sandbox that was given back is kept with its agent, also
// if the provider has used its id again.
func TestReturnedSandbox(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBureau(t, db, conwaytest.Start(t, 100_000)), t.Context()
		for i, agent := range []string{"lucky", "bob"} {
			w := orders.Order{ID: agent, Agent: agent, Kind: orders.Sandbox, Request: "{}", Price: 1, CreatedAt: int64(i + 1)}
			if _, err := b.store.AddOrder(ctx, w); err != nil {
				t.Fatal(err)
			}
			box := orders.Thing{Kind: orders.Sandbox, ID: "sb_1", Agent: agent, Name: agent, CreatedAt: w.CreatedAt}
			if _, err := b.store.EndOrder(ctx, w.ID, orders.Done, "rented", &box); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := b.store.ReturnSandbox(ctx, "sb_1"); err != nil {
					t.Fatal(err)
				}
			}
			box.Kind = orders.Returned
			if got, ok, err := b.store.Thing(ctx, orders.Returned, "sb_1"); err != nil || !ok || got != box {
				t.Errorf("got %+v, %t, %v; want %+v", got, ok, err, box)
			}
			if got, ok, err := b.store.Thing(ctx, orders.Sandbox, "sb_1"); err != nil || ok {
				t.Errorf("rented: got %+v, %t, %v; want none", got, ok, err)
			}
		}
	})
}

// TestOrderThatWasNeverHeld checks that an order of a process that ended before it held the
// price is not paid, when treasury did not run for a day afterwards.
func TestOrderThatWasNeverHeld(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBureau(t, db, conwaytest.Start(t, 100_000)), t.Context()
		w := orders.Order{ID: "k1", Agent: "lucky", Kind: orders.Sandbox, Request: `{"name":"a"}`, Price: api.Dollar, CreatedAt: b.clock().UnixMicro()}
		if _, err := b.store.AddOrder(ctx, w); err != nil {
			t.Fatal(err)
		}
		b.wait(orderLife - orderLead + time.Minute)
		b.round(ctx)
		b.has(t, 100*api.Dollar, 0)
		if got, _, err := b.store.Order(ctx, "k1"); err != nil || got.Status != orders.Refused || !got.Paid {
			t.Errorf("got %+v, %v, want it refused, without a payment", got, err)
		}
	})
}

// TestOrderWaitsForTheBreaker checks that an order without a clear answer stays open while
// the client does not send it.
func TestOrderWaitsForTheBreaker(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := conwaytest.Start(t, 100_000)
		b, ctx := newBureau(t, db, s), t.Context()
		failed := conwaytest.Fault{Status: 500}
		s.Fail(conwaytest.Fault{}, failed, failed, failed, failed)
		if _, err := b.rent(ctx, "k1"); api.CodeOf(err) != api.Unavailable {
			t.Fatalf("got %v, want Unavailable", err)
		}
		b.wait(orderRest + time.Second)
		s.Fail(conwaytest.Fault{}, failed) // the list, and the fifth failure in a row
		for range 3 {
			b.round(ctx)
			b.has(t, 95*api.Dollar, 5*api.Dollar)
		}
		b.wait(2 * time.Minute)
		b.round(ctx)
		b.has(t, 95*api.Dollar, 0)
		if _, boxes, _ := s.Balance(); boxes != 1 {
			t.Errorf("%d sandboxes, want 1", boxes)
		}
	})
}
