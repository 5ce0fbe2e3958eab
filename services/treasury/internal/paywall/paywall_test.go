package paywall_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

// shop is a server with three routes of the same price. /fails answers 500 until it is
// repaired; /first is settled before it is served.
type shop struct {
	*httptest.Server
	store    *sqlstore.Store
	chain    *x402test.Chain
	payer    *x402test.Payer
	runs     atomic.Int64
	repaired atomic.Bool
	gate     chan struct{} // if not nil, the handlers wait for it
	begun    chan struct{} // receives a value from each handler that waits
}

func each(t *testing.T, test func(t *testing.T, s *shop)) {
	t.Helper()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		payer := x402test.NewPayer(t)
		s := &shop{store: sqlstore.New(db, nil), payer: payer, chain: x402test.NewChain(x402.BaseSepolia, payer.Address(), 1_000_000)}
		s.Server = httptest.NewServer(s.routes(s.options()))
		t.Cleanup(s.Close)
		test(t, s)
	})
}

func (s *shop) options() paywall.Options {
	log := slog.New(slog.DiscardHandler)
	return paywall.Options{Facilitator: facilitator.New(s.store, log, time.Now, s.chain), Store: s.store, Log: log, Now: time.Now, SettleFirst: api.Dollar}
}

// routes returns the routes of one replica.
func (s *shop) routes(options paywall.Options) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, o paywall.Options, h http.HandlerFunc) {
		price := func(*http.Request) (x402.Price, error) {
			return x402.Price{Terms: x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{0x70}, Amount: 10_000, Timeout: 60}}, nil
		}
		mux.HandleFunc(pattern, paywall.New(o).Protect(price, host.WriteError, h))
	}
	serve := func(w http.ResponseWriter, r *http.Request) {
		n := s.runs.Add(1)
		if s.gate != nil {
			s.begun <- struct{}{}
			<-s.gate
		}
		body, err := io.ReadAll(r.Body)
		paid, ok := paywall.PaymentOf(r.Context())
		if err != nil || !ok || paid.Payer != s.payer.Address().Hex() {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("X-Own", "yes")
		_, _ = fmt.Fprintf(w, "run %d of %s", n, body)
	}
	fails := func(w http.ResponseWriter, r *http.Request) {
		if !s.repaired.Load() {
			s.runs.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		serve(w, r)
	}
	handle("/paid", options, serve)
	handle("/fails", options, fails)
	options.SettleFirst = 0
	handle("/first", options, fails)
	return mux
}

// price returns what a route demands.
func (s *shop) price(path string) x402.Price {
	return x402.Price{
		Terms:    x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{0x70}, Amount: 10_000, Timeout: 60},
		Resource: x402.Resource{URL: s.URL + path},
	}
}

type answer struct {
	status   int
	body     string
	header   http.Header
	receipt  x402.Receipt
	replayed bool
}

func (s *shop) get(t *testing.T, path, body string, p *x402.Payment) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if p != nil {
		name, value := p.Header()
		req.Header.Set(name, value)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, body: string(data), header: resp.Header, replayed: resp.Header.Get("Idempotent-Replayed") != ""}
	a.receipt, _ = x402.ReadReceipt(resp.Header)
	if resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s: got Cache-Control %q", path, resp.Header.Get("Cache-Control"))
	}
	return a
}

// TestSells pays once in each version, and repeats the payment.
func TestSells(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for i, path := range []string{"/paid", "/paid", "/first", "/first"} {
			s.repaired.Store(true)
			p := s.payer.Pay(t, s.price(path), []int{x402.V1, x402.V2}[i%2], nil)
			if a := s.get(t, path, "", nil); a.status != http.StatusPaymentRequired {
				t.Errorf("%s without a payment: got %+v", path, a)
			}
			first := s.get(t, path, "x", &p)
			if want := fmt.Sprintf("run %d of x", i+1); first.status != http.StatusOK || first.body != want || first.header.Get("X-Own") != "yes" {
				t.Errorf("%s: got %+v, want %s", path, first, want)
			}
			if first.replayed || !first.receipt.Success || first.receipt.Transaction == "" || first.receipt.Network != p.Network {
				t.Errorf("%s: receipt: got %+v", path, first.receipt)
			}
			again := s.get(t, path, "x", &p)
			if again.status != http.StatusOK || again.body != first.body || !again.replayed || again.receipt != first.receipt || again.header.Get("X-Own") != "yes" {
				t.Errorf("%s again: got %+v, want the stored answer", path, again)
			}
			if a := s.get(t, path, "y", &p); a.status != http.StatusPaymentRequired {
				t.Errorf("%s with another body: got %+v", path, a)
			}
			if got := s.chain.Transfers(); got != i+1 {
				t.Errorf("got %d transfers, want %d", got, i+1)
			}
		}
	})
}

