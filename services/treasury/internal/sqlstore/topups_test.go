package sqlstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/topup"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// market sells credits to one agent. Its fields are the world that an [topup.Actor] sees.
type market struct {
	mu            sync.Mutex
	now           time.Time
	credits, usdc api.Micros
	unknown       error           // of the balance of USDC
	fails         []error         // of the next payments
	takes         bool            // the seller takes the money and brings nothing
	paid          map[string]bool // by id
	gate          chan struct{}   // not nil: payments wait for it
}

func (m *market) actor(store topup.Store) *topup.Actor {
	locked := func(f func()) { m.mu.Lock(); defer m.mu.Unlock(); f() }
	return &topup.Actor{Options: topup.Options{
		Store: store, Log: slog.New(slog.DiscardHandler),
		Now:     func() (t time.Time) { locked(func() { t = m.now }); return t },
		Credits: func(context.Context, string) (c api.Micros, _ error) { locked(func() { c = m.credits }); return c, nil },
		USDC: func(context.Context, string) (c api.Micros, err error) {
			locked(func() { c, err = m.usdc, m.unknown })
			return c, err
		},
		Pay: func(_ context.Context, id, _ string, usd int64) (err error) {
			if m.gate != nil {
				<-m.gate
			}
			locked(func() {
				if len(m.fails) > 0 {
					err, m.fails = m.fails[0], m.fails[1:]
				}
				if m.paid[id] || api.CodeOf(err) != "" && api.CodeOf(err) != api.Unavailable {
					return
				}
				m.paid[id] = true // also if the answer is lost
				m.usdc -= api.Micros(usd) * api.Dollar
				if !m.takes {
					m.credits += api.Micros(usd) * api.Dollar
				}
			})
			return err
		},
	}}
}

func newMarket(credits, usdc api.Micros) *market {
	return &market{now: time.UnixMicro(start), credits: credits, usdc: usdc, paid: map[string]bool{}}
}

func buy(a *topup.Actor, id string, usd int64) (topup.Purchase, error) {
	return a.Buy(context.Background(), topup.Purchase{ID: id, Agent: "lucky", USD: usd, Cause: "tool"})
}

