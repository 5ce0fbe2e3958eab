package facilitator_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

func price() x402.Price {
	return x402.Price{
		Terms:    x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{0x70}, Amount: 10_000, Timeout: 60, Version: x402.V2},
		Resource: x402.Resource{URL: "http://127.0.0.1/paid"},
	}
}

func order(p x402.Payment) x402.Order { return x402.Order{Payment: p, Offer: price().Offer(&p)} }

// world is a facilitator on a store and a chain.
type world struct {
	*facilitator.Facilitator
	store *sqlstore.Store
	chain *x402test.Chain
	payer *x402test.Payer
}

func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		payer := x402test.NewPayer(t)
		w := &world{store: sqlstore.New(db, nil), payer: payer, chain: x402test.NewChain(x402.BaseSepolia, payer.Address(), 1_000_000)}
		w.Facilitator = w.replica()
		test(t, w)
	})
}

// replica returns another facilitator on the same store and chain.
func (w *world) replica() *facilitator.Facilitator {
	return facilitator.New(w.store, slog.New(slog.DiscardHandler), time.Now, w.chain)
}

func TestSettlesOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		for _, version := range []int{x402.V1, x402.V2} {
			p := w.payer.Pay(t, price(), version, nil)
			before := w.chain.Transfers()
			if v, err := w.Verify(t.Context(), order(p)); err != nil || !v.Valid || v.Payer != w.payer.Address().Hex() {
				t.Errorf("version %d: verify: got %+v, %v", version, v, err)
			}
			replicas := []*facilitator.Facilitator{w.Facilitator, w.replica()}
			receipts := make([]x402.Receipt, 20)
			var wg sync.WaitGroup
			for i := range receipts {
				wg.Go(func() {
					r, err := replicas[i%2].Settle(t.Context(), order(p))
					if err != nil {
						t.Errorf("settle: %v", err)
					}
					receipts[i] = r
				})
			}
			wg.Wait()
			want := x402.Receipt{Success: true, Transaction: receipts[0].Transaction, Network: p.Network, Payer: w.payer.Address().Hex()}
			for _, r := range receipts {
				if diff := cmp.Diff(want, r); diff != "" || r.Transaction == "" {
					t.Errorf("version %d: (-want +got):\n%s", version, diff)
				}
			}
			if got := w.chain.Transfers() - before; got != 1 {
				t.Errorf("version %d: got %d transfers, want 1", version, got)
			}
			if r, err := w.replica().Settle(t.Context(), order(p)); err != nil || r != want {
				t.Errorf("version %d: later: got %+v, %v, want the same answer", version, r, err)
			}
			if v, err := w.Verify(t.Context(), order(p)); err != nil || v.Valid || v.Reason != x402.NonceUsed {
				t.Errorf("version %d: verify afterwards: got %+v, %v", version, v, err)
			}
			other := order(p)
			if version == x402.V1 {
				other.Offer.Resource = "http://127.0.0.1/other"
			} else {
				other.Payment.Resource = json.RawMessage(`{"url":"http://127.0.0.1/other"}`)
			}
			if r, err := w.Settle(t.Context(), other); err != nil || r.Success || r.Reason != x402.NonceUsed {
				t.Errorf("version %d: for another resource: got %+v, %v", version, r, err)
			}
		}
	})
}

// TestOneKeyForBothNames settles one authorization under the two names of its network.
func TestOneKeyForBothNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payer.Pay(t, price(), x402.V1, nil)
		for _, network := range []string{"base-sepolia", "eip155:84532"} {
			p.Network = network
			if r, err := w.Settle(t.Context(), order(p)); err != nil || !r.Success {
				t.Errorf("%s: got %+v, %v", network, r, err)
			}
		}
		if got := w.chain.Transfers(); got != 1 {
			t.Errorf("got %d transfers, want 1", got)
		}
	})
}

// TestLostTransfer checks that a settlement whose transaction was submitted, but not
// answered, succeeds without a second one.
func TestLostTransfer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payer.Pay(t, price(), x402.V2, nil)
		w.chain.Lose()
		if r, err := w.Settle(t.Context(), order(p)); api.CodeOf(err) != api.Unavailable {
			t.Fatalf("first: got %+v, %v, want unavailable", r, err)
		}
		r, err := w.replica().Settle(t.Context(), order(p))
		if err != nil || !r.Success || w.chain.Transfers() != 1 {
			t.Errorf("again: got %+v, %v after %d transfers, want success after 1", r, err, w.chain.Transfers())
		}
	})
}

