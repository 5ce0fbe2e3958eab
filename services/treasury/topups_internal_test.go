package treasury

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

// buyer is a treasury whose agent lucky buys credits from the treasury's own shop. Only
// the chain is a fake.
type buyer struct {
	*topups
	chain *x402test.Chain
	lose  atomic.Int32 // answers of the shop that are lost after a payment

	unpaid, paid atomic.Int64 // status of the answers to requests without and with a payment, while it is not 0
}

func newBuyer(t *testing.T, db *sqldb.DB) *buyer {
	t.Helper()
	store, log, ctx := sqlstore.New(db, nil), slog.New(slog.DiscardHandler), t.Context()
	keeper := wallet.NewKeeper(store, "passphrase", 2)
	l := ledger.New(store, ledger.Options{Now: time.Now})
	running, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(running) })
	t.Cleanup(func() { stop(); wg.Wait() })
	if err := l.Open(ctx, "lucky"); err != nil {
		t.Fatal(err)
	}
	address, err := keeper.Create(ctx, "lucky")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []ledger.DepositRequest{
		{ID: "credits", Agent: "lucky", Amount: 10 * api.Cent, Source: faucet},
		{ID: "usdc", Agent: "lucky", Amount: 12 * api.Dollar, Source: ledger.ChainUSDC(x402.BaseSepolia.Name)},
	} {
		if _, err := l.Deposit(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	b := &buyer{chain: x402test.NewChain(x402.BaseSepolia, common.HexToAddress(address), 12*api.Dollar)}
	b.chain.Clock = time.Now
	h := &handlers{log: log, now: time.Now, ledger: l, wallets: keeper, directory: store, payments: store, link: b.chain}
	h.payer = pay.New(pay.Options{
		Store: store, Money: usdc{ledger: l}, Signer: walletSigner{keeper}, Chain: b.chain, Networks: x402.Networks{x402.BaseSepolia},
		Outbound: safehttp.Options{AllowPrivate: true}, Log: log, Now: time.Now, Changed: func(context.Context, *pay.Payment) {},
	})
	t.Cleanup(h.payer.Close)
	mux := http.NewServeMux()
	h.shop = &shop{handlers: h, network: x402.BaseSepolia, payTo: common.Address{0x70}}
	mux.HandleFunc("GET /pay/{usd}/{address}", h.shop.handler(paywall.Options{
		Facilitator: facilitator.New(store, log, time.Now, b.chain), Store: store, Log: log, Now: time.Now,
	}))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, paid, _ := x402.ReadPayment(r.Header)
		status := b.unpaid.Load()
		if paid {
			status = b.paid.Load()
		}
		if status != 0 {
			w.WriteHeader(int(status))
			return
		}
		if paid && b.lose.Add(-1) >= 0 {
			mux.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	h.cfg.TopupURL = srv.URL
	b.topups = openTopups(h, store, nil)
	return b
}

func (b *buyer) has(t *testing.T, credits, usdc api.Micros, transfers int) {
	t.Helper()
	got, err := b.ledger.Balance(t.Context(), "lucky")
	if err != nil || got.Available != credits || got.USDC != usdc || got.USDCHeld != 0 {
		t.Errorf("ledger: got %s of credits, %s and %s held of USDC (%v); want %s and %s", got.Available, got.USDC, got.USDCHeld, err, credits, usdc)
	}
	if onChain, err := b.onChain(t.Context(), "lucky"); err != nil || onChain != usdc || b.chain.Transfers() != transfers {
		t.Errorf("chain: got %s after %d transfers (%v), want %s after %d", onChain, b.chain.Transfers(), err, usdc, transfers)
	}
}

// TestTopUpOverX402 buys credits over x402 for an agent at a low tier: with the answer,
// with a lost answer, by the tool, and not with an unknown balance. Ledger and chain agree
// after each.
func TestTopUpOverX402(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBuyer(t, db), t.Context()
		b.chain.Fail(api.Errorf(api.Unavailable, "rpc down"))
		b.Round(ctx)
		if _, err := b.topUp(ctx, api.TopUp{ID: "one", Agent: "lucky", USD: 5}); api.CodeOf(err) != api.Unavailable {
			t.Errorf("without the chain: got %v, want Unavailable", err)
		}
		b.chain.Fail(nil)
		b.has(t, 10*api.Cent, 12*api.Dollar, 0)

		for range 2 {
			b.Round(ctx)
			b.has(t, 510*api.Cent, 7*api.Dollar, 1)
		}
		b.lose.Store(1)
		call := executor.Call{Agent: "lucky", Key: "r.1.0", Args: amount(t, "5")}
		if text, err := b.tool(ctx, call); err != nil {
			if api.CodeOf(err) != api.Unavailable {
				t.Fatalf("lost answer: got %q, %v; want Unavailable", text, err)
			}
			b.Round(ctx)
		}
		if text, err := b.tool(ctx, call); err != nil || text != "bought credits for $5: you have $10.10" {
			t.Errorf("the call again: got %q, %v", text, err)
		}
		b.has(t, 1010*api.Cent, 2*api.Dollar, 2)
		if _, err := b.topUp(ctx, api.TopUp{ID: "two", Agent: "lucky", USD: 5}); api.ReasonOf(err) != api.ReasonInsufficient {
			t.Errorf("too little USDC: got %v", err)
		}
		if r, err := b.ledger.Verify(ctx, nil); err != nil || len(r.Faults) > 0 {
			t.Errorf("verify: %v, %v", r.Faults, err)
		}
		b.cfg.TopupURL = ""
		if _, err := b.topUp(ctx, api.TopUp{ID: "three", Agent: "lucky", USD: 5}); api.CodeOf(err) != api.Denied {
			t.Errorf("without a seller: got %v, want Denied", err)
		}
	})
}