// TestTopups tests an actor with its store on every engine.
func TestTopups(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *market, *sqlstore.Store){
		"buy": func(t *testing.T, m *market, s *sqlstore.Store) {
			a := m.actor(s)
			for range 2 { // the second one is the same purchase
				p, err := buy(a, "one", 5)
				if err != nil || p.State != topup.Done || p.Before != 10*api.Cent || p.After != 510*api.Cent {
					t.Errorf("got %+v, %v", p, err)
				}
			}
			if _, err := buy(a, "one", 25); api.CodeOf(err) != api.Conflict {
				t.Errorf("another amount with the id: got %v, want Conflict", err)
			}
			if _, err := buy(a, "two", 6); api.CodeOf(err) != api.Invalid {
				t.Errorf("an amount that is not sold: got %v, want Invalid", err)
			}
			if _, err := buy(a, "three", 25); api.CodeOf(err) != api.Denied {
				t.Errorf("too little USDC: got %v, want Denied", err)
			}
			if m.usdc != 7*api.Dollar {
				t.Errorf("the wallet has %s, want $7.00", m.usdc)
			}
		},
		"unknown balance": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.unknown = api.Errorf(api.Unavailable, "rpc down")
			if _, err := buy(m.actor(s), "one", 5); api.CodeOf(err) != api.Unavailable {
				t.Errorf("got %v, want Unavailable", err)
			}
			m.actor(s).Round(t.Context())
			if len(m.paid) != 0 {
				t.Error("credits were bought on an unknown balance")
			}
		},
		"triggered": func(t *testing.T, m *market, s *sqlstore.Store) {
			a, ctx := m.actor(s), t.Context()
			trigger := func(what string, n topup.Need, bought bool, usdc api.Micros) {
				t.Helper()
				n.Agent, n.Cause, m.now = "lucky", "test", m.now.Add(time.Second)
				got, why, err := a.Trigger(ctx, n)
				if got != bought || err != nil || m.usdc != usdc || !got && why == "" {
					t.Errorf("%s: got %t, %q, %v and %s of USDC; want %t and %s", what, got, why, err, m.usdc, bought, usdc)
				}
			}
			m.credits, m.usdc = api.Dollar, 40*api.Dollar
			trigger("not at a low tier", topup.Need{}, false, 40*api.Dollar)
			trigger("refused", topup.Need{Refused: true}, true, 35*api.Dollar)
			trigger("again within a minute", topup.Need{Refused: true}, true, 35*api.Dollar) // those credits may be new for the caller
			m.now = m.now.Add(topup.Cooldown)
			trigger("what covers the need", topup.Need{Refused: true, Missing: 6 * api.Dollar}, true, 10*api.Dollar)
			m.now = m.now.Add(topup.Cooldown)
			trigger("more than the wallet has", topup.Need{Refused: true, Missing: 26 * api.Dollar}, false, 10*api.Dollar)
			m.credits = 10 * api.Cent
			m.fails = []error{api.Errorf(api.Denied, "sold out")}
			if _, _, err := a.Trigger(ctx, topup.Need{Agent: "lucky", Cause: "test"}); api.CodeOf(err) != api.Denied {
				t.Errorf("refused by the seller: got %v, want Denied", err)
			}
			trigger("after the refusal of the seller", topup.Need{}, false, 10*api.Dollar)
			m.now = m.now.Add(topup.Cooldown)
			trigger("at a low tier", topup.Need{}, true, 5*api.Dollar)
			m.usdc = 4 * api.Dollar
			m.now = m.now.Add(topup.Cooldown)
			trigger("too little USDC", topup.Need{Refused: true}, false, 4*api.Dollar)
			m.unknown = api.Errorf(api.Unavailable, "rpc down")
			if _, _, err := a.Trigger(ctx, topup.Need{Agent: "lucky", Refused: true}); api.CodeOf(err) != api.Unavailable {
				t.Errorf("unknown balance: got %v, want Unavailable", err)
			}
			if _, _, err := a.Trigger(ctx, topup.Need{Agent: "lucky", Refused: true, Missing: 2501 * api.Dollar}); api.CodeOf(err) != api.Invalid {
				t.Errorf("more than is sold: got %v, want Invalid", err)
			}
		},
		"triggered at the same time": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.gate = make(chan struct{})
			var all sync.WaitGroup
			for range 8 {
				a := m.actor(s)
				all.Go(func() {
					if bought, why, err := a.Trigger(t.Context(), topup.Need{Agent: "lucky", Cause: "test", Refused: true}); !bought || err != nil {
						t.Errorf("got %t, %q, %v; want that the one purchase counts for all", bought, why, err)
					}
				})
			}
			m.gate <- struct{}{} // a purchase is open
			close(m.gate)
			all.Wait()
			if len(m.paid) != 1 || m.credits != 510*api.Cent {
				t.Errorf("got %d payments and %s, want one", len(m.paid), m.credits)
			}
			m.gate = make(chan struct{})
			m.now = m.now.Add(topup.Cooldown)
			all.Go(func() { _, _ = buy(m.actor(s), "slow", 5) })
			for open := 0; open == 0; { // until the purchase is open; its payment waits
				all, err := s.OpenTopups(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				open = len(all)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, _, err := m.actor(s).Trigger(ctx, topup.Need{Agent: "lucky", Cause: "test", Refused: true}); err == nil {
				t.Error("a purchase that does not end: got no error")
			}
			close(m.gate)
			all.Wait()
		},
		"one in flight": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.gate = make(chan struct{})
			results := make(chan error, 16)
			for i := range 16 { // two processes
				go func() { _, err := buy(m.actor(s), fmt.Sprint(i), 5); results <- err }()
			}
			for range 15 {
				if err := <-results; api.CodeOf(err) != api.Conflict {
					t.Errorf("got %v, want Conflict", err)
				}
			}
			close(m.gate)
			if err := <-results; err != nil || len(m.paid) != 1 {
				t.Errorf("got %v and %d payments, want 1", err, len(m.paid))
			}
		},
		"lost answer": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.fails = []error{api.Errorf(api.Unavailable, "no answer"), api.Errorf(api.Conflict, "another process has continued the payment")}
			a := m.actor(s)
			for _, want := range []api.Code{api.Unavailable, api.Conflict} {
				if _, err := buy(a, "one", 5); api.CodeOf(err) != want {
					t.Errorf("got %v, want %s", err, want)
				}
			}
			if _, err := buy(a, "two", 5); api.CodeOf(err) != api.Conflict {
				t.Errorf("a second purchase: got %v, want Conflict", err)
			}
			a.Round(t.Context())
			if p, err := buy(a, "one", 5); err != nil || p.State != topup.Done || len(m.paid) != 1 {
				t.Errorf("after the round: got %+v, %v and %d payments", p, err, len(m.paid))
			}
		},
		"refused": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.fails = []error{api.Errorf(api.Denied, "the price is wrong")}
			a := m.actor(s)
			for range 2 {
				if p, err := buy(a, "one", 5); api.CodeOf(err) != api.Denied || p.State != topup.Failed {
					t.Errorf("got %+v, %v", p, err)
				}
			}
			if len(m.paid) != 0 {
				t.Error("a refused purchase was paid")
			}
		},
		"stops without effect": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.takes, m.usdc = true, 100*api.Dollar
			a := m.actor(s)
			for i := range 5 {
				m.now = m.now.Add(time.Hour)
				p, err := buy(a, fmt.Sprint(i), 5)
				if want := i < topup.MaxFutile; (err == nil) != want || want && p.State != topup.Futile {
					t.Errorf("purchase %d: got %+v, %v", i, p, err)
				}
			}
			if len(m.paid) != topup.MaxFutile {
				t.Errorf("got %d payments, want %d", len(m.paid), topup.MaxFutile)
			}
		},
		"stops without effect, however seldom": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.takes, m.usdc = true, 100*api.Dollar
			a := m.actor(s)
			for i, want := range []bool{true, true, true, false, true, false, true} { // 13 h apart
				m.now = m.now.Add(13 * time.Hour)
				if p, err := buy(a, fmt.Sprint(i), 5); (err == nil) != want {
					t.Errorf("purchase %d: got %+v, %v, want it to be made: %t", i, p, err, want)
				}
			}
		},
		"may not pay": func(t *testing.T, m *market, s *sqlstore.Store) {
			m.unknown = &api.Error{Code: api.Denied, Reason: api.ReasonFrozen, Message: "frozen"}
			if _, err := buy(m.actor(s), "one", 5); api.ReasonOf(err) != api.ReasonFrozen {
				t.Errorf("got %v, want %s", err, api.ReasonFrozen)
			}
			if bought, err := m.actor(s).Low(t.Context(), "lucky", "test"); bought || err != nil || len(m.paid) != 0 {
				t.Errorf("at a low tier: got %t, %v and %d payments, want nothing", bought, err, len(m.paid))
			}
		},
		"low tier": func(t *testing.T, m *market, s *sqlstore.Store) {
			a := m.actor(s)
			for range 3 {
				a.Round(t.Context())
			}
			if len(m.paid) != 1 || m.credits != 510*api.Cent {
				t.Fatalf("got %d payments and %s, want one", len(m.paid), m.credits)
			}
			m.credits = 20 * api.Cent
			a.Round(t.Context()) // within the cooldown
			if len(m.paid) != 1 {
				t.Error("bought within the cooldown")
			}
			m.now = m.now.Add(topup.Cooldown)
			a.Round(t.Context())
			m.credits, m.now = 20*api.Cent, m.now.Add(time.Hour)
			a.Round(t.Context()) // the wallet has two dollars
			if len(m.paid) != 2 || m.usdc != 2*api.Dollar {
				t.Errorf("got %d payments and %s in the wallet, want 2 and $2.00", len(m.paid), m.usdc)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				s := sqlstore.New(db, nil)
				for _, agent := range []string{"lucky", "poor"} { // poor has no USDC
					if err := s.Open(t.Context(), agent); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := s.AddWallet(t.Context(), "lucky", wallet.Wallet{Address: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.AddWallet(t.Context(), "poor", wallet.Wallet{Address: "0x0000000000000000000000000000000000000001"}); err != nil {
					t.Fatal(err)
				}
				arrived(t, run(t, s, ledger.Options{}), "tx1/0", "lucky", 12*api.Dollar)
				for _, tt := range []struct {
					usdc api.Micros
					want []string
				}{{12 * api.Dollar, []string{"lucky"}}, {12*api.Dollar + 1, nil}} {
					if got, err := s.PoorAgents(t.Context(), api.MaxLow, tt.usdc, 10); err != nil || !cmp.Equal(got, tt.want) {
						t.Fatalf("agents at a low tier with %s of USDC: got %v, %v, want %v", tt.usdc, got, err, tt.want)
					}
				}
				test(t, newMarket(10*api.Cent, 12*api.Dollar), s)
			})
		})
	}
}