// keeping is a store that keeps settlements of which nothing was submitted, as if the
// process had stopped before it dropped them.
type keeping struct{ *sqlstore.Store }

func (keeping) DropSettlement(context.Context, string) error { return nil }

// TestLessThanThePrice checks that a payment of less than the price is refused even if its
// payer has submitted it itself after an attempt that stopped before it refused it.
func TestLessThanThePrice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payer.Pay(t, price(), x402.V2, func(a *x402.Authorization) { a.Value = 1 })
		first := facilitator.New(keeping{w.store}, slog.New(slog.DiscardHandler), time.Now, w.chain)
		if r, err := first.Settle(t.Context(), order(p)); err != nil || r.Reason != x402.BadValue {
			t.Fatalf("first: got %+v, %v, want %s", r, err, x402.BadValue)
		}
		if _, ok, err := w.chain.Transfer(t.Context(), p.Authorization, p.Signature); err != nil || !ok {
			t.Fatal(ok, err)
		}
		later := func() time.Time { return time.Now().Add(time.Minute) } // the claim of the first attempt has ended
		r, err := facilitator.New(w.store, slog.New(slog.DiscardHandler), later, w.chain).Settle(t.Context(), order(p))
		if err == nil && (r.Success || r.Reason == "") {
			t.Errorf("a payment of 1 for a price of %d is settled: %+v", price().Amount, r)
		}
	})
}

// TestLateTransfer checks that a settlement whose transaction is included after the next
// attempt has looked for it is not refused for good.
func TestLateTransfer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payer.Pay(t, price(), x402.V2, nil)
		w.chain.Delay()
		for _, attempt := range []string{"waits in the pool", "is executed meanwhile"} {
			if r, err := w.replica().Settle(t.Context(), order(p)); api.CodeOf(err) != api.Unavailable {
				t.Errorf("the transaction %s: got %+v, %v, want unavailable", attempt, r, err)
			}
		}
		r, err := w.replica().Settle(t.Context(), order(p))
		if err != nil || !r.Success || w.chain.Transfers() != 1 {
			t.Errorf("afterwards: got %+v, %v after %d transfers, want success after 1", r, err, w.chain.Transfers())
		}
	})
}

// TestChainDown checks that nothing is decided while the chain does not answer.
func TestChainDown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payer.Pay(t, price(), x402.V2, nil)
		w.chain.Fail(errors.New("the RPC at 10.0.0.7 does not answer"))
		hidden := func(err error) bool { // payers are not told; the log is
			return !strings.Contains(api.Wire(err).Message, "10.0.0.7") && strings.Contains(err.Error(), "10.0.0.7")
		}
		if v, err := w.Verify(t.Context(), order(p)); api.CodeOf(err) != api.Unavailable || !hidden(err) {
			t.Errorf("verify: got %+v, %v; want unavailable, with the address in the log only", v, err)
		}
		if r, err := w.Settle(t.Context(), order(p)); api.CodeOf(err) != api.Unavailable || !hidden(err) {
			t.Errorf("settle: got %+v, %v; want unavailable, with the address in the log only", r, err)
		}
		w.chain.Fail(nil)
		if r, err := w.Settle(t.Context(), order(p)); err != nil || !r.Success {
			t.Errorf("afterwards: got %+v, %v", r, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		poor := x402test.NewPayer(t)
		p := poor.Pay(t, price(), x402.V2, nil)
		if v, err := w.Verify(t.Context(), order(p)); err != nil || v.Reason != x402.NoFunds {
			t.Errorf("no funds: got %+v, %v", v, err)
		}
		if r, err := w.Settle(t.Context(), order(p)); err != nil || r.Success || r.Reason != x402.NoFunds {
			t.Errorf("no funds: got %+v, %v", r, err)
		}
		bad := w.payer.Pay(t, price(), x402.V2, func(a *x402.Authorization) { a.ValidBefore = time.Now().Unix() - 1 })
		if r, err := w.Settle(t.Context(), order(bad)); err != nil || r.Reason != x402.BadValidBefore {
			t.Errorf("expired: got %+v, %v", r, err)
		}
		o := order(w.payer.Pay(t, price(), x402.V2, nil))
		o.Offer.Network = "eip155:1"
		if r, err := w.Settle(t.Context(), o); err != nil || r.Reason != x402.BadNetwork {
			t.Errorf("another network: got %+v, %v", r, err)
		}
		if got := w.chain.Transfers(); got != 0 {
			t.Errorf("got %d transfers, want none", got)
		}
	})
}