// TestOnePaymentOneGrant presents one payment 20 times at the same time, at two replicas.
func TestOnePaymentOneGrant(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/paid", "/first"} {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s *shop) {
				s.repaired.Store(true)
				replica := &shop{Server: httptest.NewServer(s.routes(s.options()))}
				defer replica.Close()
				for _, version := range []int{x402.V1, x402.V2} {
					runs, transfers := s.runs.Load(), s.chain.Transfers()
					p := s.payer.Pay(t, s.price(path), version, nil)
					p.Resource = nil // the second replica has another address
					var grants, others atomic.Int64
					var wg sync.WaitGroup
					for i := range 20 {
						wg.Go(func() {
							at := []*shop{s, replica}[i%2]
							switch a := at.get(t, path, "", &p); {
							case a.status == http.StatusOK && !a.replayed:
								grants.Add(1)
							case a.status == http.StatusOK, a.status == http.StatusConflict:
								others.Add(1)
							default:
								t.Errorf("got %+v", a)
							}
						})
					}
					wg.Wait()
					if grants.Load() != 1 || s.runs.Load()-runs != 1 || s.chain.Transfers()-transfers != 1 {
						t.Errorf("version %d: got %d grants, %d runs and %d transfers, want 1 of each", version, grants.Load(), s.runs.Load()-runs, s.chain.Transfers()-transfers)
					}
				}
			})
		})
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		s.gate, s.begun = make(chan struct{}), make(chan struct{}, 1)
		p := s.payer.Pay(t, s.price("/paid"), x402.V2, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if a := s.get(t, "/paid", "", &p); a.status != http.StatusOK {
				t.Errorf("first: got %+v", a)
			}
		})
		<-s.begun
		if a := s.get(t, "/paid", "", &p); a.status != http.StatusConflict {
			t.Errorf("second: got %+v, want 409", a)
		}
		close(s.gate)
		wg.Wait()
	})
}

// TestBoundToResource presents a payment at another route of the same price.
func TestBoundToResource(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		s.repaired.Store(true)
		p := s.payer.Pay(t, s.price("/paid"), x402.V2, nil)
		if a := s.get(t, "/first", "", &p); a.status != http.StatusPaymentRequired || s.runs.Load() != 0 {
			t.Errorf("version 2, elsewhere first: got %+v after %d runs", a, s.runs.Load())
		}
		for _, version := range []int{x402.V1, x402.V2} {
			p := s.payer.Pay(t, s.price("/paid"), version, nil)
			if a := s.get(t, "/paid", "", &p); a.status != http.StatusOK {
				t.Fatalf("got %+v", a)
			}
			p.Resource = nil
			runs := s.runs.Load()
			if a := s.get(t, "/first", "", &p); a.status != http.StatusPaymentRequired || s.runs.Load() != runs {
				t.Errorf("version %d, elsewhere second: got %+v after %d more runs", version, a, s.runs.Load()-runs)
			}
		}
	})
}

// TestFailingHandler checks that a failing handler is not paid, or is run again for a
// payment that was settled first: its payer is told to repeat the request.
func TestFailingHandler(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for i, path := range []string{"/fails", "/first"} {
			s.repaired.Store(false)
			p := s.payer.Pay(t, s.price(path), x402.V2, nil)
			a := s.get(t, path, "", &p)
			want := []int{http.StatusInternalServerError, http.StatusServiceUnavailable}[i]
			if a.status != want || s.chain.Transfers() != i+i || a.receipt.Success != (path == "/first") {
				t.Errorf("%s: got %+v after %d transfers, want %d", path, a, s.chain.Transfers(), want)
			}
			s.repaired.Store(true)
			if a := s.get(t, path, "", &p); a.status != http.StatusOK || s.chain.Transfers() != i+1 || a.replayed {
				t.Errorf("%s, repaired: got %+v after %d transfers", path, a, s.chain.Transfers())
			}
		}
	})
}

// TestChainDown checks that a request without an outcome is continued by its repetition,
// without a second run of the handler.
func TestChainDown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		p := s.payer.Pay(t, s.price("/paid"), x402.V2, nil)
		s.chain.Lose()
		if a := s.get(t, "/paid", "", &p); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("answer of the chain is lost: got %+v", a)
		}
		if a := s.get(t, "/paid", "", &p); a.status != http.StatusOK || s.runs.Load() != 1 || s.chain.Transfers() != 1 {
			t.Errorf("again: got %+v after %d runs and %d transfers, want 1 of each", a, s.runs.Load(), s.chain.Transfers())
		}
		p = s.payer.Pay(t, s.price("/paid"), x402.V2, nil)
		s.chain.Fail(errors.New("connection refused"))
		if a := s.get(t, "/paid", "", &p); a.status != http.StatusServiceUnavailable || s.runs.Load() != 1 {
			t.Errorf("no chain: got %+v after %d runs", a, s.runs.Load())
		}
	})
}

// keeping is a store that keeps the uses for which nothing was done, as if the process had
// stopped before it dropped them.
type keeping struct{ *sqlstore.Store }

func (keeping) DropUse(context.Context, string) error { return nil }

// refusing is a facilitator that settles nothing.
type refusing struct{}

func (refusing) Verify(context.Context, x402.Order) (x402.Verdict, error) {
	return x402.Verdict{Reason: x402.NonceUsed}, nil
}

