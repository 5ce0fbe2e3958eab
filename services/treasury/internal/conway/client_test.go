package conway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/conway/conwaytest"
)

// desk is a client with a clock and recorded pauses.
type desk struct {
	*Client
	now    time.Time
	pauses []time.Duration
}

func newDesk(t *testing.T, url string) *desk {
	t.Helper()
	d := &desk{now: time.Unix(1_790_000_000, 0)}
	c, err := New(Options{
		URL: url, Key: conwaytest.Key, Now: func() time.Time { return d.now }, Random: func() float64 { return 0.5 },
		Pause: func(ctx context.Context, p time.Duration) error {
			d.pauses = append(d.pauses, p)
			d.now = d.now.Add(p)
			return ctx.Err()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	d.Client = c
	return d
}

func failure(t *testing.T, err error) Failure {
	t.Helper()
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		t.Fatalf("got %v, want a failure", err)
	}
	return *f
}

// TestRoutes uses every route of the API.
func TestRoutes(t *testing.T) {
	t.Parallel()
	s := conwaytest.Start(t, 10_000)
	d, ctx := newDesk(t, s.URL), t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	balance, err := d.Balance(ctx)
	if must("balance", err); balance != 10_000 {
		t.Errorf("balance: got %d", balance)
	}
	sizes, err := d.Pricing(ctx)
	if must("pricing", err); len(sizes) != 3 || sizes[0] != (Size{"small", 1, 512, 5, 500}) {
		t.Errorf("pricing: got %+v", sizes)
	}
	box, err := d.CreateSandbox(ctx, "k1", Sandbox{Name: "lab", VCPU: 1, MemoryMB: 512, DiskGB: 5})
	if must("create", err); box.ID != "sb_1" || box.Name != "lab" || box.Status != "running" {
		t.Errorf("create: got %+v", box)
	}
	boxes, err := d.Sandboxes(ctx)
	if must("list", err); len(boxes) != 1 || boxes[0].ID != box.ID {
		t.Errorf("list: got %+v", boxes)
	}
	address, err := d.ExposePort(ctx, "k2", box.ID, 8080)
	if must("expose", err); address != "https://sb_1-8080.example" {
		t.Errorf("expose: got %q", address)
	}
	must("remove port", d.RemovePort(ctx, "k3", box.ID, 8080))
	must("delete", d.DeleteSandbox(ctx, "k4", box.ID))
	must("delete again", d.DeleteSandbox(ctx, "k5", box.ID))
	found, err := d.SearchDomains(ctx, "lab.com", "com,org")
	must("search", err)
	if diff := cmp.Diff([]Domain{{"lab.com", true, 1200}, {"mylab.com", true, 900}}, found); diff != "" {
		t.Errorf("search (-want +got):\n%s", diff)
	}
	bought, err := d.RegisterDomain(ctx, "k6", "lab.com", 2)
	if must("register", err); bought.Domain != "lab.com" || bought.Expires != "2027-11-25" {
		t.Errorf("register: got %+v", bought)
	}
	rec, err := d.AddRecord(ctx, "k7", "lab.com", Record{Type: "A", Host: "www", Value: "192.0.2.1", TTL: 3600})
	want := Record{ID: "rec_2", Type: "A", Host: "www", Value: "192.0.2.1", TTL: 3600}
	if must("add record", err); rec != want {
		t.Errorf("add record: got %+v, want %+v", rec, want)
	}
	records, err := d.Records(ctx, "lab.com")
	must("records", err)
	if diff := cmp.Diff([]Record{want}, records); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	must("delete record", d.DeleteRecord(ctx, "k8", "lab.com", rec.ID))
	for _, r := range s.Requests("") {
		if (r.Method == http.MethodGet) != (r.Key == "") {
			t.Errorf("%s %s has the idempotency key %q", r.Method, r.Path, r.Key)
		}
	}
	// An id of an agent must not change the path.
	for _, id := range []string{"..", ".", "../../v1/credits", "a/b"} {
		before := len(s.Requests(""))
		_, err := d.ExposePort(ctx, "k9", id, 1)
		if got := s.Requests("")[before]; !strings.HasPrefix(got.Path, "/v1/sandboxes/") || !strings.HasSuffix(got.Path, "/ports/expose") || failure(t, err).Status != 404 {
			t.Errorf("id %q: got path %s, %v", id, got.Path, err)
		}
	}
}

// TestRetries checks which failures are repeated, with the same key, after which pauses,
// and whether the error tells that the outcome is unknown.
func TestRetries(t *testing.T) {
	t.Parallel()
	fault := func(status int) conwaytest.Fault { return conwaytest.Fault{Status: status} }
	lost := conwaytest.Fault{Lost: true}
	for name, tt := range map[string]struct {
		faults   []conwaytest.Fault
		requests int
		pauses   []time.Duration
		status   int // of the failure; -1: none, 0: no answer
		unknown  bool
	}{
		"good":                   {nil, 1, nil, -1, false},
		"busy once":              {[]conwaytest.Fault{fault(503)}, 2, []time.Duration{500 * time.Millisecond}, -1, false},
		"busy three times":       {[]conwaytest.Fault{fault(429), fault(500), fault(502)}, 4, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, -1, false},
		"busy four times":        {[]conwaytest.Fault{fault(429), fault(429), fault(429), fault(429)}, 4, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, 429, false},
		"failed, then busy":      {[]conwaytest.Fault{fault(504), fault(429), fault(429), fault(429)}, 4, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, 429, true},
		"retry after":            {[]conwaytest.Fault{{Status: 429, RetryAfter: "7"}}, 2, []time.Duration{7 * time.Second}, -1, false},
		"retry after too long":   {[]conwaytest.Fault{{Status: 429, RetryAfter: "61"}}, 1, nil, 429, false},
		"answer lost":            {[]conwaytest.Fault{lost}, 2, []time.Duration{500 * time.Millisecond}, -1, false},
		"answer always lost":     {[]conwaytest.Fault{lost, lost, lost, lost}, 4, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, 0, true},
		"refused":                {[]conwaytest.Fault{fault(400)}, 1, nil, 400, false},
		"lost, then refused":     {[]conwaytest.Fault{lost, fault(400)}, 2, []time.Duration{500 * time.Millisecond}, 400, true},
		"not found":              {[]conwaytest.Fault{fault(404)}, 1, nil, 404, false},
		"redirect":               {[]conwaytest.Fault{fault(302)}, 1, nil, 302, false},
		"a status of no meaning": {[]conwaytest.Fault{fault(501)}, 1, nil, 501, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := conwaytest.Start(t, 10_000)
			d := newDesk(t, s.URL)
			s.Fail(tt.faults...)
			_, err := d.CreateSandbox(t.Context(), "one", Sandbox{Name: "lab", MemoryMB: 512})
			if tt.status < 0 {
				if err != nil {
					t.Errorf("got %v, want success", err)
				}
			} else if f := failure(t, err); f.Status != tt.status || f.Unknown != tt.unknown {
				t.Errorf("got %+v, want status %d, unknown %v", f, tt.status, tt.unknown)
			}
			if diff := cmp.Diff(tt.pauses, d.pauses); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}
			all := s.Requests("")
			for _, r := range all {
				if r != all[0] || r.Key != "one" {
					t.Errorf("a repeated request differs: %+v, %+v", r, all[0])
				}
			}
			if len(all) != tt.requests {
				t.Errorf("got %d requests, want %d", len(all), tt.requests)
			}
			if _, boxes, _ := s.Balance(); boxes > 1 {
				t.Errorf("%d sandboxes are rented", boxes)
			}
		})
	}
}

