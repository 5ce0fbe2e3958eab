package treasury

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// sellerOf returns the address of a seller of answers for a cent. Its offers name a
// facilitator unless it is "".
func (b *buyer) sellerOf(t *testing.T, facilitates string) string {
	t.Helper()
	store, ok := b.payments.(*sqlstore.Store)
	if !ok {
		t.Fatalf("the store is %T", b.payments)
	}
	log := slog.New(slog.DiscardHandler)
	wall := paywall.New(paywall.Options{Facilitator: facilitator.New(store, log, time.Now, b.chain), Store: store, Log: log, Now: time.Now})
	price := func(*http.Request) (x402.Price, error) {
		return x402.Price{Terms: x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{0x71}, Amount: api.Cent, Timeout: 60}}, nil
	}
	sell := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("sunny")) }))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, paid, _ := x402.ReadPayment(r.Header); paid || facilitates == "" {
			sell(w, r)
			return
		}
		rec := httptest.NewRecorder()
		sell(rec, r)
		text, err := base64.StdEncoding.DecodeString(rec.Header().Get(x402.HeaderRequired))
		var c map[string]any
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err != nil {
			t.Errorf("the challenge: %v", err)
			return
		}
		c["accepts"].([]any)[0].(map[string]any)["extra"].(map[string]any)["facilitatorUrl"] = facilitates //nolint:forcetypeassert // as the paywall writes it
		text, _ = json.Marshal(c)                                                                          // it was JSON
		w.Header().Set(x402.HeaderRequired, base64.StdEncoding.EncodeToString(text))
		w.WriteHeader(http.StatusPaymentRequired)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// pays calls x402_fetch in a session for a principal and compares the refusal.
func (b *buyer) pays(t *testing.T, key, url, session string, by api.PrincipalKind, want string) {
	t.Helper()
	tool, _ := catalog.Named("x402_fetch")
	args, err := tool.Parse(fmt.Appendf(nil, `{"url":%q}`, url))
	if err != nil {
		t.Fatal(err)
	}
	text, err := b.x402Tool(t.Context(), executor.Call{Agent: "lucky", Session: session, Turn: "r.1", Key: key, Args: args, By: api.Principal{Kind: by}})
	if api.ReasonOf(err) != want || err == nil && !strings.HasSuffix(text, "sunny") || err != nil && want == "" {
		t.Errorf("%s: got %q, %v; want the reason %q", key, text, err, want)
	}
}

func (b *buyer) limit(t *testing.T, revision int64, l api.Limits) {
	t.Helper()
	if _, err := b.ledger.SetLimits(t.Context(), ledger.SetLimitsRequest{ID: fmt.Sprintf("limits-%d", revision), Agent: "lucky", Limits: l, Revision: revision}); err != nil {
		t.Fatal(err)
	}
}

// TestLimitsCountPayments pays over x402 with the limits that depend on more than the
// amount: of the session, of what peers cause, and of facilitators.
func TestLimitsCountPayments(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b := newBuyer(t, db)
		url := b.sellerOf(t, "")
		window := func(w api.Window, category string, cents api.Micros) api.Limits {
			return api.Limits{Windows: []api.WindowLimit{{Window: w, Category: category, Amount: new(cents * api.Cent)}}}
		}
		b.limit(t, 0, window(api.WindowSession, api.CategoryX402, 2))
		b.pays(t, "a", url, "s1", api.Creator, "")
		b.pays(t, "b", url, "s1", api.Creator, "")
		b.pays(t, "c", url, "s1", api.Creator, api.ReasonSessionLimit)
		b.pays(t, "d", url, "s2", api.Creator, "")
		// A payment keeps the session of its first request, also for another process.
		b.pays(t, "c", url, "", api.Creator, api.ReasonSessionLimit)

		b.limit(t, 1, window(api.WindowDay, api.CategoryPeer, 1))
		b.pays(t, "e", url, "s1", api.Peer, "")
		b.pays(t, "f", url, "s1", api.Peer, api.ReasonPeerLimit)
		b.pays(t, "g", url, "s1", api.Creator, "")

		b.limit(t, 2, api.Limits{Facilitators: []string{"settles.example"}})
		b.pays(t, "h", b.sellerOf(t, "https://Settles.example:443/x402"), "s1", api.Creator, "")
		b.pays(t, "i", b.sellerOf(t, "https://other.example"), "s1", api.Creator, api.ReasonFacilitator)
		b.pays(t, "j", url, "s1", api.Creator, api.ReasonFacilitator)
		b.limit(t, 3, api.Limits{Facilitators: []string{"*"}})
		b.pays(t, "j", url, "s1", api.Creator, "")
		got, err := b.getPayment(t.Context(), api.GetPayment{ID: "tool/h"})
		if err != nil || got.Facilitator != "settles.example" || got.Session != "s1" {
			t.Errorf("payment: got %+v, %v", got, err)
		}
	})
}
