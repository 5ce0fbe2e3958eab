package treasury_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

// get sends a request, with a payment unless it is nil.
func get(t *testing.T, url, token string, p *x402.Payment) (int, http.Header, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	if p != nil {
		name, value := p.Header()
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}

// TestSellsCredits buys credits over HTTP with USDC on the dev chain: in both versions,
// once for each payment, and after an outage of the RPC.
func TestSellsCredits(t *testing.T) {
	t.Parallel()
	proxy := chaintest.Start(t, devchain.Options{})
	env := maps.Clone(development)
	env["ANIMA_TREASURY_RPC_URL"], env["ANIMA_TREASURY_NETWORK"] = proxy.URL.Reveal(), "dev"
	w := start(t, apptest.Options{Env: env})
	lucky := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	payer := x402test.NewPayer(t)
	proxy.Give(t, payer.Address(), 100_000_000, "payer")
	url := w.HTTP + "/pay/5/" + lucky.Address

	status, header, body := get(t, url, "", nil)
	cs, err := x402.ReadChallenges(header, body)
	if status != http.StatusPaymentRequired || err != nil || len(cs) != 2 || header.Get("Cache-Control") != "no-store" {
		t.Fatalf("without a payment: got %d %s, %v", status, body, err)
	}
	terms, err := cs[0].Offers[0].Terms(x402.Networks{chain.Dev})
	if err != nil || terms.Amount != 5*api.Dollar {
		t.Fatalf("terms: got %+v, %v", terms, err)
	}
	price := x402.Price{Terms: terms, Resource: x402.Resource{URL: url, Description: "credits for 5 dollars", MimeType: "application/json"}}
	for i, version := range []int{x402.V1, x402.V2} {
		p := payer.Pay(t, price, version, nil)
		if i == 0 {
			proxy.Set(chaintest.Refuses)
			if status, _, body := get(t, url, "", &p); status != http.StatusServiceUnavailable {
				t.Errorf("without an RPC: got %d %s", status, body)
			}
			proxy.Set(chaintest.Works)
		}
		for range 2 {
			status, header, body := get(t, url, "", &p)
			var sold struct {
				Credits int64 `json:"credits_cents"`
				Agent   string
			}
			receipt, ok := x402.ReadReceipt(header)
			if err := json.Unmarshal(body, &sold); status != http.StatusOK || err != nil || sold.Credits != 500 || sold.Agent != "lucky" || !ok || !receipt.Success {
				t.Errorf("version %d: got %d %s, %+v", version, status, body, receipt)
			}
		}
		want := api.Micros(i+1) * 5 * api.Dollar
		if got := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"}); got.Available != want {
			t.Errorf("version %d: got %s, want %s", version, got.Available, want)
		}
	}
	fees := terms.PayTo.Hex() // the wallet of treasury itself has no account
	for _, path := range []string{"/pay/6/" + lucky.Address, "/pay/05/" + lucky.Address, "/pay/5/" + (common.Address{9}).Hex(), "/pay/5/" + fees, "/pay/5/lucky"} {
		if status, _, body := get(t, w.HTTP+path, "", nil); status != http.StatusBadRequest {
			t.Errorf("%s: got %d %s, want 400", path, status, body)
		}
	}
	if status, _, body := get(t, w.HTTP+"/x402/supported", "", nil); status != http.StatusOK || len(body) == 0 {
		t.Errorf("supported: got %d %s", status, body)
	}
	if r := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: got %+v", r)
	}
	// The agent has no USDC in the ledger, so nothing is signed for it.
	_ = ask[api.Payments](t, w.Bus, api.ListPayments{})
	refused(t, w.Bus, api.Pay{ID: "p1", Agent: "lucky", URL: "http://127.0.0.1:1/"}, api.Invalid, "")
	refused(t, w.Bus, api.Pay{ID: "p1", Agent: "nobody", URL: "http://127.0.0.1:1/"}, api.NotFound, "")
}

// TestRequestSpans checks that requests to a seller and to the RPC have spans in the trace of
// the payment, and that a seller receives no trace context, not even from the agent.
func TestRequestSpans(t *testing.T) {
	t.Parallel()
	received := make(chan http.Header, 1)
	seller := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Clone() }))
	t.Cleanup(seller.Close)
	collector := oteltest.Receiver(t)
	w, p := onchain(t, map[string]string{"ANIMA_TREASURY_X402_PRIVATE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.Endpoint()})
	ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: api.Dollar})
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	free := ask[api.Payment](t, w.Bus, api.Pay{ID: "p1", Agent: "lucky", URL: seller.URL, Headers: map[string]string{"traceparent": parent, "X-Own": "1"}})
	if free.State != api.PaymentFree {
		t.Errorf("got %+v, want an answer that costs nothing", free)
	}
	if h := <-received; h.Get("Traceparent") != "" || h.Get("X-Own") != "1" {
		t.Errorf("the seller received %v, want no trace context", h)
	}
	w.Stop()
	spans := collector.Spans()
	sent := func(name, address string) *oteltest.Span {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(spans, func(s oteltest.Span) bool {
			return s.Name == name && s.Kind == "client" && fmt.Sprint(s.Attributes["server.port"]) == u.Port()
		})
		if i < 0 {
			t.Fatalf("no span %s of %d for port %s", name, len(spans), u.Port())
		}
		return &spans[i]
	}
	sent("POST", p.URL.Reveal())
	get := sent("GET", seller.URL)
	i := slices.IndexFunc(spans, func(s oteltest.Span) bool { return s.Name == "process anima.treasury.req.pay.v1" })
	if i < 0 || get.TraceID != spans[i].TraceID || spans[i].Attributes["automaton.payment.id"] != "p1" {
		t.Errorf("the request to the seller is in the trace %s, want that of the payment", get.TraceID)
	}
}

// TestWithoutChain checks what is refused where no chain is configured.
func TestWithoutChain(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{})
	ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	refused(t, w.Bus, api.Pay{ID: "p1", Agent: "lucky", URL: "https://example.com/"}, api.Denied, api.ReasonNoChain)
	if status, _, body := get(t, w.HTTP+"/pay/5/0x7000000000000000000000000000000000000000", "", nil); status != http.StatusForbidden {
		t.Errorf("buy credits: got %d %s, want 403", status, body)
	}
	refused(t, w.Bus, api.GetPayment{ID: "p1"}, api.NotFound, "")
	refused(t, w.Bus, api.ListPayments{State: "bogus"}, api.Invalid, "")
	for _, state := range api.PaymentStates() {
		_ = ask[api.Payments](t, w.Bus, api.ListPayments{State: state})
	}
	if got := ask[api.Payments](t, w.Bus, api.ListPayments{}); len(got.Payments) != 0 {
		t.Errorf("payments: got %+v", got)
	}
}