// TestRateLimitOpensNoBreaker checks that a caller that is asked to wait does not close the
// route for the others.
func TestRateLimitOpensNoBreaker(t *testing.T) {
	t.Parallel()
	s := conwaytest.Start(t, 10_000)
	d := newDesk(t, s.URL)
	for range 2 * (retries + 1) {
		s.Fail(conwaytest.Fault{Status: http.StatusTooManyRequests})
	}
	create := func() error {
		_, err := d.CreateSandbox(t.Context(), "one", Sandbox{Name: "lab", MemoryMB: 512})
		return err
	}
	for range 2 {
		if f := failure(t, create()); f.Status != http.StatusTooManyRequests {
			t.Errorf("got %+v, want status 429", f)
		}
	}
	if err := create(); err != nil {
		t.Errorf("afterwards: got %v, want success", err)
	}
}

// TestBreaker checks that five failures in a row close a route for a minute, that then one
// probe decides, and that other routes are not affected.
func TestBreaker(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	var asked atomic.Int32
	release, arrived := make(chan struct{}), make(chan struct{}, 10)
	var slow atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "pricing") {
			_, _ = w.Write([]byte(`{"tiers":[]}`))
			return
		}
		asked.Add(1)
		if slow.Load() {
			arrived <- struct{}{}
			<-release
		}
		if fails.Load() {
			w.WriteHeader(500)
			return
		}
		_, _ = w.Write([]byte(`{"credits_cents":7}`))
	}))
	t.Cleanup(srv.Close)
	d, ctx := newDesk(t, srv.URL), t.Context()
	ask := func(name string, ok bool, total int32) {
		t.Helper()
		cents, err := d.Balance(ctx)
		if (err == nil) != ok || ok && cents != 7 || asked.Load() != total {
			t.Errorf("%s: got %d, %v after %d requests; want success %v after %d", name, cents, err, asked.Load(), ok, total)
		}
	}
	ask("at first", true, 1)
	fails.Store(true)
	ask("four failures", false, 5)
	ask("the fifth opens it", false, 6)
	ask("open", false, 6)
	if _, err := d.Pricing(ctx); err != nil {
		t.Errorf("another route: %v", err)
	}
	d.now = d.now.Add(openFor)
	ask("the probe fails", false, 7)
	ask("open again", false, 7)
	d.now = d.now.Add(openFor)
	fails.Store(false)
	slow.Store(true)
	probe := make(chan error, 1)
	go func() { _, err := d.Balance(ctx); probe <- err }()
	<-arrived
	if _, err := d.Balance(ctx); err == nil {
		t.Error("a second probe was sent")
	}
	slow.Store(false)
	close(release)
	if err := <-probe; err != nil {
		t.Errorf("the probe: %v", err)
	}
	ask("closed", true, 9)
	// A canceled request is no failure.
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	for range openAfter {
		if _, err := d.Balance(canceled); err == nil {
			t.Error("a canceled request succeeded")
		}
	}
	cents, err := d.Balance(ctx)
	if err != nil || cents != 7 {
		t.Errorf("after canceled requests: got %d, %v", cents, err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "api.conway.tech", "http://api.conway.tech", "https://me@api.conway.tech", "ftp://127.0.0.1"} {
		if _, err := New(Options{URL: url, Key: "k", Now: time.Now}); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
	s := conwaytest.Start(t, 100)
	d := newDesk(t, s.URL)
	_, err := d.CreateSandbox(t.Context(), "k1", Sandbox{MemoryMB: 512})
	if f := failure(t, err); f.Status != 402 || f.Required != 500 || f.Balance != 100 || api.CodeOf(Explain(err)) != api.Unavailable {
		t.Errorf("an empty account: got %+v", f)
	}
	d.key = func() string { return "secret-key" }
	_, err = d.Balance(t.Context())
	if f := failure(t, err); f.Status != 401 || strings.Contains(err.Error()+Explain(err).Error(), "secret-key") {
		t.Errorf("a wrong key: got %v", err)
	}
}

// TestUnusableTexts checks that the client returns no text that a database refuses, such as
// U+0000, or that has more lines or bytes than a row should have.
func TestUnusableTexts(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"POST /v1/sandboxes":        `{"id":"sb\u00001"}`,
		"GET /v1/sandboxes":         `[{"id":"a\nb"},{"id":"sb_1"},{"sandbox_id":"` + strings.Repeat("x", 201) + `"},{"name":"none"}]`,
		"POST /v1/domains/register": `{"expires_at":"2027\u0000-11-25\n` + strings.Repeat("x", 300) + `"}`,
		"GET /v1/credits/balance":   `{"error":"no\u0000credits"}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/credits/balance" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write([]byte(answers[r.Method+" "+r.URL.Path]))
	}))
	t.Cleanup(srv.Close)
	d, ctx := newDesk(t, srv.URL), t.Context()
	_, err := d.CreateSandbox(ctx, "k1", Sandbox{Name: "lab"})
	if f := failure(t, err); !f.Unknown {
		t.Errorf("create: got %+v, want an unknown outcome", f)
	}
	boxes, err := d.Sandboxes(ctx)
	if err != nil || len(boxes) != 1 || boxes[0].ID != "sb_1" {
		t.Errorf("list: got %+v, %v, want sb_1 alone", boxes, err)
	}
	bought, err := d.RegisterDomain(ctx, "k2", "lab.com", 1)
	if err != nil || !strings.HasPrefix(bought.Expires, "2027 -11-25 x") || len(bought.Expires) > 210 {
		t.Errorf("register: got %+v, %v, want a short line", bought, err)
	}
	_, err = d.Balance(ctx)
	if f := failure(t, err); f.Text != "no credits" {
		t.Errorf("refused: got %+v, want the text without U+0000", f)
	}
}

// FuzzAnswer checks that no answer makes the client panic, and that a balance is never
// invented.
func FuzzAnswer(f *testing.F) {
	f.Add(`{"balance_cents":5}`)
	f.Add(`{"results":[{"domain":"a","registration_price":1}]}`)
	f.Add(`[{"record_id":"x"}]`)
	f.Fuzz(func(t *testing.T, body string) {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		defer srv.Close()
		c, err := New(Options{URL: srv.URL, Key: "k", Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Balance(t.Context()); err == nil && !strings.Contains(strings.ToLower(body), "_cents") && !strings.Contains(body, `\u`) {
			t.Errorf("a balance was read from %q", body)
		}
		_, _ = c.Sandboxes(t.Context())
		_, _ = c.Records(t.Context(), "a.com")
		_, _ = c.SearchDomains(t.Context(), "a", "")
	})
}
