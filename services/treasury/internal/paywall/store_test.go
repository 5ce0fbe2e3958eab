package paywall_test

import (
	"context"
	"encoding/json"
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
	fail  atomic.Int64
	cause error
}

func (s *lossy) SaveUse(ctx context.Context, u paywall.Use) error {
	err := s.Store.SaveUse(ctx, u)
	if err == nil && s.fail.Add(-1) >= 0 {
		err = s.cause
	}
	return err
}

// TestFailingStore checks that a payer whose payment is settled is told to repeat the
// request when the store fails, and has the answer afterwards: a 500 would be kept as what
// was paid for.
func TestFailingStore(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for name, tt := range map[string]struct {
			first api.Micros
			cause error
		}{
			"settled first":      {0, errors.New("connection lost")},
			"served first":       {api.Dollar, errors.New("connection lost")},
			"settled, disk full": {0, &api.Error{Code: api.Unavailable, Reason: api.ReasonNoSpace, Message: "connection and disk"}},
		} {
			log, store, first := slog.New(slog.DiscardHandler), &lossy{Store: s.store, cause: tt.cause}, tt.first
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
		if n := s.chain.Transfers(); n != 3 {
			t.Errorf("got %d transfers, want 3", n)
		}
	})
}

// forgetful is a facilitator that loses its next answers and, as most do, refuses what it
// has settled already.
type forgetful struct {
	*facilitator.Facilitator
	chain facilitator.Chain
	lose  atomic.Int64
}

func (f *forgetful) Settle(ctx context.Context, o x402.Order) (x402.Receipt, error) {
	hash, ok, err := f.chain.Transfer(ctx, o.Payment.Authorization, o.Payment.Signature)
	switch {
	case err != nil:
		return x402.Receipt{}, err
	case f.lose.Add(-1) >= 0:
		return x402.Receipt{}, api.Errorf(api.Unavailable, "no answer")
	case !ok:
		return x402.Receipt{Reason: x402.NonceUsed}, nil
	}
	return x402.Receipt{Success: true, Transaction: hash}, nil
}

// TestForgetfulFacilitator checks that a payment whose settlement was not answered is served
// although the facilitator refuses it the second time, also if the node of the shop has its
// block later, and that one that others have settled is not.
func TestForgetfulFacilitator(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		log := slog.New(slog.DiscardHandler)
		f := &forgetful{Facilitator: facilitator.New(s.store, log, time.Now, s.chain), chain: s.chain}
		var behind, later atomic.Int64 // answers of a node that does not have the block, seconds
		wall := paywall.New(paywall.Options{
			Facilitator: f, Store: s.store, Log: log, Now: func() time.Time { return time.Now().Add(time.Duration(later.Load()) * time.Second) },
			Transferred: func(ctx context.Context, a x402.Authorization) (string, error) {
				if behind.Add(-1) >= 0 {
					return "", nil
				}
				return s.chain.Transferred(ctx, a)
			},
		})
		price := func(*http.Request) (x402.Price, error) { return s.price(""), nil }
		h := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "sunny") }))
		pay := func() x402.Payment {
			return s.payer.Pay(t, x402.Price{Terms: s.price("").Terms, Resource: x402.Resource{URL: "http://example.com/"}}, x402.V2, nil)
		}
		ask := func(p *x402.Payment) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			field, value := p.Header()
			r.Header.Set(field, value)
			rec := httptest.NewRecorder()
			h(rec, r)
			return rec.Code
		}
		p := pay()
		f.lose.Store(1)
		behind.Store(2)
		for _, want := range []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusOK, http.StatusOK} {
			if got := ask(&p); got != want {
				t.Errorf("lost answer: got %d, want %d", got, want)
			}
		}
		never := pay()
		f.lose.Store(1)
		behind.Store(2)
		for after, want := range []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusPaymentRequired} {
			later.Store(int64(after) * 100)
			if got := ask(&never); got != want {
				t.Errorf("not found, after %d s: got %d, want %d", later.Load(), got, want)
			}
		}
		later.Store(0)
		other := pay()
		if _, ok, err := s.chain.Transfer(t.Context(), other.Authorization, other.Signature); !ok || err != nil {
			t.Fatalf("transfer: got %t, %v", ok, err)
		}
		for range 2 {
			if got := ask(&other); got != http.StatusPaymentRequired {
				t.Errorf("settled by others: got %d, want 402", got)
			}
		}
	})
}

