package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// overspending runs many callers on two replicas that request more than is available.
func overspending(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	ledgers := []*ledger.Ledger{run(t, open(), ledger.Options{}), run(t, open(), ledger.Options{})}
	const callers, each, amount, funds = 64, 8, 7, 1000
	funded(t, ledgers[0], "lucky", funds)

	var mu sync.Mutex
	var spent api.Micros
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			b := ledgers[c%len(ledgers)]
			for i := range each {
				id := fmt.Sprintf("%d-%d", c, i)
				h, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: amount, ExpiresAt: soon})
				switch {
				case api.ReasonOf(err) == api.ReasonInsufficient:
					continue
				case err != nil:
					t.Errorf("hold %s: %v", id, err)
					return
				case h.Available < 0:
					t.Errorf("hold %s: got %d available, want no debt", id, h.Available)
				}
				var paid api.Micros
				switch i % 3 {
				case 0:
					paid = amount
				case 1:
					paid = 3
				}
				if i%3 == 2 {
					_, err = b.Release(ctx, id, "", "")
				} else {
					_, err = b.Settle(ctx, ledger.SettleRequest{ID: id, Amount: paid, Payee: "provider:openai"})
				}
				if err != nil {
					t.Errorf("end of %s: %v", id, err)
				}
				mu.Lock()
				spent += paid
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	wantBalance(t, ledgers[0], "lucky", funds-spent, 0)

	// No hold is released from here on, so the last hold must use up the account.
	left := funds - spent
	granted := make(chan struct{}, callers*int(left))
	for c := range callers {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("dry-%d-%d", c, i)
				_, err := ledgers[c%len(ledgers)].Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: amount, ExpiresAt: soon})
				if err != nil {
					wantRefused(t, id, err, api.Denied, api.ReasonInsufficient)
					return
				}
				granted <- struct{}{}
			}
		})
	}
	wg.Wait()
	if got, want := api.Micros(len(granted)), left/amount; got != want {
		t.Errorf("holds of %d from %d: got %d, want %d", amount, left, got, want)
	}
	wantBalance(t, ledgers[1], "lucky", left%amount, left-left%amount)
	wantSound(t, ledgers[1])
}

// oneID runs many callers with the same operations: each is done once.
func oneID(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	ledgers := []*ledger.Ledger{run(t, open(), ledger.Options{}), run(t, open(), ledger.Options{})}
	funded(t, ledgers[0], "lucky", 1000)
	funded(t, ledgers[0], "bob", 0)
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			b := ledgers[c%len(ledgers)]
			_, depositErr := b.Deposit(ctx, ledger.DepositRequest{ID: "d", Agent: "lucky", Amount: 10, Source: "faucet"})
			_, transferErr := b.Transfer(ctx, ledger.TransferRequest{ID: "t", From: "lucky", To: "bob", Amount: 100})
			_, holdErr := b.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Amount: 500, ExpiresAt: soon})
			_, settleErr := b.Settle(ctx, ledger.SettleRequest{ID: "h", Amount: 200, Payee: "provider:x"})
			if err := errors.Join(depositErr, transferErr, holdErr, settleErr); err != nil {
				t.Errorf("caller %d: %v", c, err)
			}
		})
	}
	wg.Wait()
	wantBalance(t, ledgers[0], "lucky", 1000+10-100-200, 0)
	wantBalance(t, ledgers[1], "bob", 100, 0)
	if r := wantSound(t, ledgers[0]); r.Transactions != 5 {
		t.Errorf("verify: got %d transactions, want 5", r.Transactions)
	}
}

// gate is a store whose Update waits and can be made to fail.
type gate struct {
	ledger.Store
	enter chan int      // receives the number of holds that the waiting update names
	leave chan struct{} // lets the update continue
	fail  func(ledger.Keys) error
}

func (g *gate) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	if g.enter != nil {
		g.enter <- len(keys.Holds) + len(keys.NewHolds)
		<-g.leave
	}
	if g.fail != nil {
		if err := g.fail(keys); err != nil {
			return err
		}
	}
	return g.Store.Update(ctx, keys, change)
}

// awaitQueued waits until n operations wait behind the commit in progress.
func awaitQueued(t *testing.T, b *ledger.Ledger, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for b.Queued() < n {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("got %d operations queued, want %d", b.Queued(), n)
		}
	}
}