// TestTopUpPayees checks that credits are bought only from a seller that is paid at one of
// the addresses in the settings.
func TestTopUpPayees(t *testing.T) {
	t.Parallel()
	b, ctx := newBuyer(t, sqldbtest.SQLite(t, sqlstore.Migrations())), t.Context()
	b.cfg.TopupPayees = []string{"0x" + strings.Repeat("ab", 20)}
	got, err := b.topUp(ctx, api.TopUp{ID: "one", Agent: "lucky", USD: 5})
	if api.CodeOf(err) != api.Denied || !strings.Contains(fmt.Sprint(err), "is not an allowed payee") {
		t.Errorf("another payee: got %+v, %v, want Denied", got, err)
	}
	b.has(t, 10*api.Cent, 12*api.Dollar, 0)
	b.cfg.TopupPayees = append(b.cfg.TopupPayees, common.Address{0x70}.Hex())
	if got, err := b.topUp(ctx, api.TopUp{ID: "two", Agent: "lucky", USD: 5}); err != nil {
		t.Errorf("its payee: got %+v, %v", got, err)
	}
	b.has(t, 510*api.Cent, 7*api.Dollar, 1)
}

// TestSellerOfCreditsFails has a seller that fails before it names its price, and one that
// fails after it got the payment. The purchase stays open and is continued.
func TestSellerOfCreditsFails(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBuyer(t, db), t.Context()
		b.unpaid.Store(http.StatusServiceUnavailable)
		for range 4 {
			b.Round(ctx)
			b.has(t, 10*api.Cent, 12*api.Dollar, 0)
		}
		b.unpaid.Store(0)
		b.Round(ctx)
		b.has(t, 510*api.Cent, 7*api.Dollar, 1)

		b.paid.Store(http.StatusInternalServerError)
		for range 2 {
			if got, err := b.topUp(ctx, api.TopUp{ID: "two", Agent: "lucky", USD: 5}); api.CodeOf(err) != api.Unavailable {
				t.Errorf("after the payment: got %+v, %v, want Unavailable", got, err)
			}
		}
		b.paid.Store(0)
		b.Round(ctx)
		b.has(t, 1010*api.Cent, 2*api.Dollar, 2)
	})
}

