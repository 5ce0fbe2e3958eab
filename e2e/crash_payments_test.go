package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
	"github.com/anima-run/anima/services/treasury/devchain"
)

// The agent lucky has paidMoney in USDC and pays paidPrice for each purchase.
const (
	paidMoney = 500 * api.Dollar
	paidPrice = 5 * api.Dollar
)

// paidWorld is two treasuries on one dev chain: the agent lucky of the payer buys credits
// for the agent bob of the seller. Both are processes that crash at failpoints and are
// restarted; the chain and a proxy before the seller's port are in the test.
type paidWorld struct {
	payer, seller *crashWorld
	shop          string // address of the purchase
	bought        int
}

func newPaidWorld(t *testing.T) *paidWorld {
	t.Helper()
	c, err := devchain.Start(devchain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rpc := httptest.NewServer(c)
	t.Cleanup(func() {
		rpc.Close()
		if err := c.Close(); err != nil {
			t.Errorf("close the chain: %v", err)
		}
	})
	env := map[string]string{
		"ANIMA_TREASURY_RPC_URL": rpc.URL, "ANIMA_TREASURY_NETWORK": "dev", "ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "2", "ANIMA_TREASURY_CHAIN_POLL": "50ms",
		"ANIMA_TREASURY_X402_PRIVATE": "true", "ANIMA_TREASURY_MAX_X402_PAYMENT_CENTS": "5000", "ANIMA_TREASURY_CHAIN_RECONCILE": "1h", "ANIMA_DRAIN": "1s",
	}
	bin := builds.program(t, "services/treasury", "./cmd/treasury", "failpoint")
	w := &paidWorld{payer: newTreasury(t, env, bin), seller: newTreasury(t, env, bin)}
	if t.Failed() {
		t.FailNow()
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: strings.TrimPrefix(w.seller.proc("treasury").http, "http://")})
			r.Out.Host = r.In.Host
		},
	})
	t.Cleanup(proxy.Close)
	call[api.Account](t, w.payer.world, api.OpenAccount{Agent: "lucky"})
	call[api.FundedUSDC](t, w.payer.world, api.FundUSDC{ID: "all", Agent: "lucky", Amount: paidMoney})
	bob := call[api.Account](t, w.seller.world, api.OpenAccount{Agent: "bob"})
	w.shop = fmt.Sprintf("%s/pay/%d/%s", proxy.URL, paidPrice/api.Dollar, bob.Address)
	return w
}

// newTreasury starts a treasury with a NATS server of its own.
func newTreasury(t *testing.T, env map[string]string, bin string) *crashWorld {
	t.Helper()
	w := &crashWorld{
		t: t, stores: t.TempDir(), procs: map[string]*mortal{}, spans: &received{Collector: oteltest.Receiver(t)}, env: env,
		world: &world{http: map[string]string{}, data: t.TempDir()},
	}
	w.nats = quietServer(t, w.stores, "127.0.0.1:0")
	if w.start("treasury", "treasury", bin) != nil {
		w.bus = connect(t, w.nats.ClientURL())
	}
	return w
}

// buy pays for a purchase and repeats the request until it is settled, as loop does for a
// call whose owner has crashed.
func (w *paidWorld) buy(ctx context.Context, id, at string) (api.Payment, error) {
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		p, err := bus.Call[api.Payment](try, w.payer.bus, api.Pay{ID: id, Agent: "lucky", URL: at})
		cancel()
		if err == nil && p.State == api.PaymentSettled {
			return p, nil
		}
		if code := api.CodeOf(err); ctx.Err() != nil || err != nil && code != api.Unavailable && code != api.Internal {
			return p, fmt.Errorf("the payment is %q (%s): %w", p.State, p.Reason, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// crash buys once while the payer or the seller crashes at a point, and returns what is
// wrong afterwards.
func (w *paidWorld) crash(t *testing.T, point failpoint.Point, mode failpoint.Mode) (faults []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	world := w.seller
	if strings.HasPrefix(point.String(), "treasury.pay.") {
		world = w.payer
	}
	over := make(chan struct{})
	victim := world.proc("treasury")
	victim.arm(t, fmt.Sprintf("%s:%s:1", point, mode))
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-victim.done:
			world.again(t, "treasury")
		case <-over:
		}
	})
	w.bought++
	id := fmt.Sprintf("p%d", w.bought)
	p, err := w.buy(ctx, id, w.shop)
	if err != nil {
		fault("%v\n%s", err, tail(filepath.Join(world.data, "treasury.log")))
	}
	if !victim.fired() {
		victim.disarm()
		close(over)
		fault("the point was not passed")
	} else if mode == failpoint.Timeout {
		close(over)
	}
	watch.Wait()
	if p.Status != http.StatusOK || !strings.Contains(string(p.Body), `"credits_cents":500`) {
		fault("the answer is lost: got %d %s", p.Status, p.Body)
	}
	spent := api.Micros(w.bought) * paidPrice
	var has api.Balance
	if !until(ctx, 20*time.Second, func() bool { // the hold may end after the answer
		has, err = asked[api.Balance](ctx, w.payer.world, api.GetBalance{Agent: "lucky"})
		return err == nil && has.USDC == paidMoney-spent && has.USDCHeld == 0
	}) {
		fault("payer: got %s and %s held, %v, want %s", has.USDC, has.USDCHeld, err, paidMoney-spent)
	}
	r, err := asked[api.Reconciliation](ctx, w.payer.world, api.ReconcileLedger{Agent: "lucky"})
	if err != nil || !r.OK || len(r.Accounts) != 1 || r.Accounts[0].Chain != paidMoney-spent {
		fault("chain: got %+v, %v, want %s, one settlement", r, err, paidMoney-spent)
	}
	if got, err := asked[api.Balance](ctx, w.seller.world, api.GetBalance{Agent: "bob"}); err != nil || got.Available != spent {
		fault("seller: got %s of credits, %v, want %s, one sale", got.Available, err, spent)
	}
	return faults
}

