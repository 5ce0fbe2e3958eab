package paywall_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// lossy is a store whose next saves fail after they are stored.
type lossy struct {
	paywall.Store
	fail atomic.Int64
}

func (s *lossy) SaveUse(ctx context.Context, u paywall.Use) error {
	err := s.Store.SaveUse(ctx, u)
	if err == nil && s.fail.Add(-1) >= 0 {
		err = errors.New("connection lost")
	}
	return err
}

// TestFailingStore checks that a payer whose payment is settled is told to repeat the
// request when the store fails, and has the answer afterwards: a 500 would be kept as what
// was paid for.
func TestFailingStore(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for name, first := range map[string]api.Micros{"settled first": 0, "served first": api.Dollar} {
			log, store := slog.New(slog.DiscardHandler), &lossy{Store: s.store}
			wall := paywall.New(paywall.Options{
				Facilitator: facilitator.New(s.store, log, time.Now, s.chain), Store: store, Log: log, Now: time.Now, SettleFirst: first,
			})
			price := func(*http.Request) (x402.Price, error) { return s.price(""), nil }
			h := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "sunny") }))
			pay := s.payer.Pay(t, x402.Price{Terms: s.price("").Terms, Resource: x402.Resource{URL: "http://example.com/"}}, x402.V2, nil)
			ask := func() *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
				field, value := pay.Header()
				r.Header.Set(field, value)
				rec := httptest.NewRecorder()
				h(rec, r)
				return rec
			}
			store.fail.Store(1)
			if got := ask(); got.Code != http.StatusServiceUnavailable || strings.Contains(got.Body.String(), "connection") {
				t.Errorf("%s: got %d %s, want 503 without the cause", name, got.Code, got.Body)
			}
			if err := s.store.EndClaims(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := ask(); got.Code != http.StatusOK || got.Body.String() != "sunny" {
				t.Errorf("%s: repeated: got %d %s", name, got.Code, got.Body)
			}
		}
		if n := s.chain.Transfers(); n != 2 {
			t.Errorf("got %d transfers, want 2", n)
		}
	})
}