func (refusing) Settle(context.Context, x402.Order) (x402.Receipt, error) {
	return x402.Receipt{Reason: x402.NonceUsed}, nil
}

// getFirst presents a payment for /first to another process, with options of its own.
func (s *shop) getFirst(t *testing.T, o paywall.Options, p x402.Payment) answer {
	t.Helper()
	process := &shop{Server: httptest.NewServer(s.routes(o))}
	defer process.Close()
	p.Resource = nil // each process has another address
	return process.get(t, "/first", "", &p)
}

// TestLessThanThePrice checks that a payment of less than the price, whose window is at
// fault too, buys nothing if its payer has submitted it itself, also after a process that
// stopped before it refused it.
func TestLessThanThePrice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		p := s.payer.Pay(t, s.price("/first"), x402.V2, func(a *x402.Authorization) {
			a.Value, a.ValidBefore = 1, time.Now().Add(2*time.Hour).Unix()
		})
		o := paywall.Options{
			Facilitator: refusing{}, Store: keeping{s.store}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Transferred: s.chain.Transferred,
		}
		if a := s.getFirst(t, o, p); a.status != http.StatusPaymentRequired {
			t.Fatalf("first: got %+v", a)
		}
		if _, ok, err := s.chain.Transfer(t.Context(), p.Authorization, p.Signature); err != nil || !ok {
			t.Fatal(ok, err)
		}
		s.repaired.Store(true)
		o.Now = func() time.Time { return time.Now().Add(5 * time.Minute) } // the claim of the first request has ended
		if a := s.getFirst(t, o, p); a.status != http.StatusPaymentRequired || s.runs.Load() != 0 {
			t.Errorf("again: got %+v after %d runs, want 402 and none", a, s.runs.Load())
		}
	})
}

// TestPayerIsNotToldTheRPC checks that the answer to a payer, which is not authenticated, does not have
// the address of the RPC when the chain is asked for an earlier settlement and does not answer.
func TestPayerIsNotToldTheRPC(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		p := s.payer.Pay(t, s.price("/first"), x402.V2, nil)
		var log strings.Builder
		o := paywall.Options{
			Facilitator: refusing{}, Store: keeping{s.store}, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now,
			Transferred: func(context.Context, x402.Authorization) (string, error) {
				return "", api.Errorf(api.Unavailable, "the RPC at 10.0.0.7 does not answer")
			},
		}
		if a := s.getFirst(t, o, p); a.status != http.StatusPaymentRequired {
			t.Fatalf("first: got %+v", a)
		}
		o.Now = func() time.Time { return time.Now().Add(5 * time.Minute) } // the claim of the first request has ended
		if a := s.getFirst(t, o, p); a.status != http.StatusServiceUnavailable || strings.Contains(a.body, "10.0.0.7") || !strings.Contains(log.String(), "10.0.0.7") {
			t.Errorf("again: got %+v, log %s; want 503, with the address in the log only", a, log.String())
		}
	})
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		for name, change := range map[string]func(*x402.Authorization){
			"less":     func(a *x402.Authorization) { a.Value-- },
			"expired":  func(a *x402.Authorization) { a.ValidBefore = time.Now().Unix() },
			"too long": func(a *x402.Authorization) { a.ValidBefore = time.Now().Unix() + 7200 },
			"payee":    func(a *x402.Authorization) { a.To = common.Address{1} },
		} {
			p := s.payer.Pay(t, s.price("/paid"), x402.V2, change)
			if a := s.get(t, "/paid", "", &p); a.status != http.StatusPaymentRequired || !strings.Contains(a.body, "invalid_") {
				t.Errorf("%s: got %+v", name, a)
			}
		}
		poor := x402test.NewPayer(t)
		p := poor.Pay(t, s.price("/paid"), x402.V2, nil)
		for range 2 {
			if a := s.get(t, "/paid", "", &p); a.status != http.StatusPaymentRequired || !strings.Contains(a.body, string(x402.NoFunds)) {
				t.Errorf("no funds: got %+v", a)
			}
		}
		if s.runs.Load() != 0 || s.chain.Transfers() != 0 {
			t.Errorf("got %d runs and %d transfers", s.runs.Load(), s.chain.Transfers())
		}
	})
}

// TestIdentifier checks the extension payment-identifier: the same identifier with
// another payment is a conflict, and moves no money.
func TestIdentifier(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *shop) {
		pay := func() x402.Payment {
			p := s.payer.Pay(t, s.price("/paid"), x402.V2, nil)
			p.Extensions = x402.Identified(p.Extensions, "pay_0123456789abcdef")
			return p
		}
		first, second := pay(), pay()
		for range 2 {
			if a := s.get(t, "/paid", "", &first); a.status != http.StatusOK {
				t.Errorf("first: got %+v", a)
			}
		}
		if a := s.get(t, "/paid", "", &second); a.status != http.StatusConflict || s.chain.Transfers() != 1 || s.runs.Load() != 1 {
			t.Errorf("second: got %+v after %d transfers", a, s.chain.Transfers())
		}
	})
}
