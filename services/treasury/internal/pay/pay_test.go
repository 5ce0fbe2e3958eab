package pay_test

import (
	"context"
	"errors"
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
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

// world is an agent with a wallet, a seller and a chain. The clock is moved by hand.
type world struct {
	store  *sqlstore.Store
	chain  *x402test.Chain
	payer  *x402test.Payer
	seller *httptest.Server
	money  *money

	later atomic.Int64 // seconds that the clock is ahead
	runs  atomic.Int64 // of the seller's handler
	lose  atomic.Int64 // number of paid answers to lose
	calls atomic.Int64 // requests with a payment
}

const cost = 10_000

func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) { test(t, newWorld(t, db)) })
}

func newWorld(t *testing.T, db *sqldb.DB) *world {
	t.Helper()
	payer := x402test.NewPayer(t)
	w := &world{
		store: sqlstore.New(db, nil), payer: payer, chain: x402test.NewChain(x402.BaseSepolia, payer.Address(), 1_000_000), money: &money{holds: map[string]string{}},
	}
	w.chain.Clock = w.now
	log := slog.New(slog.DiscardHandler)
	wall := paywall.New(paywall.Options{
		Facilitator: facilitator.New(w.store, log, w.now, w.chain), Store: w.store, Log: log, Now: w.now, SettleFirst: api.Dollar,
	})
	mux := http.NewServeMux()
	price := func(*http.Request) (x402.Price, error) {
		return x402.Price{Terms: x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{0x70}, Amount: cost, Timeout: 60}}, nil
	}
	mux.HandleFunc("/paid", wall.Protect(price, host.WriteError, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(rw, "secret %d", w.runs.Add(1))
	})))
	mux.HandleFunc("/free", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("free")) })
	mux.HandleFunc("/broken", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusInternalServerError) })
	w.seller = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, ok, _ := x402.ReadPayment(r.Header); ok {
			w.calls.Add(1)
			if w.lose.Load() > 0 {
				w.lose.Add(-1)
				mux.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler) // the connection ends without an answer
			}
		}
		mux.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.seller.Close)
	return w
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.later.Load()) * time.Second) }

// Address implements [pay.Signer].
func (w *world) Address(context.Context, string) (common.Address, error) {
	return w.payer.Address(), nil
}

// signer signs with the payer's key and counts.
type signer struct {
	*world
	t *testing.T
	n *atomic.Int64
}

func (s signer) Sign(_ context.Context, _ string, a x402.Authorization, t x402.Terms, _ time.Time) (x402.Signature, error) {
	s.n.Add(1)
	return s.payer.Sign(s.t, a, t.Network), nil
}

// money is a ledger with the holds of one agent: "held", "settled" or "released".
type money struct {
	mu      sync.Mutex
	holds   map[string]string
	refusal error
}

func (m *money) Hold(_ context.Context, p *pay.Payment, host string, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusal != nil || host == "" {
		return m.refusal
	}
	if m.holds[p.Hold()] == "" {
		m.holds[p.Hold()] = "held"
	}
	return nil
}

func (m *money) Settle(_ context.Context, p *pay.Payment) error { return m.end(p, "settled") }

func (m *money) Release(_ context.Context, p *pay.Payment, _ string) error {
	return m.end(p, "released")
}

func (m *money) Reopen(_ context.Context, p *pay.Payment, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds[p.Undone()] != "settled" {
		return fmt.Errorf("the hold %s is %q", p.Undone(), m.holds[p.Undone()])
	}
	if m.holds[p.Hold()] == "" {
		m.holds[p.Hold()] = "held"
	}
	return nil
}

func (m *money) end(p *pay.Payment, how string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch was := m.holds[p.Hold()]; was {
	case "held", how:
		m.holds[p.Hold()] = how
		return nil
	case "":
		if how == "released" {
			return nil
		}
		return errors.New("no hold")
	default:
		return fmt.Errorf("the hold is %s, and is to be %s", was, how)
	}
}

func (m *money) state(id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds["x402/"+id]
}

