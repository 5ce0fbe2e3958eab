package sqlstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// eachEngine calls test with an empty ledger, once for each engine. Each call of open
// returns a store on the same ledger as another process would open it.
type eachEngine func(t *testing.T, test func(t *testing.T, open func() ledger.Store))

// testLedger runs the tests of a ledger on a store.
func testLedger(t *testing.T, each eachEngine) {
	for name, test := range map[string]func(*testing.T, func() ledger.Store){
		"accounts":                 accounts,
		"hold and settle":          holdAndSettle,
		"hold and release":         holdAndRelease,
		"settle many":              settleMany,
		"the same again":           sameAgain,
		"other content":            otherContent,
		"refusals":                 refusals,
		"a payee that is an agent": agentPayee,
		"give":                     give,
		"give half":                giveHalves,
		"expiry":                   expiry,
		"tiers":                    tiers,
		"spent":                    spent,
		"lists":                    lists,
		"reopened":                 reopened,
		"overspending":             overspending,
		"one id, many callers":     oneID,
		"groups":                   groups,
		"one bad member":           badMember,
		"one bad settlement":       badSettlement,
		"stopping":                 stopping,
		"random operations":        randomOperations,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, test)
		})
	}
}

// start is the initial time of the tests' clocks, in Unix microseconds.
const start int64 = 1_800_000_000_000_000

// clock is a clock that tests advance.
type clock struct {
	mu sync.Mutex
	at int64
}

func newClock() *clock { return &clock{at: start} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.UnixMicro(c.at)
}

func (c *clock) set(at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at += d.Microseconds()
}

// soon is an expiry that tests reach only by advancing the clock.
const soon = start + 60_000_000