// TestFacilitatorWithoutTransaction checks that a payment is served which another facilitator
// has settled without naming the transaction: it is found on the chain, although the
// facilitator refuses the repeated request.
func TestFacilitatorWithoutTransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		vague := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			o, derr := x402.DecodeOrder(body)
			if err != nil || derr != nil {
				t.Errorf("order: got %v, %v", err, derr)
			}
			receipt := x402.Receipt{Reason: x402.NonceUsed}
			if _, ok, err := s.chain.Transfer(r.Context(), o.Payment.Authorization, o.Payment.Signature); err != nil || ok {
				receipt = x402.Receipt{Success: true}
			}
			_ = json.NewEncoder(w).Encode(receipt)
		}))
		defer vague.Close()
		log := slog.New(slog.DiscardHandler)
		wall := paywall.New(paywall.Options{
			Facilitator: &facilitator.Remote{URL: vague.URL, Client: vague.Client()}, Store: s.store, Log: log, Now: time.Now, Transferred: s.chain.Transferred,
		})
		price := func(*http.Request) (x402.Price, error) { return s.price(""), nil }
		h := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			paid, _ := paywall.PaymentOf(r.Context())
			_, _ = io.WriteString(w, paid.Transaction)
		}))
		p := s.payer.Pay(t, x402.Price{Terms: s.price("").Terms, Resource: x402.Resource{URL: "http://example.com/"}}, x402.V2, nil)
		field, value := p.Header()
		for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			r.Header.Set(field, value)
			rec := httptest.NewRecorder()
			if h(rec, r); rec.Code != want || want == http.StatusOK && rec.Body.Len() != 66 {
				t.Errorf("got %d %s, want %d with the transaction", rec.Code, rec.Body, want)
			}
		}
	})
}

// deadlines is a facilitator and a store that compare the deadlines of a visit with the end
// of its claim.
type deadlines struct {
	paywall.Store

	t       *testing.T
	until   time.Time // of the claim
	checked []string
	settled int
}

func (d *deadlines) ClaimUse(ctx context.Context, u paywall.Use) (paywall.Use, bool, error) {
	d.until = time.UnixMicro(u.Until)
	return d.Store.ClaimUse(ctx, u)
}

func (d *deadlines) check(ctx context.Context, step string) {
	d.checked = append(d.checked, step)
	if end, ok := ctx.Deadline(); !ok || !end.Before(d.until) {
		d.t.Errorf("%s: it may take until %s, and the claim ends at %s", step, end, d.until)
	}
}

func (d *deadlines) Verify(ctx context.Context, _ x402.Order) (x402.Verdict, error) {
	d.check(ctx, "verify")
	return x402.Verdict{Valid: true}, nil
}

func (d *deadlines) Settle(ctx context.Context, _ x402.Order) (x402.Receipt, error) {
	d.check(ctx, "settle")
	if d.settled++; d.settled == 1 {
		return x402.Receipt{}, api.Errorf(api.Unavailable, "no answer")
	}
	return x402.Receipt{Reason: x402.NonceUsed}, nil
}

