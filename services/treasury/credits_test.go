package treasury_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/treasury"
)

// holders is a fake of social that knows API keys by their accounts.
type holders map[string]string // key by account

func (h holders) service() host.Service {
	return host.Define("social", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.AuthenticateKey) (api.KeyIdentity, error) {
			for account, key := range h {
				if api.HashKey(key) == m.Hash {
					return api.KeyIdentity{Key: m.Hash[:16], Account: account, Scopes: api.KeyScopes()}, nil
				}
			}
			return api.KeyIdentity{}, api.Errorf(api.Denied, "unknown key")
		}))
	})
}

// shop is a client of the HTTP API of credits.
type shop struct{ base, key string }

type shopAnswer struct {
	status  int
	body    string
	ID      string `json:"transfer_id"`
	Status  string `json:"status"`
	Balance *int64 `json:"balance_cents"`
	After   int64  `json:"balance_after_cents"`
	Error   any    `json:"error"`
	Code    string `json:"code"`
	Details *struct {
		Required int64 `json:"required_cents"`
		Balance  int64 `json:"current_balance_cents"`
	} `json:"details"`
}

func (s shop) do(t *testing.T, method, path, body, idempotency string) (a shopAnswer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", s.key) // raw, as existing clients send it
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.status, a.body = resp.StatusCode, string(data)
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatalf("%s %s: %d %s: %v", method, path, resp.StatusCode, data, err)
	}
	return a
}

