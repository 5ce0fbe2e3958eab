package telemetry_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

func TestHandlerLinksUntrustedContext(t *testing.T) {
	t.Parallel()
	collector, e, provider := traced(t)
	mux := http.NewServeMux()
	var agent string
	mux.HandleFunc("GET /agents/{id}", func(w http.ResponseWriter, r *http.Request) {
		agent, _ = telemetry.Turn(r.Context())
		if !trace.SpanFromContext(r.Context()).IsRecording() {
			t.Error("the handler has no span")
		}
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, r.PathValue("id"))
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		w.(http.Flusher).Flush()
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("POST example.com/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/panics", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	h := telemetry.NewHandler(provider, mux)
	const clientTrace = "0af7651916cd43dd8448eb211c80319c"
	call := func(method, target string) {
		r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
		r.Header.Set("traceparent", "00-"+clientTrace+"-b7ad6b7169203331-00") // not sampled by the client
		r.Header.Set("tracestate", "their=secret")
		r.Header.Set("baggage", "automaton.agent.id=forged")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	call("GET", "/agents/0f8fad5b-d9cb-469f-a165-70867728950e?token=hunter2")
	call("GET", "/broken")
	call("POST", "http://example.com/empty")
	call("GET", "/nowhere")
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
				t.Error("the panic was changed")
			}
		}()
		call("GET", "/panics")
	}()
	// No remote trace context, but a local span around the server.
	ctx, around := provider.Tracer("x").Start(t.Context(), "serve")
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "PUT", "/broken", nil))
	if agent != "" {
		t.Errorf("the client's baggage gave the agent %q", agent)
	}

	spans := flushed(t, collector, e)
	around.End()
	if len(spans) != 6 {
		t.Fatalf("%d spans, want 6", len(spans))
	}
	for _, s := range spans {
		links := 1
		if s.Name == "PUT /broken" {
			links = 0
		}
		if s.Kind != "server" || s.Parent.IsValid() || s.TraceID.String() == clientTrace || len(s.Links) != links {
			t.Errorf("%s: kind %s, parent %s, trace %s, %d links, want a root of its own with %d", s.Name, s.Kind, s.Parent, s.TraceID, len(s.Links), links)
		}
		if links == 1 && s.Links[0].TraceID.String() != clientTrace {
			t.Errorf("%s: link to %s, want the client's trace", s.Name, s.Links[0].TraceID)
		}
		if text := fmt.Sprint(s); strings.Contains(text, "hunter2") || strings.Contains(text, "0f8fad5b") || strings.Contains(text, "forged") {
			t.Errorf("a span contains text of the client: %+v", s)
		}
		if faults := oteltest.Check(spans, s.TraceID); faults != nil {
			t.Error(faults)
		}
	}
	for name, want := range map[string]map[string]any{
		"GET /agents/{id}": {"http.route": "/agents/{id}", "http.response.status_code": int64(200)},
		"GET /broken":      {"http.route": "/broken", "http.response.status_code": int64(502), "error.type": "502"},
		"POST /empty":      {"http.route": "/empty", "http.response.status_code": int64(200)},
		"GET":              {"http.response.status_code": int64(404)},
		"GET /panics":      {"http.route": "/panics", "http.response.status_code": int64(500), "error.type": "500"},
	} {
		got := find(t, spans, name)
		want["http.request.method"], want["url.scheme"], want["network.protocol.version"] = strings.Fields(name)[0], "http", "1.1"
		if d := cmp.Diff(want, got.Attributes); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if failed := want["error.type"] != nil; (got.Status == "error") != failed {
			t.Errorf("%s: status %s", name, got.Status)
		}
	}
}