// TestUnusableReceipts checks that a receipt without a transaction that can be stored is no
// outcome: the seller would keep failing to store it, and the payer would have paid.
func TestUnusableReceipts(t *testing.T) {
	t.Parallel()
	for body, ok := range map[string]bool{
		`{"success":true,"transaction":"0x1","network":"base"}`:                                  true,
		`{"success":true,"network":"base"}`:                                                      false,
		`{"success":true,"transaction":"0x\u0000","network":"base"}`:                             false,
		`{"success":true,"transaction":"0x1\n2","network":"base"}`:                               false,
		`{"success":true,"transaction":"` + strings.Repeat("x", 201) + `","network":"base"}`:     false,
		`{"success":false,"errorReason":"insufficient_funds","transaction":"","network":"base"}`: true,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		remote := &facilitator.Remote{URL: server.URL, Client: server.Client()}
		if r, err := remote.Settle(t.Context(), x402.Order{}); ok != (err == nil) || err != nil && api.CodeOf(err) != api.Unavailable {
			t.Errorf("%.60s: got %+v, %v; want an outcome: %v", body, r, err, ok)
		}
		server.Close()
	}
}

// TestHTTP pays with the client for remote facilitators.
func TestHTTP(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		mux := http.NewServeMux()
		mux.HandleFunc("POST /x402/verify", w.ServeVerify)
		mux.HandleFunc("POST /x402/settle", w.ServeSettle)
		mux.HandleFunc("GET /x402/supported", w.ServeSupported)
		server := httptest.NewServer(mux)
		defer server.Close()
		remote := &facilitator.Remote{URL: server.URL + "/x402/", Client: server.Client(), Token: "t"}
		p := w.payer.Pay(t, price(), x402.V1, nil)
		if v, err := remote.Verify(t.Context(), order(p)); err != nil || !v.Valid {
			t.Errorf("verify: got %+v, %v", v, err)
		}
		for range 2 {
			if r, err := remote.Settle(t.Context(), order(p)); err != nil || !r.Success {
				t.Errorf("settle: got %+v, %v", r, err)
			}
		}
		w.chain.Fail(errors.New("connection refused"))
		if r, err := remote.Settle(t.Context(), order(w.payer.Pay(t, price(), x402.V1, nil))); api.CodeOf(err) != api.Unavailable {
			t.Errorf("settle without a chain: got %+v, %v", r, err)
		}
		away := &facilitator.Remote{URL: "http://127.0.0.1:1/s3cret", Client: server.Client()}
		if _, err := away.Settle(t.Context(), order(p)); api.CodeOf(err) != api.Unavailable || strings.Contains(api.Wire(err).Message, "127.0.0.1") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("no facilitator: got %v, want unavailable, with the address in the log only", err)
		}
		for body, want := range map[string]int{`{`: 400, `{}`: 400, `{"paymentPayload":{"x402Version":1}}`: 400} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/x402/verify", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := server.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var v x402.Verdict
			err = json.NewDecoder(resp.Body).Decode(&v)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != want || v.Valid || v.Reason == "" {
				t.Errorf("%s: got %s %+v, %v", body, resp.Status, v, err)
			}
		}
		want := x402.Supported{
			Kinds:      []x402.Kind{{Version: 2, Scheme: "exact", Network: "eip155:84532"}, {Version: 1, Scheme: "exact", Network: "base-sepolia"}},
			Extensions: []string{}, Signers: map[string][]string{"eip155:*": {w.chain.Signer().Hex()}},
		}
		if diff := cmp.Diff(want, w.Supported()); diff != "" {
			t.Errorf("supported (-want +got):\n%s", diff)
		}
	})
}