// payerOf returns a process that pays, after change.
func (w *world) payerOf(t *testing.T, change func(*pay.Options)) *pay.Payer {
	t.Helper()
	o := pay.Options{
		Store: w.store, Money: w.money, Signer: signer{w, t, new(atomic.Int64)}, Chain: w.chain, Networks: x402.Networks{x402.Base, x402.BaseSepolia},
		Outbound: safehttp.Options{AllowPrivate: true}, Log: slog.New(slog.DiscardHandler), Now: w.now,
	}
	if change != nil {
		change(&o)
	}
	p := pay.New(o)
	t.Cleanup(p.Close)
	return p
}

func (w *world) request(path string) pay.Request {
	return pay.Request{ID: "p1", Agent: "lucky", Method: "POST", URL: w.seller.URL + path, Body: []byte(`{"q":1}`)}
}

func TestPays(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		for range 2 {
			got, err := p.Pay(t.Context(), w.request("/paid"))
			if err != nil || got.State != api.PaymentSettled || string(got.Answer.Body) != "secret 1" || got.Answer.Status != 200 || got.Transaction == "" {
				t.Fatalf("pay: got %+v, %v", got, err)
			}
			if got.Amount != cost || got.Network != "eip155:84532" || got.Payer != w.payer.Address().Hex() || got.ValidBefore > w.now().Unix()+60 {
				t.Errorf("pay: got %+v", got)
			}
		}
		if w.chain.Transfers() != 1 || w.runs.Load() != 1 || w.calls.Load() != 1 || w.money.state("p1") != "settled" {
			t.Errorf("got %d transfers, %d runs, %d requests, hold %s", w.chain.Transfers(), w.runs.Load(), w.calls.Load(), w.money.state("p1"))
		}
		other := w.request("/paid")
		other.Body = nil
		if _, err := p.Pay(t.Context(), other); api.CodeOf(err) != api.Conflict || api.ReasonOf(err) != api.ReasonKeyTaken {
			t.Errorf("another request with the id: got %v", err)
		}
		w.later.Add(10)
		if n, err := p.Reconcile(t.Context()); n != 0 || err != nil { // its block is final
			t.Errorf("reconcile: got %d, %v", n, err)
		}
		list, err := w.store.Payments(t.Context(), "lucky", api.PaymentSettled, w.now().UnixMicro(), 10)
		if err != nil || len(list) != 1 || !list[0].Posted || list[0].NextAt != 0 {
			t.Errorf("list: got %+v, %v", list, err)
		}
	})
}

// TestLostAnswer loses the answer of a settled payment: within one call, and of a whole
// call whose caller repeats it.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	for _, lost := range []int64{1, 2, 3, 5} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *world) {
				w.lose.Store(lost)
				p := w.payerOf(t, nil)
				got, err := p.Pay(t.Context(), w.request("/paid"))
				if lost >= 3 {
					if api.CodeOf(err) != api.Unavailable || got.State != api.PaymentUnknown || w.money.state("p1") != "held" {
						t.Fatalf("first call: got %+v, %v, hold %s", got, err, w.money.state("p1"))
					}
					got, err = p.Pay(t.Context(), w.request("/paid"))
				}
				if err != nil || string(got.Answer.Body) != "secret 1" || got.State != api.PaymentSettled {
					t.Errorf("got %+v, %v", got, err)
				}
				if w.chain.Transfers() != 1 || w.runs.Load() != 1 || w.money.state("p1") != "settled" {
					t.Errorf("got %d transfers, %d runs, hold %s, want 1, 1, settled", w.chain.Transfers(), w.runs.Load(), w.money.state("p1"))
				}
			})
		})
	}
}