// TestSellerOfCreditsRefuses has a seller that refuses a payment, which it can settle
// nevertheless. The purchase stays open, so no other one is paid besides, and it is continued
// with the same payment.
func TestSellerOfCreditsRefuses(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBuyer(t, db), t.Context()
		b.paid.Store(http.StatusPaymentRequired)
		for _, p := range []struct {
			id   string
			want api.Code
		}{{"one", api.Unavailable}, {"two", api.Conflict}, {"one", api.Unavailable}} {
			if got, err := b.topUp(ctx, api.TopUp{ID: p.id, Agent: "lucky", USD: 5}); api.CodeOf(err) != p.want {
				t.Errorf("purchase %s: got %+v, %v, want %s", p.id, got, err, p.want)
			}
			b.Round(ctx) // buys nothing for the agent, whose tier is low
		}
		if got, err := b.ledger.Balance(ctx, "lucky"); err != nil || got.USDCHeld != 5*api.Dollar {
			t.Errorf("refused: got %s held, %v, want the price of one purchase", got.USDCHeld, err)
		}
		b.paid.Store(0)
		b.Round(ctx)
		b.has(t, 510*api.Cent, 7*api.Dollar, 1)
	})
}

// TestSellerOfCreditsStaysAway has a seller that names no price for a day. The purchase ends
// then, and the agent can buy again.
func TestSellerOfCreditsStaysAway(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBuyer(t, db), t.Context()
		b.unpaid.Store(http.StatusServiceUnavailable)
		buy := func(id string, want api.Code) {
			t.Helper()
			if got, err := b.topUp(ctx, api.TopUp{ID: id, Agent: "lucky", USD: 5}); api.CodeOf(err) != want {
				t.Errorf("purchase %s: got %+v, %v, want %q", id, got, err, want)
			}
		}
		buy("one", api.Unavailable)
		buy("two", api.Conflict)
		b.now = func() time.Time { return time.Now().Add(expected + time.Minute) }
		buy("one", api.Denied)
		b.unpaid.Store(0)
		buy("two", "")
		buy("one", api.Denied)
		b.has(t, 510*api.Cent, 7*api.Dollar, 1)
	})
}

// TestSold checks after which payments the balance shows what they have brought.
func TestSold(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for name, tt := range map[string]struct {
		state  api.PaymentState
		status int
		age    time.Duration
		want   api.Code
	}{
		"answered":                  {api.PaymentSettled, 200, 0, ""},
		"answered, not yet settled": {api.PaymentUnknown, 200, 0, ""},
		"no price":                  {api.PaymentFree, 404, 0, api.Denied},
		"failed before the price":   {api.PaymentIntended, 503, 0, api.Unavailable},
		"failed":                    {api.PaymentSettled, 500, 0, api.Unavailable},
		"lost":                      {api.PaymentSettled, 0, expected, api.Unavailable},
		"lost for good":             {api.PaymentSettled, 0, expected + time.Second, ""},
		"refused, paid":             {api.PaymentSettled, 400, 0, ""},
		"refused, maybe paid":       {api.PaymentUnknown, 400, 0, api.Unavailable},
	} {
		p := pay.Payment{State: tt.state, Answer: pay.Answer{Status: tt.status}, CreatedAt: now.Add(-tt.age).UnixMicro()}
		if err := sold(&p, now); api.CodeOf(err) != tt.want {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// amount returns the arguments of topup_credits.
func amount(t *testing.T, usd string) catalog.Args {
	t.Helper()
	tool, _ := catalog.Named("topup_credits")
	args, err := tool.Parse([]byte(`{"amount_usd":` + usd + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return args
}