// verify checks both ledgers.
func (w *paidWorld) verify(t *testing.T) {
	t.Helper()
	for _, of := range []*crashWorld{w.payer, w.seller} {
		if r := call[api.LedgerReport](t, of.world, api.VerifyLedger{}); !r.OK {
			t.Errorf("verify: got %+v", r)
		}
	}
}

// paidPoints are the points of a payment over HTTP 402, in the order in which it passes
// them.
func paidPoints() []failpoint.Point {
	return []failpoint.Point{
		failpoint.TreasuryPaySign, failpoint.TreasuryPaySend, failpoint.TreasuryUse, failpoint.TreasuryTransfer, failpoint.TreasurySettlement,
		failpoint.TreasuryServe, failpoint.TreasuryPayReceipt, failpoint.TreasuryPayPost,
	}
}

// TestCrashPayments kills the paying or the selling treasury at each point of a payment.
// The caller repeats its request. There is one settlement on the chain and one sale, the
// money is paid and no longer held, the seller's answer is stored, and the ledger agrees
// with the chain. Without make crash each point has one mode; with it, all, and payments whose
// callers do not repeat them.
func TestCrashPayments(t *testing.T) {
	t.Parallel()
	w := newPaidWorld(t)
	long := os.Getenv(crashForm) != ""
	cases := 0
	began := time.Now()
	for i, point := range paidPoints() {
		for m, mode := range failpoint.Modes() {
			if !long && m != i%2 { // before, after, before …
				continue
			}
			if point == failpoint.TreasuryUse && mode == failpoint.Timeout {
				continue // the claim has no owner and expires after minutes
			}
			cases++
			if faults := w.crash(t, point, mode); len(faults) > 0 {
				t.Errorf("%s, %s:\n  %s", point, mode, strings.Join(faults, "\n  "))
			}
		}
	}
	if long {
		w.abandoned(t)
	}
	w.verify(t)
	t.Logf("%d cases in %.0f s", cases, time.Since(began).Seconds())
}

// abandoned kills the payer in payments that are not repeated, to a seller that never
// settles. Treasury releases their money when the chain is past their windows.
func (w *paidWorld) abandoned(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var offers atomic.Int64
	deaf := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Payment") != "" {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		offers.Add(1)
		rw.WriteHeader(http.StatusPaymentRequired)
		_, _ = fmt.Fprintf(rw, `{"x402Version":1,"accepts":[{"scheme":"exact","network":"dev","maxAmountRequired":"1000000","asset":%q,
			"payTo":"0x7000000000000000000000000000000000000000","maxTimeoutSeconds":20,"extra":{"name":"USDC","version":"2"}}]}`, devchain.Token.Hex())
	}))
	defer deaf.Close()
	var ids []string
	for _, point := range []failpoint.Point{failpoint.TreasuryPaySign, failpoint.TreasuryPaySend} {
		for _, mode := range []failpoint.Mode{failpoint.Before, failpoint.After} {
			victim := w.payer.proc("treasury")
			victim.arm(t, fmt.Sprintf("%s:%s:1", point, mode))
			id := fmt.Sprintf("abandoned-%d", len(ids))
			once, stop := context.WithTimeout(ctx, 2500*time.Millisecond) // less than after which Call repeats it
			_, err := bus.Call[api.Payment](once, w.payer.bus, api.Pay{ID: id, Agent: "lucky", URL: deaf.URL})
			stop()
			if err == nil || !victim.fired() {
				t.Fatalf("%s, %s: got %v, want a crash", point, mode, err)
			}
			<-victim.done
			w.payer.again(t, "treasury")
			ids = append(ids, id)
		}
	}
	if n := offers.Load(); n != int64(len(ids)) {
		t.Errorf("the seller was asked %d times, want once for each of %d payments", n, len(ids))
	}
	for _, id := range ids {
		var p api.Payment
		var err error
		if !until(ctx, 2*time.Minute, func() bool {
			p, err = asked[api.Payment](ctx, w.payer.world, api.GetPayment{ID: id})
			return err == nil && p.State == api.PaymentExpired
		}) {
			t.Errorf("%s: got %s (%s), %v, want it expired", id, p.State, p.Reason, err)
		}
	}
	want := paidMoney - api.Micros(w.bought)*paidPrice
	var has api.Balance
	if !until(ctx, 20*time.Second, func() bool {
		has = call[api.Balance](t, w.payer.world, api.GetBalance{Agent: "lucky"})
		return has.USDC == want && has.USDCHeld == 0
	}) {
		t.Errorf("got %s and %s held, want %s", has.USDC, has.USDCHeld, want)
	}
}