// run starts a Ledger and stops it at the end of the test.
func run(t *testing.T, store ledger.Store, o ledger.Options) *ledger.Ledger {
	t.Helper()
	if o.Now == nil {
		o.Now = newClock().now
	}
	b := ledger.New(store, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

// funded opens an account and deposits an amount.
func funded(t *testing.T, b *ledger.Ledger, agent string, amount api.Micros) {
	t.Helper()
	if err := b.Open(t.Context(), agent); err != nil {
		t.Fatalf("open %s: %v", agent, err)
	}
	if amount == 0 {
		return
	}
	r := ledger.DepositRequest{ID: "fund-" + agent, Agent: agent, Amount: amount, Source: "faucet"}
	if _, err := b.Deposit(t.Context(), r); err != nil {
		t.Fatalf("deposit for %s: %v", agent, err)
	}
}

func wantBalance(t *testing.T, b *ledger.Ledger, agent string, available, held api.Micros) {
	t.Helper()
	got, err := b.Balance(t.Context(), agent)
	if err != nil {
		t.Fatalf("balance of %s: %v", agent, err)
	}
	if got.Available != available || got.Held != held {
		t.Errorf("balance of %s: got %d available and %d held, want %d and %d", agent, got.Available, got.Held, available, held)
	}
}

func wantRefused(t *testing.T, what string, err error, code api.Code, reason string) {
	t.Helper()
	if api.CodeOf(err) != code || api.ReasonOf(err) != reason {
		t.Errorf("%s: got error %v, want code %q and reason %q", what, err, code, reason)
	}
}

// wantSound verifies the whole ledger.
func wantSound(t *testing.T, b *ledger.Ledger) ledger.Report {
	t.Helper()
	r, err := b.Verify(t.Context(), nil)
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	if len(r.Faults) != 0 {
		t.Errorf("verify: got faults %q, want none", r.Faults)
	}
	return r
}

func hold(t *testing.T, b *ledger.Ledger, id, agent string, amount api.Micros) ledger.HoldState {
	t.Helper()
	h, err := b.Hold(t.Context(), ledger.HoldRequest{ID: id, Agent: agent, Amount: amount, Category: "inference", ExpiresAt: soon})
	if err != nil {
		t.Fatalf("hold %s: %v", id, err)
	}
	return h
}

func settle(t *testing.T, b *ledger.Ledger, id string, amount api.Micros, payee string) ledger.HoldState {
	t.Helper()
	h, err := b.Settle(t.Context(), ledger.SettleRequest{ID: id, Amount: amount, Payee: payee})
	if err != nil {
		t.Fatalf("settle %s: %v", id, err)
	}
	return h
}

func accounts(t *testing.T, open func() ledger.Store) {
	b := run(t, open(), ledger.Options{})
	_, err := b.Balance(t.Context(), "lucky")
	wantRefused(t, "balance before open", err, api.NotFound, "")
	for range 2 {
		if err := b.Open(t.Context(), "lucky"); err != nil {
			t.Fatalf("open: %v", err)
		}
	}
	wantBalance(t, b, "lucky", 0, 0)
	funded(t, b, "lucky", api.Dollar)
	if err := b.Open(t.Context(), "lucky"); err != nil {
		t.Fatalf("open again: %v", err)
	}
	wantBalance(t, b, "lucky", api.Dollar, 0)
	wantRefused(t, "open without a name", b.Open(t.Context(), "not a name"), api.Invalid, "")
	wantSound(t, b)
}

func holdAndSettle(t *testing.T, open func() ledger.Store) {
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)

	h := hold(t, b, "h1", "lucky", 300)
	if h.Status != api.HoldActive || h.Available != 700 {
		t.Errorf("hold: got %+v, want active and 700 available", h)
	}
	wantBalance(t, b, "lucky", 700, 300)

	h = settle(t, b, "h1", 120, "provider:openai")
	if h.Status != api.HoldSettled || h.Settled != 120 || h.Available != 880 {
		t.Errorf("settle: got %+v, want settled with 120 and 880 available", h)
	}
	wantBalance(t, b, "lucky", 880, 0)

	hold(t, b, "all", "lucky", 880)
	settle(t, b, "all", 880, "provider:openai")
	wantBalance(t, b, "lucky", 0, 0)

	ts, _, err := b.Transactions(t.Context(), "lucky", 2, 1)
	if err != nil {
		t.Fatalf("transactions: %v", err)
	}
	want := []ledger.Line{
		{Account: "held:lucky", Amount: -300, Balance: 0},
		{Account: "provider:openai", Amount: 120, Balance: 120},
		{Account: "agent:lucky", Amount: 180, Balance: 880},
	}
	if len(ts) != 1 || ts[0].ID != "h1/settle" || ts[0].Kind != ledger.KindSettle {
		t.Fatalf("third transaction: got %+v, want h1/settle", ts)
	}
	if diff := cmp.Diff(want, ts[0].Lines); diff != "" {
		t.Errorf("lines of the settlement (-want +got):\n%s", diff)
	}
	if r := wantSound(t, b); r.Transactions != 5 {
		t.Errorf("verify: got %d transactions, want 5", r.Transactions)
	}

	funded(t, b, "free", 10)
	hold(t, b, "f1", "free", 10)
	settle(t, b, "f1", 0, "provider:local")
	wantBalance(t, b, "free", 10, 0)
	wantSound(t, b)
}

func holdAndRelease(t *testing.T, open func() ledger.Store) {
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	hold(t, b, "h1", "lucky", 300)
	for range 2 {
		h, err := b.Release(t.Context(), "h1", "provider failed", "")
		if err != nil || h.Status != api.HoldReleased || h.Available != 1000 {
			t.Fatalf("release: got %+v, %v, want released and 1000 available", h, err)
		}
	}
	wantBalance(t, b, "lucky", 1000, 0)
	if r := wantSound(t, b); r.Transactions != 3 || r.ActiveHolds != 0 {
		t.Errorf("verify: got %+v, want 3 transactions and no active hold", r)
	}
}

// settleMany settles holds of two agents in one call: each settlement has its own result,
// and all share a commit.
func settleMany(t *testing.T, open func() ledger.Store) {
	commits := 0
	b := run(t, open(), ledger.Options{Committed: func(context.Context, ledger.Changes, int) { commits++ }})
	funded(t, b, "lucky", 1000)
	funded(t, b, "bob", 500)
	hold(t, b, "h1", "lucky", 300)
	hold(t, b, "h2", "bob", 100)
	hold(t, b, "h3", "lucky", 200)
	if _, err := b.Release(t.Context(), "h3", "", ""); err != nil {
		t.Fatal(err)
	}
	trace := "0af7651916cd43dd8448eb211c80319c"
	ask := []ledger.SettleRequest{
		{ID: "h1", Amount: 120, Payee: "provider:openai", Parent: "00-" + trace + "-b7ad6b7169203331-01"},
		{ID: "nothing", Amount: 1, Payee: "provider:openai"},
		{ID: "h2", Amount: 101, Payee: "provider:openai"},
		{ID: "h2", Amount: 100, Payee: "agent:lucky"},
		{ID: "h3", Amount: 1, Payee: "provider:openai"},
		{ID: "not an id", Amount: 1, Payee: "provider:openai"},
		{ID: "h1", Amount: 120, Payee: "provider:openai"},
	}
	codes := []api.Code{"", api.NotFound, api.Invalid, "", api.Conflict, api.Invalid, ""}
	before := commits
	for again := range 2 {
		if again > 0 {
			codes[2] = api.Conflict // the hold is settled with another amount by now
		}
		all, funds, err := b.SettleMany(t.Context(), ask)
		if err != nil || len(all) != len(ask) {
			t.Fatalf("settle many: got %+v, %v", all, err)
		}
		for i, got := range all {
			if api.CodeOf(got.Err) != codes[i] || (got.Err == nil) != (got.State.Status == api.HoldSettled) {
				t.Errorf("settlement %d: got %+v, want code %q", i, got, codes[i])
			}
		}
		want := []ledger.Balance{
			{Agent: "bob", Available: 400, Entries: 3},
			{Agent: "lucky", Available: 980, Entries: 6},
		}
		if diff := cmp.Diff(want, funds); diff != "" {
			t.Errorf("funds (-want +got):\n%s", diff)
		}
	}
	if got := commits - before; got != 2 {
		t.Errorf("commits: got %d, want 2", got)
	}
	ts, _, err := b.Transactions(t.Context(), "lucky", 6, 1)
	if err != nil || len(ts) != 1 || ts[0].ID != "h1/settle" || ts[0].Trace != trace {
		t.Errorf("transaction of the settlement: got %+v, %v, want h1/settle in its own trace", ts, err)
	}
	if r := wantSound(t, b); r.Transactions != 8 {
		t.Errorf("verify: got %d transactions, want 8", r.Transactions)
	}
}

func agentPayee(t *testing.T, open func() ledger.Store) {
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	funded(t, b, "bob", 0)
	hold(t, b, "h1", "lucky", 300)
	_, err := b.Settle(t.Context(), ledger.SettleRequest{ID: "h1", Amount: 100, Payee: "agent:nobody"})
	wantRefused(t, "settle to nobody", err, api.NotFound, "")
	_, err = b.Settle(t.Context(), ledger.SettleRequest{ID: "h1", Amount: 100, Payee: "agent:lucky"})
	wantRefused(t, "settle to oneself", err, api.Invalid, "")
	settle(t, b, "h1", 100, "agent:bob")
	wantBalance(t, b, "lucky", 900, 0)
	wantBalance(t, b, "bob", 100, 0)
	wantSound(t, b)
}

func reopened(t *testing.T, open func() ledger.Store) {
	first := run(t, open(), ledger.Options{})
	funded(t, first, "lucky", 1000)
	hold(t, first, "h1", "lucky", 300)
	head := wantSound(t, first).Head

	second := run(t, open(), ledger.Options{})
	wantBalance(t, second, "lucky", 700, 300)
	r := wantSound(t, second)
	if r.Head != head || r.Transactions != 2 || r.ActiveHolds != 1 {
		t.Errorf("reopened: got %+v, want head %s, 2 transactions, 1 active hold", r, head)
	}
	settle(t, second, "h1", 300, "provider:openai")
	settle(t, first, "h1", 300, "provider:openai")
	wantBalance(t, first, "lucky", 700, 0)
	wantSound(t, first)
}