// TestReconciles leaves payments without an outcome: one that was settled, and one that
// never reached the seller.
func TestReconciles(t *testing.T) {
	t.Parallel()
	for settled, want := range map[bool]api.PaymentState{true: api.PaymentSettled, false: api.PaymentExpired} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *world) {
				p := w.payerOf(t, nil)
				w.lose.Store(100)
				if !settled {
					w.chain.Fail(errors.New("connection refused"))
				}
				if got, err := p.Pay(t.Context(), w.request("/paid")); api.CodeOf(err) != api.Unavailable || got.State != api.PaymentUnknown {
					t.Fatalf("got %+v, %v", got, err)
				}
				w.later.Add(59)
				if n, err := p.Reconcile(t.Context()); n != 0 || err != nil {
					t.Errorf("within the window: got %d, %v", n, err)
				}
				w.chain.Fail(errors.New("connection refused"))
				w.later.Add(600)
				if n, err := p.Reconcile(t.Context()); n != 0 || err != nil || w.money.state("p1") != "held" {
					t.Errorf("without a chain: got %d, %v, hold %s", n, err, w.money.state("p1"))
				}
				w.chain.Fail(nil)
				w.later.Add(1200)
				if n, err := p.Reconcile(t.Context()); n != 1 || err != nil {
					t.Errorf("after the window: got %d, %v", n, err)
				}
				got, err := p.Pay(t.Context(), w.request("/paid"))
				if got.State != want || (err == nil) != settled {
					t.Errorf("got %+v, %v, want %s", got, err, want)
				}
				if hold := w.money.state("p1"); settled && hold != "settled" || !settled && hold != "released" {
					t.Errorf("hold: got %s", hold)
				}
				if n, err := p.Reconcile(t.Context()); n != 0 || err != nil {
					t.Errorf("again: got %d, %v", n, err)
				}
			})
		})
	}
}

// TestCollectsTheAnswer settles a payment whose answers are lost until its window has ended.
// The next request gets what was paid for, with the same authorization.
func TestCollectsTheAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		w.lose.Store(4)
		if got, err := p.Pay(t.Context(), w.request("/paid")); api.CodeOf(err) != api.Unavailable || got.State != api.PaymentUnknown {
			t.Fatalf("lost: got %+v, %v", got, err)
		}
		w.later.Add(1200)
		if n, err := p.Reconcile(t.Context()); n != 1 || err != nil {
			t.Fatalf("reconcile: got %d, %v", n, err)
		}
		if got, err := p.Pay(t.Context(), w.request("/paid")); err != nil || got.State != api.PaymentSettled || got.Answer.Status != 0 {
			t.Errorf("lost again: got %+v, %v", got, err)
		}
		for range 2 {
			got, err := p.Pay(t.Context(), w.request("/paid"))
			if err != nil || got.State != api.PaymentSettled || string(got.Answer.Body) != "secret 1" {
				t.Errorf("got %+v, %v, want the answer", got, err)
			}
		}
		if w.chain.Transfers() != 1 || w.runs.Load() != 1 || w.calls.Load() != 5 || w.money.state("p1") != "settled" {
			t.Errorf("got %d transfers, %d runs, %d requests, hold %s; want 1, 1, 5, settled", w.chain.Transfers(), w.runs.Load(), w.calls.Load(), w.money.state("p1"))
		}
	})
}

// seller returns a server that demands the price, and answers a request with the n-th
// payment as paid does; n is 0 for the first request to /fails-once, without a payment.
func seller(t *testing.T, paid func(rw http.ResponseWriter, n int64)) (at string, payments *atomic.Int64) {
	t.Helper()
	payments = new(atomic.Int64)
	var failed atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, ok, _ := x402.ReadPayment(r.Header); ok {
			paid(rw, payments.Add(1))
			return
		}
		if r.URL.Path == "/fails-once" && failed.CompareAndSwap(false, true) {
			paid(rw, 0)
			return
		}
		body := x402.Demand{Price: x402.Price{Terms: x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{1}, Amount: cost, Timeout: 60}}}.Write(rw.Header())
		rw.WriteHeader(http.StatusPaymentRequired)
		_, _ = rw.Write(body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, payments
}

// TestStoredAnswer repeats a request whose answer has arrived before the chain has the
// settlement: the seller is not asked again, and would refuse the payment.
func TestStoredAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		at, payments := seller(t, func(rw http.ResponseWriter, n int64) {
			if n > 1 {
				rw.WriteHeader(http.StatusPaymentRequired)
				return
			}
			_, _ = rw.Write([]byte("thanks"))
		})
		p, r := w.payerOf(t, nil), w.request("")
		r.URL = at
		for range 2 {
			if got, err := p.Pay(t.Context(), r); err != nil || got.State != api.PaymentUnknown || string(got.Answer.Body) != "thanks" {
				t.Errorf("got %+v, %v, want the stored answer", got, err)
			}
		}
		if n := payments.Load(); n != 1 {
			t.Errorf("the payment was sent %d times, want 1", n)
		}
	})
}