// TestCreditsAPI uses the routes as existing clients do.
func TestCreditsAPI(t *testing.T) {
	t.Parallel()
	const outside = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"
	keys := holders{"lucky": api.NewKey(), outside: api.NewKey()}
	w := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, keys.service())
	lucky, client := shop{w.HTTP, keys["lucky"]}, shop{w.HTTP, keys[outside]}
	own := fund(t, w.Bus, 10*api.Dollar)
	bob := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "bob"})

	if got := lucky.do(t, "GET", "/v1/credits/balance", "", ""); got.status != 200 || got.Balance == nil || *got.Balance != 1000 {
		t.Errorf("balance: got %d %s, want 1000 cents", got.status, got.body)
	}
	if got := lucky.do(t, "GET", "/v1/credits/balance?agent=bob", "", ""); got.status != 403 {
		t.Errorf("balance of another agent: got %d %s, want 403", got.status, got.body)
	}
	if got := lucky.do(t, "GET", "/v1/credits/pricing", "", ""); got.status != 200 || !strings.Contains(got.body, `"tiers":[`) || !strings.Contains(got.body, `"topup_usd":[5,25,100,500,1000,2500]`) {
		t.Errorf("pricing: got %d %s", got.status, got.body)
	}

	body := `{"to_address":"` + bob.Address + `","amount_cents":250,"note":"thanks"}`
	amount := func(n string) string { return strings.Replace(body, `":250,`, `":`+n+`,`, 1) }
	first := lucky.do(t, "POST", "/v1/credits/transfer", body, "01JC")
	if first.status != 200 || first.ID == "" || first.After != 750 || first.Status != "completed" {
		t.Fatalf("transfer: got %d %s, want 750 cents left", first.status, first.body)
	}
	lucky.do(t, "POST", "/v1/credits/transfers", `{"to_address":"`+bob.Address+`","amount_cents":50}`, "01JD")
	if again := lucky.do(t, "POST", "/v1/credits/transfers", body, "01JC"); again.body != first.body || again.status != 200 {
		t.Errorf("the same request again: got %d %s, want %s", again.status, again.body, first.body)
	}
	for name, tt := range map[string]struct {
		shop              shop
		body, idempotency string
		status            int
		code              string
	}{
		"another amount with the key": {lucky, amount("251"), "01JC", 409, "CONFLICT"},
		"another note with the key":   {lucky, strings.Replace(body, "thanks", "bye", 1), "01JC", 409, "CONFLICT"},
		"too much":                    {lucky, amount("70001"), "k1", 402, "INSUFFICIENT_CREDITS"},
		"an account without credits":  {client, body, "k1", 402, "INSUFFICIENT_CREDITS"},
		"to itself":                   {lucky, strings.Replace(body, bob.Address, own.Address, 1), "k2", 400, "INVALID"},
		"unknown recipient":           {lucky, strings.Replace(body, bob.Address, "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359", 1), "k3", 400, "UNKNOWN_RECIPIENT"},
		"no address":                  {lucky, `{"amount_cents":1}`, "k4", 400, "INVALID"},
		"part of a cent":              {lucky, amount("0.4"), "k5", 400, "INVALID"},
		"negative":                    {lucky, amount("-1"), "k6", 400, "INVALID"},
		"amount as text":              {lucky, amount(`"250"`), "k7", 400, "INVALID"},
		"too large":                   {lucky, amount("9223372036854775807"), "k8", 400, "INVALID"},
		"no JSON":                     {lucky, `{`, "k9", 400, "INVALID"},
		"another agent's":             {lucky, strings.Replace(body, "{", `{"from":"bob",`, 1), "k10", 403, "DENIED"},
		"no key":                      {shop{w.HTTP, api.NewKey()}, body, "k11", 401, "DENIED"},
	} {
		got := tt.shop.do(t, "POST", "/v1/credits/transfer", tt.body, tt.idempotency)
		if text, _ := got.Error.(string); got.status != tt.status || got.Code != tt.code || text == "" {
			t.Errorf("%s: got %d %s, want %d %s", name, got.status, got.body, tt.status, tt.code)
		}
		if tt.status == 402 && (got.Details == nil || got.Details.Required == 0) || name == "too much" && got.Details.Balance != 700 {
			t.Errorf("%s: got the details %+v", name, got.Details)
		}
	}
	// A wallet outside has an account since its first request, and can be paid.
	if got := client.do(t, "GET", "/v1/credits/balance", "", ""); got.status != 200 || *got.Balance != 0 {
		t.Errorf("balance of a wallet outside: got %d %s, want 0", got.status, got.body)
	}
	if got := lucky.do(t, "POST", "/v1/credits/transfer", `{"to_address":"`+outside+`","amount_cents":100}`, ""); got.status != 200 {
		t.Errorf("transfer to a wallet outside: got %d %s", got.status, got.body)
	}
	if got := client.do(t, "POST", "/v1/credits/transfer", amount("40"), "k1"); got.status != 200 || got.After != 60 {
		t.Errorf("transfer by a wallet outside, with a key that was refused before: got %d %s", got.status, got.body)
	}
	for account, want := range map[string]api.Micros{"lucky": 6 * api.Dollar, "bob": 340 * api.Cent, outside: 60 * api.Cent} {
		if got := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: account}); got.Available != want {
			t.Errorf("%s: got %s, want %s", account, got.Available, want)
		}
	}
	refused(t, w.Bus, api.OpenAccount{Agent: outside}, api.Invalid, "")
}

// TestTransferOnce sends one transfer from many clients at once: all get the same answer,
// and the credits move once.
func TestTransferOnce(t *testing.T) {
	t.Parallel()
	keys := holders{"lucky": api.NewKey()}
	w := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, keys.service())
	fund(t, w.Bus, 10*api.Dollar)
	bob := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "bob"})
	got := make([]string, 20)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			got[i] = shop{w.HTTP, keys["lucky"]}.do(t, "POST", "/v1/credits/transfer", `{"to_address":"`+bob.Address+`","amount_cents":100}`, "one").body
		})
	}
	wg.Wait()
	for _, body := range got {
		if diff := cmp.Diff(got[0], body); diff != "" {
			t.Errorf("answers differ:\n%s", diff)
		}
	}
	if b := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "bob"}); b.Available != api.Dollar {
		t.Errorf("bob has %s, want $1.00", b.Available)
	}
}
