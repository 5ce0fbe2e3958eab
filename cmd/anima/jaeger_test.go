package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/anima-run/anima/pkg/api"
)

// fakeJaeger accepts spans over HTTP and counts the received bytes.
func fakeJaeger(t *testing.T) (url string, came *atomic.Int64) {
	t.Helper()
	came = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			came.Add(r.ContentLength)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, came
}

func TestJaegerLinks(t *testing.T) {
	t.Parallel()
	url, came := fakeJaeger(t)
	m := newMachine(t)
	m.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
	m.env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
	m.env["OTEL_BSP_SCHEDULE_DELAY"] = "10"
	u := m.up("--jaeger=" + url + "/")
	if u.Jaeger != url || u.Traces != url+"/v1/traces" {
		t.Errorf("up sends to %q and looks at %q, want %s", u.Traces, u.Jaeger, url)
	}
	if strings.Contains(u.log(), "make jaeger") {
		t.Errorf("up warns of a Jaeger that is there:\n%s", u.log())
	}
	m.cli("session", "send", "lucky", "hello")
	turns := asked[api.Turns](m, "turn", "list")
	if len(turns.Turns) == 0 {
		t.Fatal("no turn")
	}
	id, trace := turns.Turns[0].ID, turns.Turns[0].Trace

	// The endpoint file of the running anima has the URL of its Jaeger.
	if out := m.cli("turn", "show", id); !strings.Contains(out, trace+"  "+url+"/trace/"+trace+"\n") {
		t.Errorf("show says\n%s\nwant a link into %s", out, url)
	}
	if v := asked[turnView](m, "turn", "show", id); v.TraceURL != url+"/trace/"+trace || v.ID != id {
		t.Errorf("as JSON the link of %s is %q", v.ID, v.TraceURL)
	}
	// A setting takes precedence over it, and a flag over the setting.
	m.env["ANIMA_JAEGER_URL"] = "https://jaeger.example.org/ui/"
	if v := asked[turnView](m, "turn", "show", id); v.TraceURL != "https://jaeger.example.org/ui/trace/"+trace {
		t.Errorf("with ANIMA_JAEGER_URL the link is %q", v.TraceURL)
	}
	if v := asked[turnView](m, "turn", "show", id, "--jaeger-url", "http://other.example.org"); v.TraceURL != "http://other.example.org/trace/"+trace {
		t.Errorf("with --jaeger-url the link is %q", v.TraceURL)
	}
	m.fails(exitUsage, "", []string{"turn", "show", id, "--jaeger-url", "other"}, `"other": want the URL of Jaeger's page`)
	u.stop() // exports the remaining spans
	if came.Load() == 0 {
		t.Error("no span was exported to Jaeger")
	}
}

func TestNoJaegerNoLink(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	u := m.up()
	if u.Jaeger != "" || u.Traces != "" {
		t.Errorf("up sends to %q and looks at %q, want neither", u.Traces, u.Jaeger)
	}
	m.cli("session", "send", "lucky", "hello")
	id := asked[api.Turns](m, "turn", "list").Turns[0].ID
	if out := m.cli("turn", "show", id); strings.Contains(out, "/trace/") {
		t.Errorf("show says\n%s\nwant no link", out)
	}
	if out := m.cli("turn", "show", id, "-o", "json"); strings.Contains(out, "traceUrl") {
		t.Errorf("as JSON it says\n%s\nwant no link", out)
	}
}

func TestAbsentJaegerIsSaid(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = nobody
	m.env["ANIMA_JAEGER_URL"] = nobody // same effect as --jaeger=URL
	m.env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "100"
	u := m.up("--empty")
	for _, want := range []string{"no receiver of traces listens at " + nobody, "make jaeger", "no Jaeger listens at " + nobody} {
		if !strings.Contains(u.log(), want) {
			t.Errorf("up says %q, want %q", u.log(), want)
		}
	}
}

func TestJaegerURLWithFaults(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, url := range []string{"127.0.0.1:16686", "ftp://127.0.0.1", "http://", "http://127.0.0.1/?x=1"} {
		m.fails(exitUsage, "", []string{"up", "--jaeger=" + url}, "want the URL of Jaeger's page", "http://127.0.0.1:16686", "nothing was started")
	}
}

func TestJaegerFlagNeedsNoValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want jaegerFlag
	}{
		{nil, ""},
		{[]string{"--jaeger"}, defaultJaeger},
		{[]string{"--jaeger", "--empty"}, defaultJaeger},
		{[]string{"--jaeger=http://a.example.org"}, "http://a.example.org"},
		{[]string{"--jaeger", "http://a.example.org", "--empty"}, "http://a.example.org"},
	} {
		var got struct {
			Up upCmd `cmd:""`
		}
		p, err := kong.New(&got)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Parse(append([]string{"up"}, c.args...)); err != nil || got.Up.Jaeger != c.want {
			t.Errorf("up %q: %q, %v, want %q", c.args, got.Up.Jaeger, err, c.want)
		}
	}
}

func TestWhereTracesAreSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{}, ""},
		{map[string]string{"ANIMA_JAEGER_URL": "http://127.0.0.1:16686"}, "http://127.0.0.1:4317"},
		{map[string]string{"ANIMA_JAEGER_URL": "https://jaeger.lan/ui"}, "http://jaeger.lan:4317"},
		{map[string]string{"ANIMA_JAEGER_URL": "http://[::1]:16686", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://[::1]:4318"},
		{map[string]string{"ANIMA_JAEGER_URL": "http://127.0.0.1:16686", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, "http://collector:4317"},
		{map[string]string{"ANIMA_JAEGER_URL": "http://127.0.0.1:16686", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, ""},
		{map[string]string{"ANIMA_JAEGER_URL": "nonsense"}, ""},
	} {
		if got, _ := sendToJaeger(lookupIn(c.env))("OTEL_EXPORTER_OTLP_ENDPOINT"); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

// TestTraceURL checks that there is no link without a trace id or without a Jaeger.
func TestTraceURL(t *testing.T) {
	t.Parallel()
	if got := traceURL("http://j", "abc"); got != "http://j/trace/abc" {
		t.Errorf("link %q", got)
	}
	if traceURL("", "abc") != "" || traceURL("http://j", "") != "" {
		t.Error("there is a link without a Jaeger or without a trace")
	}
	raw, err := json.Marshal(turnView{Turn: api.Turn{ID: "t"}})
	if err != nil || strings.Contains(string(raw), "traceUrl") || !strings.Contains(string(raw), `"id":"t"`) {
		t.Errorf("%s, %v, want the turn's own fields alone", raw, err)
	}
	if listens(t.Context(), "http://127.0.0.1:1") || listens(t.Context(), "://") {
		t.Error("something listens where nothing can")
	}
}
