package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Recorded from a real Jaeger: a turn, and the trace that its root links to.
const (
	turnTrace   = "c2919316119ccb61f25f82e535225b9d"
	turnID      = "01a1fd49-c4e6-736c-8300-1359c19a514f.1"
	senderTrace = "035d9846ba8f2f60fde3f1a637f00382"
)

// jaeger returns a client of a server with recorded answers.
func jaeger(t *testing.T) Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "none.json"
		switch {
		case r.URL.Path == "/api/v3/services":
			name = "services.json"
		case r.URL.Path == "/api/v3/traces":
			q := r.URL.Query()
			if q.Get("query.start_time_min") == "" || q.Get("query.start_time_max") == "" || q.Get("query.raw_traces") != "true" {
				http.Error(w, `{"error":{"httpCode":400,"message":"malformed"}}`, http.StatusBadRequest)
				return
			}
			if q.Get("query.service_name") == "policy" {
				name = "found.json"
			}
		case strings.HasPrefix(r.URL.Path, "/api/v3/traces/"):
			if id := strings.TrimPrefix(r.URL.Path, "/api/v3/traces/"); id == turnTrace || id == senderTrace {
				name = "trace-" + id + ".json"
			}
		default:
			http.NotFound(w, r)
			return
		}
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Error(err)
		}
		if name == "none.json" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return Client{Base: s.URL}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	got, err := jaeger(t).Trace(t.Context(), turnTrace)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != turnTrace || len(got.Spans) != 25 {
		t.Fatalf("trace %s of %d spans, want %s of 25", got.ID, len(got.Spans), turnTrace)
	}
	if want := []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}; !slices.Equal(got.Services(), want) {
		t.Errorf("services %v, want %v", got.Services(), want)
	}
	roots := got.Roots()
	if len(roots) != 1 {
		t.Fatalf("%d roots, want 1", len(roots))
	}
	root := roots[0]
	if root.Name != "invoke_agent Lucky" || root.Kind != Internal || root.Service != "loop" || root.Failed || root.Duration() != 7658218*time.Nanosecond {
		t.Errorf("root %+v, took %d ns", root, root.Duration())
	}
	if root.Attributes["automaton.turn.id"] != turnID || root.Attributes["gen_ai.usage.input_tokens"] != "1411" {
		t.Errorf("attributes %v, want the turn and the tokens", root.Attributes)
	}
	if len(root.Links) != 1 || root.Links[0].TraceID != senderTrace {
		t.Errorf("links %v, want one to %s", root.Links, senderTrace)
	}
	if got.Spans[0].ID != root.ID || !slices.IsSortedFunc(got.Spans, func(a, b Span) int { return a.Start.Compare(b.Start) }) {
		t.Error("the spans are not in the order of their starts")
	}
}

func TestTraceThatIsNotThere(t *testing.T) {
	t.Parallel()
	c := jaeger(t)
	if _, err := c.Trace(t.Context(), strings.Repeat("0", 31)+"1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown trace: %v, want %v", err, ErrNotFound)
	}
	if _, err := c.Trace(t.Context(), "abc"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("no trace id: %v, want an error that says so", err)
	}
	c.Base += "/elsewhere"
	if _, err := c.Trace(t.Context(), turnTrace); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "16686") {
		t.Errorf("another server's 404: %v, want to be told of the URL", err)
	}
	c.Base = "http://127.0.0.1:1"
	if _, err := c.Trace(t.Context(), turnTrace); err == nil || !strings.Contains(err.Error(), "check that Jaeger is running") {
		t.Errorf("with no server: %v", err)
	}
}

func TestTurnTraceDerivesFromTheTurn(t *testing.T) {
	t.Parallel()
	if got := TurnTrace(turnID); got != turnTrace {
		t.Errorf("TurnTrace(%q) = %s, want %s, as the services made it", turnID, got, turnTrace)
	}
}

func TestServicesAndSearch(t *testing.T) {
	t.Parallel()
	c := jaeger(t)
	got, err := c.Services(t.Context())
	if want := []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("services %v, %v, want %v", got, err, want)
	}
	now := time.Now()
	found, err := c.Since(t.Context(), "policy", now.Add(-time.Hour), now)
	if err != nil || len(found) != 2 {
		t.Errorf("found %d traces, %v, want 2", len(found), err)
	}
	found, err = c.Since(t.Context(), "nobody", now.Add(-time.Hour), now)
	if err != nil || len(found) != 0 {
		t.Errorf("found %d traces of an unknown agent, %v, want none and no error", len(found), err)
	}
}

// many returns a client of a server with n traces, one per second, which never returns
// more than requested.
func many(t *testing.T, began time.Time, n int) Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		from, err1 := time.Parse(time.RFC3339Nano, q.Get("query.start_time_min"))
		to, err2 := time.Parse(time.RFC3339Nano, q.Get("query.start_time_max"))
		var most int
		_, err3 := fmt.Sscan(q.Get("query.num_traces"), &most)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Error(err)
		}
		var spans []map[string]any
		for i := range n {
			at := began.Add(time.Duration(i) * time.Second)
			if at.Before(from) || at.After(to) || len(spans) == most {
				continue
			}
			spans = append(spans, map[string]any{"traceId": fmt.Sprintf("%032x", i+1), "spanId": fmt.Sprintf("%016x", i+1), "startTimeUnixNano": fmt.Sprint(at.UnixNano()), "kind": "SPAN_KIND_CONSUMER"})
		}
		err := json.NewEncoder(w).Encode(map[string]any{"result": map[string]any{"resourceSpans": []any{map[string]any{"scopeSpans": []any{map[string]any{"spans": spans}}}}}})
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return Client{Base: s.URL}
}

func TestSearchGetsMoreThanOnePage(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const n = 5*page + 7
	found, err := many(t, began, n).Since(t.Context(), "loop", began.Add(-time.Minute), began.Add(n*time.Second))
	if err != nil || len(found) != n {
		t.Fatalf("found %d traces, %v, want %d", len(found), err, n)
	}
	for i, f := range found {
		if want := fmt.Sprintf("%032x", i+1); f.ID != want || f.Spans[0].Kind != Consumer {
			t.Fatalf("trace %d is %s of kind %d, want %s of a consumer", i, f.ID, f.Spans[0].Kind, want)
		}
	}
}

func TestDecodeRefusesOtherAnswers(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"<html>", `{"data":[]}`, `{"error":{"message":"no storage"}}`,
		`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"soon"}]}]}]}}`,
		`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":"SPAN_KIND_ODD"}]}]}]}}`,
	} {
		if got, err := Decode(strings.NewReader(in)); err == nil {
			t.Errorf("Decode(%s) = %v, want an error", in, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"trace-" + turnTrace, "found", "none", "services"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, tr := range all {
			if len(tr.Spans) == 0 {
				t.Errorf("trace %q has no spans", tr.ID)
			}
		}
	})
}
