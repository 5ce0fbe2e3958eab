package e2e

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// Variables of make spenders. Without them the test has its short form.
const (
	spendersOperations = "ANIMA_SPENDERS_OPERATIONS" // answered requests
	spendersSeed       = "ANIMA_SPENDERS_SEED"
)

// spendersKills is how many kills [TestSpendersKilled] has at least. On a slow machine the
// operations are made before, and the spenders then make more of them.
const spendersKills = 3

// TestSpendersKilled has 64 spenders of one account at two processes of treasury on one
// PostgreSQL database, which are killed with SIGKILL at random times. The spenders count
// what they were granted, and do not use the ledger for it. At no time may it be more than
// was deposited, or more than a limit allows; at the end what they have paid must have
// left the account.
func TestSpendersKilled(t *testing.T) {
	t.Parallel()
	operations, seed := number(t, spendersOperations, 8000), uint64(number(t, spendersSeed, 1))
	b := newSpendersBank(t)
	s := newSpending(t, b.bus, operations, seed)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(operations)*10*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	finished := make(chan struct{})
	all.Go(func() { s.provide(ctx, finished) })
	var spending sync.WaitGroup
	for i := range spenders {
		spending.Go(func() { s.spend(ctx, i) })
	}
	all.Go(func() { spending.Wait(); close(finished) })
	b.killUntil(finished, rand.New(rand.NewPCG(seed, 0)), &s.kills, func() { s.progress(began) })
	all.Wait()
	s.audit(ctx, b.url)
	t.Logf("%d operations and %d kills in %s, seed %d\n%s", s.done.Load(), s.kills.Load(), time.Since(began).Round(100*time.Millisecond), seed, s.summary())
	if kills := s.kills.Load(); kills < spendersKills {
		t.Errorf("%d processes were killed, want %d or more", kills, spendersKills)
	}
}

// spendersBank is two processes of treasury on one database.
type spendersBank struct {
	t      *testing.T
	url    string // of the database
	nats   string
	data   string
	env    map[string]string
	twins  [2]*process
	bus    *bus.Bus
	logged time.Time
}

func newSpendersBank(t *testing.T) *spendersBank {
	t.Helper()
	nats := server(t, "127.0.0.1:0")
	b := &spendersBank{t: t, url: sqldbtest.Postgres(t), nats: nats.ClientURL(), data: t.TempDir(), env: map[string]string{
		"ANIMA_TREASURY_FAUCET": "true", "ANIMA_TREASURY_SWEEP": "100ms", "ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "2", "ANIMA_LOG": "error",
	}}
	b.env["ANIMA_DATABASE_URL"] = b.url
	for i := range b.twins { // one after the other: the first one creates the tables
		b.twins[i] = startService(t, "treasury", b.nats, b.data, maps.Clone(b.env))
		b.twins[i].await(t)
	}
	b.bus = connect(t, b.nats)
	return b
}

// killUntil kills one process at a time, and sometimes both, at random ages, and starts
// it again, until finished is closed. It counts the kills.
func (b *spendersBank) killUntil(finished <-chan struct{}, rng *rand.Rand, kills *atomic.Int64, progress func()) {
	for b.logged = time.Now(); ; {
		select {
		case <-finished:
			return
		case <-time.After(time.Duration(50+rng.IntN(800)) * time.Millisecond):
		}
		victims := []int{rng.IntN(2)}
		if rng.IntN(6) == 0 {
			victims = []int{0, 1}
		}
		for _, i := range victims {
			b.twins[i].kill()
			kills.Add(1)
		}
		for _, i := range victims {
			b.twins[i] = startService(b.t, "treasury", b.nats, b.data, maps.Clone(b.env))
		}
		for _, i := range victims {
			b.twins[i].await(b.t)
		}
		if time.Since(b.logged) >= 5*time.Second {
			b.logged = time.Now()
			progress()
		}
	}
}

// audit compares the counts of the spenders with the account, with the row of the account
// that was paid, and has the ledger verified.
func (s *spending) audit(ctx context.Context, url string) {
	s.t.Helper()
	if s.t.Failed() {
		return
	}
	want := api.Micros(s.account.most.Load() - s.paid.Load())
	var got api.Balance
	free := until(ctx, 30*time.Second, func() bool { // the abandoned holds expire
		var err error
		if got, err = bus.Call[api.Balance](ctx, s.bus, api.GetBalance{Agent: spender}); err != nil {
			return false
		}
		return got.Held == 0
	})
	if !free || got.Available != want {
		s.t.Errorf("the account has %s, and %s are held; %s were deposited and %s paid, so %s should be left",
			got.Available, got.Held, api.Micros(s.account.most.Load()), api.Micros(s.paid.Load()), want)
	}
	db, err := sqldb.Open(ctx, url, sqldb.Options{Schema: "treasury", MaxConns: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // it is only read
	var arrived, granted int64
	err = db.QueryRowContext(ctx, "select balance, (select count(*) from holds) from accounts where id = $1", spendersPayee).Scan(&arrived, &granted)
	if err != nil || arrived != s.paid.Load() || granted != s.grants.Load() {
		s.t.Errorf("%s has %d micro-USD, and there are %d holds (%v), want %d and %d", spendersPayee, arrived, granted, err, s.paid.Load(), s.grants.Load())
	}
	var done int64
	r, err := bus.CallStream[api.VerifyProgress, api.LedgerReport](ctx, s.bus, api.VerifyLedgerV2{}, func(p api.VerifyProgress) error {
		if p.Done-done >= 100_000 {
			done = p.Done
			s.t.Logf("%d of %d transactions verified", p.Done, p.All)
		}
		return nil
	})
	if err != nil || !r.OK {
		s.t.Errorf("verify: got %+v, %v", r, err)
	}
	for _, what := range s.wanted() {
		if s.refusals[what].Load() == 0 {
			s.t.Errorf("no hold was refused for %s", what)
		}
	}
	s.verified = r.Transactions
}
