package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// traced returns a tracer provider and the collector that receives its spans.
func traced(t *testing.T) (*oteltest.Collector, *telemetry.Exporters, trace.TracerProvider) {
	t.Helper()
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Lookup: c.Lookup})
	return c, e, start(t, e, "treasury").TracerProvider()
}

func flushed(t *testing.T, c *oteltest.Collector, e *telemetry.Exporters) []oteltest.Span {
	t.Helper()
	if err := e.ForceFlush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	return c.Spans()
}

func find(t *testing.T, spans []oteltest.Span, name string) oteltest.Span {
	t.Helper()
	i := slices.IndexFunc(spans, func(s oteltest.Span) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no span %q in %+v", name, spans)
	}
	return spans[i]
}

func get(ctx context.Context, t *testing.T, client *http.Client, url string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Baggage", "set=by-hand")
	r.Header["traceparent"] = []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	res, err := client.Do(r)
	if len(r.Header) != 2 {
		t.Errorf("the caller's headers are now %v", r.Header)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

func TestTransportSendsNoContext(t *testing.T) {
	t.Parallel()
	c, e, provider := traced(t)
	var got []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Clone()) // requests are sequential
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/paid?key=hunter2", http.StatusFound)
		case "/paid":
			if r.Header.Get("X-Payment") == "" && !r.URL.Query().Has("key") {
				w.WriteHeader(http.StatusPaymentRequired)
				return
			}
			_, _ = io.WriteString(w, "content")
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: telemetry.NewTransport(server.Client().Transport)}
	t.Cleanup(client.CloseIdleConnections)

	get(telemetry.WithTurn(t.Context(), "a1", "t1"), t, client, server.URL+"/paid")
	ctx, turn := provider.Tracer("x").Start(telemetry.WithTurn(t.Context(), "a1", "t1"), "turn")
	for _, path := range []string{"/paid", "/teapot", "/moved"} {
		get(ctx, t, client, server.URL+path)
	}
	turn.End()
	for _, h := range got {
		for _, key := range []string{"Traceparent", "Tracestate", "Baggage"} {
			if v, ok := h[key]; ok {
				t.Errorf("a foreign host got %s: %q", key, v)
			}
		}
	}
	if len(got) != 5 {
		t.Errorf("%d requests arrived, want 5", len(got))
	}

	spans := flushed(t, c, e)
	if faults := oteltest.Check(spans, turn.SpanContext().TraceID()); faults != nil || len(spans) != 5 {
		t.Errorf("%d spans, want the turn and 4 below it, none for the request outside it: %v", len(spans), faults)
	}
	for _, s := range spans {
		if strings.Contains(fmt.Sprint(s), "hunter2") {
			t.Errorf("a span holds the query: %+v", s)
		}
	}
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	common := map[string]any{
		"http.request.method": "GET", "server.address": u.Hostname(), "server.port": number(t, u.Port()),
		"url.scheme": "http", "network.protocol.version": "1.1", "automaton.agent.id": "a1", "automaton.turn.id": "t1",
	}
	want := []map[string]any{ // in the order of the requests; the last is the redirected one
		{"http.response.status_code": int64(402)},
		{"http.response.status_code": int64(418), "error.type": "418"},
		{"http.response.status_code": int64(302)},
		{"http.response.status_code": int64(200), "http.request.resend_count": int64(1)},
	}
	for i, s := range slices.DeleteFunc(spans, func(s oteltest.Span) bool { return s.Name != "GET" }) {
		status := "unset"
		if want[i]["error.type"] != nil {
			status = "error"
		}
		maps.Copy(want[i], common)
		if d := cmp.Diff(want[i], s.Attributes); d != "" {
			t.Errorf("request %d (-want +got):\n%s", i, d)
		}
		if s.Kind != "client" || s.Status != status {
			t.Errorf("request %d is %q, %q, want client, %s", i, s.Kind, s.Status, status)
		}
	}
}

func number(t *testing.T, s string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// body is a reader that fails after its text.
type body struct {
	io.Reader
	err error
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func (body) Close() error { return nil }

// TestTransportSpanEndsWithTheBody checks that the span of a streamed answer ends with the
// body, not with the headers.
func TestTransportSpanEndsWithTheBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail      error
		finish    func(io.ReadCloser)
		wantError any
	}{
		"read":           {io.EOF, func(b io.ReadCloser) { _, _ = io.ReadAll(b) }, nil},
		"closed early":   {io.EOF, func(b io.ReadCloser) { _ = b.Close(); _ = b.Close() }, nil},
		"cut":            {io.ErrUnexpectedEOF, func(b io.ReadCloser) { _, _ = io.ReadAll(b); _ = b.Close() }, "connection"},
		"read canceled":  {context.Canceled, func(b io.ReadCloser) { _, _ = io.ReadAll(b) }, "canceled"},
		"read timed out": {context.DeadlineExceeded, func(b io.ReadCloser) { _, _ = io.ReadAll(b) }, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			collector, e, provider := traced(t)
			ctx, turn := provider.Tracer("x").Start(t.Context(), "turn")
			client := telemetry.NewTransport(roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Proto: "HTTP/2.0", ProtoMajor: 2, Body: body{strings.NewReader("x"), c.fail}}, nil
			}))
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://provider.example/v1/messages", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(flushed(t, collector, e)); n != 0 {
				t.Errorf("the span ended before the body")
			}
			c.finish(res.Body)
			s := find(t, flushed(t, collector, e), "POST")
			if s.Attributes["error.type"] != c.wantError || s.Attributes["server.port"] != int64(443) || s.Attributes["network.protocol.version"] != "2" {
				t.Errorf("got %v, want error %v, port 443, HTTP 2", s.Attributes, c.wantError)
			}
			_ = res.Body.Close()
			turn.End()
		})
	}
}

func TestTransportRecordsWhyThereIsNoResponse(t *testing.T) {
	t.Parallel()
	collector, e, provider := traced(t)
	ctx, turn := provider.Tracer("x").Start(t.Context(), "turn")
	defer turn.End()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close() // now the address refuses connections
	r, err := http.NewRequestWithContext(ctx, "BREW", server.URL+"/hunter2", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := telemetry.NewTransport(nil).RoundTrip(r); err == nil {
		_ = res.Body.Close()
		t.Fatal("got an answer")
	}
	s := find(t, flushed(t, collector, e), "HTTP")
	if s.Attributes["error.type"] != "connection" || s.Attributes["http.request.method"] != "_OTHER" || s.Status != "error" || strings.Contains(fmt.Sprint(s), "hunter2") {
		t.Errorf("got %+v, want error connection of method _OTHER and no URL", s)
	}
}