// TestStrangeContentType stores an answer whose header has bytes that are no UTF-8, which
// HTTP permits and PostgreSQL does not store in a text.
func TestStrangeContentType(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		at, payments := seller(t, func(rw http.ResponseWriter, _ int64) {
			rw.Header().Set("Content-Type", "text/plain; name=\xff"+strings.Repeat("x", 300))
			_, _ = rw.Write([]byte("thanks"))
		})
		p, r := w.payerOf(t, nil), w.request("")
		r.URL = at
		for range 2 {
			got, err := p.Pay(t.Context(), r)
			if kind := got.Answer.ContentType; err != nil || string(got.Answer.Body) != "thanks" || !strings.HasPrefix(kind, "text/plain; name=?x") || len(kind) > 200 {
				t.Errorf("got %+v, %v, want the answer with a short type in UTF-8", got, err)
			}
		}
		if n := payments.Load(); n != 1 {
			t.Errorf("the payment was sent %d times, want 1", n)
		}
	})
}

// TestFailureIsNotTheAnswer pays a seller that has failed before it named its price. If its
// answer to the payment is lost, that failure is not the answer.
func TestFailureIsNotTheAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		at, _ := seller(t, func(rw http.ResponseWriter, n int64) {
			if n > 0 {
				panic(http.ErrAbortHandler)
			}
			rw.WriteHeader(http.StatusInternalServerError)
		})
		p, r := w.payerOf(t, nil), w.request("")
		r.URL = at + "/fails-once"
		if got, err := p.Pay(t.Context(), r); err != nil || got.State != api.PaymentIntended || got.Answer.Status != http.StatusInternalServerError {
			t.Fatalf("failed: got %+v, %v", got, err)
		}
		if got, err := p.Pay(t.Context(), r); api.CodeOf(err) != api.Unavailable || got.Answer.Status != 0 {
			t.Errorf("lost: got %+v, %v, want no answer", got, err)
		}
	})
}

// TestWaitsForTheOtherRequest repeats a request while the first one waits for the seller.
func TestWaitsForTheOtherRequest(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		begun, gate := make(chan struct{}), make(chan struct{})
		at, payments := seller(t, func(rw http.ResponseWriter, _ int64) {
			close(begun)
			<-gate
			_, _ = rw.Write([]byte("thanks"))
		})
		r := w.request("")
		r.URL = at
		var wg sync.WaitGroup
		pays := func(p *pay.Payer) {
			if got, err := p.Pay(t.Context(), r); err != nil || string(got.Answer.Body) != "thanks" {
				t.Errorf("got %+v, %v, want the answer of the one request", got, err)
			}
		}
		first, asked := w.payerOf(t, nil), &asking{Store: w.store, refused: make(chan struct{}, 100)}
		wg.Go(func() { pays(first) })
		<-begun
		second := w.payerOf(t, func(o *pay.Options) { o.Store = asked })
		wg.Go(func() { pays(second) })
		<-asked.refused
		close(gate)
		wg.Wait()
		if n := payments.Load(); n != 1 {
			t.Errorf("the payment was sent %d times, want 1", n)
		}
	})
}

// asking notes each payment that another process works on.
type asking struct {
	pay.Store
	refused chan struct{}
}

func (s *asking) ClaimPayment(ctx context.Context, p pay.Payment) (pay.Payment, bool, error) {
	stored, claimed, err := s.Store.ClaimPayment(ctx, p)
	if err == nil && !claimed {
		s.refused <- struct{}{}
	}
	return stored, claimed, err
}