// TestWorkEndsBeforeItsClaim checks that each step of a visit ends before another visit can
// claim the payment: a visit that continues after the end of its claim would drop the use of
// the other one.
func TestWorkEndsBeforeItsClaim(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for first, want := range map[api.Micros]string{0: "settle, settle, search, handler", api.Dollar: "verify, handler, settle, settle, search"} {
			d := &deadlines{Store: s.store, t: t}
			wall := paywall.New(paywall.Options{
				Facilitator: d, Store: d, Log: slog.New(slog.DiscardHandler), Now: time.Now, SettleFirst: first,
				Transferred: func(ctx context.Context, _ x402.Authorization) (string, error) {
					d.check(ctx, "search")
					return "0x1", nil
				},
			})
			price := func(*http.Request) (x402.Price, error) { return s.price(""), nil }
			h := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d.check(r.Context(), "handler")
				_, _ = io.WriteString(w, "sunny")
			}))
			p := s.payer.Pay(t, x402.Price{Terms: s.price("").Terms, Resource: x402.Resource{URL: "http://example.com/"}}, x402.V2, nil)
			field, value := p.Header()
			for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
				r.Header.Set(field, value)
				rec := httptest.NewRecorder()
				if h(rec, r); rec.Code != want {
					t.Errorf("got %d %s, want %d", rec.Code, rec.Body, want)
				}
			}
			if got := strings.Join(d.checked, ", "); got != want {
				t.Errorf("got the steps %s, want %s", got, want)
			}
		}
	})
}

// TestConfirms checks that a sale is confirmed when its authorization has ended, again
// after an error, and then not any more.
func TestConfirms(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for name, first := range map[string]api.Micros{"settled first": 0, "served first": api.Dollar} {
			var later time.Duration
			var asked []string
			var fails error
			o := s.options()
			o.SettleFirst, o.Now = first, func() time.Time { return time.Now().Add(later) }
			o.Confirm = func(_ context.Context, u paywall.Use) error { asked = append(asked, u.ID); return fails }
			wall := paywall.New(o)
			price := func(*http.Request) (x402.Price, error) { return s.price(""), nil }
			h := wall.Protect(price, host.WriteError, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "sunny") }))
			pay := s.payer.Pay(t, x402.Price{Terms: s.price("").Terms, Resource: x402.Resource{URL: "http://example.com/"}}, x402.V2, nil)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			field, value := pay.Header()
			r.Header.Set(field, value)
			rec := httptest.NewRecorder()
			if h(rec, r); rec.Code != http.StatusOK {
				t.Fatalf("%s: got %d %s", name, rec.Code, rec.Body)
			}
			for _, step := range []struct {
				what  string
				later time.Duration
				fails error
				calls int
			}{
				{"before the end", time.Hour, nil, 0},
				{"at the end, failing", 90 * time.Minute, errors.New("rpc down"), 1},
				{"again", 90 * time.Minute, nil, 1},
				{"confirmed", 2 * time.Hour, nil, 0},
			} {
				later, fails, asked = step.later, step.fails, nil
				if err := wall.Confirm(t.Context()); !errors.Is(err, step.fails) || len(asked) != step.calls {
					t.Errorf("%s, %s: got %v after calls for %v, want %v after %d", name, step.what, err, asked, step.fails, step.calls)
				}
			}
		}
	})
}

// twoDue is a store with two uses to confirm.
type twoDue struct{ paywall.Store }

func (twoDue) DueUses(context.Context, int64, int) ([]paywall.Use, error) {
	return []paywall.Use{{ID: "one"}, {ID: "two"}}, nil
}

// TestConfirmsUntilTheChainIsDown checks that the next sale is confirmed after an error that
// concerns one sale, and not asked for when the chain does not answer.
func TestConfirmsUntilTheChainIsDown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		fails error
		calls int
	}{{errors.New("no such transaction"), 2}, {api.Errorf(api.Unavailable, "the RPC does not answer"), 1}} {
		calls := 0
		wall := paywall.New(paywall.Options{Store: twoDue{}, Now: time.Now, Confirm: func(context.Context, paywall.Use) error {
			calls++
			return tt.fails
		}})
		if err := wall.Confirm(t.Context()); !errors.Is(err, tt.fails) || calls != tt.calls {
			t.Errorf("%v: got %v after %d calls, want %d", tt.fails, err, calls, tt.calls)
		}
	}
}