// groups makes callers wait behind a commit: they share the next one, and a refusal
// affects only the refused caller.
func groups(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	funded(t, run(t, open(), ledger.Options{}), "lucky", 100)
	g := &gate{Store: open(), enter: make(chan int), leave: make(chan struct{})}
	b := run(t, g, ledger.Options{Group: 8})
	results := make(chan error, 6)
	ask := func(id string, amount api.Micros) {
		go func() {
			_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: amount, ExpiresAt: soon})
			results <- err
		}()
	}
	ask("first", 1)
	if n := <-g.enter; n != 1 {
		t.Fatalf("first commit: got %d operations, want 1", n)
	}
	for i := range 4 {
		ask(fmt.Sprintf("h%d", i), 20)
	}
	ask("greedy", 90)
	awaitQueued(t, b, 5)
	g.leave <- struct{}{}
	if n := <-g.enter; n != 5 {
		t.Errorf("second commit: got %d operations, want 5", n)
	}
	g.leave <- struct{}{}
	refused := 0
	for range 6 {
		if err := <-results; err != nil {
			refused++
			wantRefused(t, "one of the group", err, api.Denied, api.ReasonInsufficient)
		}
	}
	if refused == 0 {
		t.Errorf("got no refusal, want at least one")
	}
	g.enter, g.leave = nil, nil
	wantSound(t, b)
}

// badMember makes the store fail on one member of a group: the others succeed.
func badMember(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	funded(t, run(t, open(), ledger.Options{}), "lucky", 100)
	g := &gate{Store: open(), enter: make(chan int), leave: make(chan struct{}), fail: func(k ledger.Keys) error {
		if slices.Contains(append(k.Holds, k.NewHolds...), "bad") {
			return errors.New("the store chokes")
		}
		return nil
	}}
	b := run(t, g, ledger.Options{})
	var wg sync.WaitGroup
	ask := func(id string, ok bool) {
		wg.Go(func() {
			_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: 10, ExpiresAt: soon})
			if (err == nil) != ok {
				t.Errorf("hold %s: got error %v, want success %t", id, err, ok)
			}
		})
	}
	ask("first", true)
	<-g.enter
	ask("good", true)
	ask("bad", false)
	ask("fine", true)
	awaitQueued(t, b, 3)
	g.leave <- struct{}{}
	for _, want := range []int{3, 1, 1, 1} {
		if n := <-g.enter; n != want {
			t.Errorf("commit: got %d operations, want %d", n, want)
		}
		g.leave <- struct{}{}
	}
	wg.Wait()
	wantBalance(t, b, "lucky", 70, 30)
	wantSound(t, b)
}

// stopping stops a Ledger during a commit: the commit is finished, and later operations
// fail with Unavailable.
func stopping(t *testing.T, open func() ledger.Store) {
	funded(t, run(t, open(), ledger.Options{}), "lucky", 100)
	g := &gate{Store: open(), enter: make(chan int), leave: make(chan struct{})}
	b := ledger.New(g, ledger.Options{Now: newClock().now})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { b.Run(ctx); close(stopped) }()

	first := make(chan error, 1)
	go func() {
		_, err := b.Hold(t.Context(), ledger.HoldRequest{ID: "first", Agent: "lucky", Amount: 10, ExpiresAt: soon})
		first <- err
	}()
	<-g.enter
	cancel()
	g.leave <- struct{}{}
	<-stopped
	if err := <-first; err != nil {
		t.Errorf("hold under way: got error %v, want it kept", err)
	}
	_, err := b.Hold(t.Context(), ledger.HoldRequest{ID: "late", Agent: "lucky", Amount: 10, ExpiresAt: soon})
	wantRefused(t, "hold after the end", err, api.Unavailable, "")
	wantBalance(t, b, "lucky", 90, 10)

	gone, leave := context.WithCancel(t.Context())
	leave()
	idle := ledger.New(open(), ledger.Options{Now: newClock().now}) // it is not run
	if _, err := idle.Hold(gone, ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: 1, ExpiresAt: soon}); err == nil {
		t.Errorf("hold of a caller that is gone: got no error")
	}
}

// badSettlement makes the store fail on one of several settlements: the others succeed.
func badSettlement(t *testing.T, open func() ledger.Store) {
	first := run(t, open(), ledger.Options{})
	funded(t, first, "lucky", 100)
	funded(t, first, "bob", 100)
	hold(t, first, "good", "lucky", 10)
	hold(t, first, "bad", "bob", 10)
	hold(t, first, "fine", "lucky", 20)
	b := run(t, &gate{Store: open(), fail: func(k ledger.Keys) error {
		if slices.Contains(append(k.Holds, k.NewHolds...), "bad") {
			return errors.New("the store chokes")
		}
		return nil
	}}, ledger.Options{})
	var ask []ledger.SettleRequest
	for _, id := range []string{"good", "bad", "fine"} {
		ask = append(ask, ledger.SettleRequest{ID: id, Amount: 1, Payee: "provider:x"})
	}
	all, funds, err := b.SettleMany(t.Context(), ask)
	if err != nil || len(all) != 3 || all[0].Err != nil || all[1].Err == nil || all[2].Err != nil {
		t.Fatalf("settle many: got %+v, %v, want an error for the second only", all, err)
	}
	if len(funds) != 1 || funds[0].Agent != "lucky" || funds[0].Available != 98 {
		t.Errorf("funds: got %+v, want 98 of lucky", funds)
	}
	wantBalance(t, first, "bob", 90, 10)
	wantSound(t, first)
}