// TestChainIsTheArbiter has a seller that reports a settlement which never happened.
func TestChainIsTheArbiter(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		liar := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			payment, ok, _ := x402.ReadPayment(r.Header)
			if !ok {
				body := x402.Demand{Price: x402.Price{Terms: x402.Terms{Network: x402.BaseSepolia, PayTo: common.Address{1}, Amount: cost, Timeout: 60}}}.Write(rw.Header())
				rw.WriteHeader(http.StatusPaymentRequired)
				_, _ = rw.Write(body)
				return
			}
			name, value := x402.Receipt{Success: true, Transaction: "0x1"}.Header(&payment, x402.BaseSepolia)
			rw.Header().Set(name, value)
			_, _ = rw.Write([]byte("thanks"))
		}))
		defer liar.Close()
		p := w.payerOf(t, nil)
		r := w.request("")
		r.URL = liar.URL
		got, err := p.Pay(t.Context(), r)
		if err != nil || got.State != api.PaymentUnknown || string(got.Answer.Body) != "thanks" || w.money.state("p1") != "held" {
			t.Errorf("got %+v, %v, hold %s", got, err, w.money.state("p1"))
		}
		w.later.Add(600)
		if n, err := p.Reconcile(t.Context()); n != 1 || err != nil || w.money.state("p1") != "released" {
			t.Errorf("got %d, %v, hold %s, want it released", n, err, w.money.state("p1"))
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		r := w.request("/paid")
		r.Max = cost - 1
		for range 2 {
			if got, err := p.Pay(t.Context(), r); api.ReasonOf(err) != api.ReasonOffer || got.State != api.PaymentFailed {
				t.Errorf("too dear: got %+v, %v", got, err)
			}
		}
		r = w.request("/paid")
		r.ID = "p2"
		w.money.refusal = &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "no money"}
		if got, err := p.Pay(t.Context(), r); api.ReasonOf(err) != api.ReasonInsufficient || got.State != api.PaymentIntended {
			t.Errorf("no money: got %+v, %v", got, err)
		}
		w.money.refusal = nil
		if got, err := p.Pay(t.Context(), r); err != nil || got.State != api.PaymentSettled {
			t.Errorf("with money: got %+v, %v", got, err)
		}
		private := w.payerOf(t, func(o *pay.Options) { o.Outbound = safehttp.Options{} })
		if _, err := private.Pay(t.Context(), w.request("/paid")); api.CodeOf(err) != api.Invalid {
			t.Errorf("a private address: got %v", err)
		}
		for name, change := range map[string]func(*pay.Request){
			"id":      func(r *pay.Request) { r.ID = "a b" },
			"method":  func(r *pay.Request) { r.Method = "TRACE" },
			"url":     func(r *pay.Request) { r.URL = "file:///etc/passwd" },
			"payment": func(r *pay.Request) { r.Header = map[string]string{"x-payment": "x"} },
			"header":  func(r *pay.Request) { r.Header = map[string]string{"X-A": "a\r\nB: c"} },
			"body":    func(r *pay.Request) { r.Body = make([]byte, 300<<10) },
			"max":     func(r *pay.Request) { r.Max = -1 },
		} {
			r := w.request("/paid")
			change(&r)
			if _, err := p.Pay(t.Context(), r); api.CodeOf(err) != api.Invalid {
				t.Errorf("%s: got %v, want invalid", name, err)
			}
		}
		if w.chain.Transfers() != 1 {
			t.Errorf("got %d transfers, want 1", w.chain.Transfers())
		}
	})
}

func TestFree(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		for range 2 {
			got, err := p.Pay(t.Context(), w.request("/free"))
			if err != nil || got.State != api.PaymentFree || string(got.Answer.Body) != "free" {
				t.Errorf("got %+v, %v", got, err)
			}
		}
		r := w.request("/broken")
		r.ID = "p2"
		if got, err := p.Pay(t.Context(), r); err != nil || got.State != api.PaymentIntended || got.Answer.Status != 500 {
			t.Errorf("a failing seller: got %+v, %v", got, err)
		}
		r = w.request("/free")
		r.ID, r.URL = "p3", "http://127.0.0.1:1/"
		if got, err := p.Pay(t.Context(), r); api.CodeOf(err) != api.Unavailable || strings.Contains(err.Error(), "http://") {
			t.Errorf("no seller: got %+v, %v", got, err)
		}
	})
}

// TestConcurrentCalls makes the same request at the same time in two processes.
func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		payers := []*pay.Payer{w.payerOf(t, nil), w.payerOf(t, nil)}
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for {
					got, err := payers[i%2].Pay(t.Context(), w.request("/paid"))
					if api.ReasonOf(err) == api.ReasonBusy {
						if wait.For(t.Context(), 5*time.Millisecond) != nil {
							return
						}
						continue
					}
					if err != nil || string(got.Answer.Body) != "secret 1" {
						t.Errorf("got %+v, %v", got, err)
					}
					return
				}
			})
		}
		wg.Wait()
		if w.chain.Transfers() != 1 || w.calls.Load() != 1 {
			t.Errorf("got %d transfers and %d paid requests, want 1 of each", w.chain.Transfers(), w.calls.Load())
		}
	})
}
