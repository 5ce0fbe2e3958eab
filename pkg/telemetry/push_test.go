package telemetry_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/anima-run/anima/pkg/telemetry"
)

// arrived formats a request that a collector received: the path and, for metrics, the
// service and the values.
func arrived(t *testing.T, r *http.Request) string {
	line := r.URL.Path
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	if strings.HasSuffix(line, "traces") {
		return line
	}
	var req metrics.ExportMetricsServiceRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		t.Errorf("%s: %v", line, err)
	}
	for _, rm := range req.GetResourceMetrics() {
		for _, kv := range rm.GetResource().GetAttributes() {
			if kv.GetKey() == "service.name" {
				line += " " + kv.GetValue().GetStringValue()
			}
		}
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				point := m.GetSum().GetDataPoints()[0]
				line += " " + string('0'+rune(point.GetAsInt()))
				if ex := point.GetExemplars(); len(ex) != 1 || len(ex[0].GetTraceId()) != 16 {
					t.Errorf("%s has exemplars %v, want one with a trace", m.GetName(), ex)
				}
			}
		}
	}
	return line
}

// TestMetricsArePushedWhereAsked checks that metrics are only pushed if one of the two
// variables is set: the endpoint of traces may be a Jaeger, which refuses metrics.
func TestMetricsArePushedWhereAsked(t *testing.T) {
	t.Parallel()
	const base, traces, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	for _, c := range []struct {
		name string
		set  []string // variables; the URL is prepended to values that begin with a slash
		want []string
	}{
		{"base only", []string{base, "/b"}, []string{"/b/v1/traces"}},
		{"traces only", []string{traces, "/traces"}, []string{"/traces"}},
		{"own endpoint", []string{base, "/b", own, "/m"}, []string{"/b/v1/traces", "/m loop 3"}},
		{"own endpoint alone", []string{own, "/m"}, []string{"/m loop 3"}},
		{"by exporter", []string{base, "/b", "OTEL_METRICS_EXPORTER", "otlp,prometheus"}, []string{"/b/v1/metrics loop 3", "/b/v1/traces"}},
		{"none", []string{own, "/m", base, "/b", "OTEL_METRICS_EXPORTER", "none"}, []string{"/b/v1/traces"}},
		{"fetched", []string{own, "/m", base, "/b", "OTEL_METRICS_EXPORTER", "prometheus"}, []string{"/b/v1/traces"}},
		{"disabled", []string{own, "/m", base, "/b", "OTEL_SDK_DISABLED", "true"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				line := arrived(t, r)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, line)
			}))
			t.Cleanup(server.Close)
			set := []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}
			for _, v := range c.set {
				if strings.HasPrefix(v, "/") {
					v = server.URL + v
				}
				set = append(set, v)
			}
			e := open(t, telemetry.Options{Lookup: env(set...)})
			p := start(t, e, "loop")
			ctx, span := p.TracerProvider().Tracer("x").Start(t.Context(), "one")
			count(ctx, t, p, "anima.steps", 3)
			span.End()
			if err := p.Shutdown(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if err := e.ForceFlush(deadline(t)); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(got)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("what arrived (-want +got):\n%s", d)
			}
		})
	}
}

func TestMetricOutageIsSaidOnce(t *testing.T) {
	t.Parallel()
	status := make(chan int, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(<-status) }))
	t.Cleanup(server.Close)
	var log lines
	logger, err := telemetry.NewLogger(&log, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, telemetry.Options{Log: logger, Lookup: env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")})
	for _, code := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusOK} {
		p := start(t, e, "loop")
		count(t.Context(), t, p, "anima.steps", 1)
		status <- code
		if err := p.Shutdown(deadline(t)); err != nil {
			t.Error(err)
		}
	}
	if down, up := log.count("metrics not pushed"), log.count("metrics push resumed"); down != 1 || up != 1 {
		t.Errorf("the outage was logged %d times and its end %d times, want once each", down, up)
	}
}

func TestMetricFaultsNameTheVariable(t *testing.T) {
	t.Parallel()
	for _, set := range [][]string{
		{"OTEL_METRICS_EXPORTER", "statsd"},
		{"OTEL_METRICS_EXPORTER", "otlp"}, // without a destination
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "localhost:4317"},
		{"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:1"},
		{"OTEL_METRIC_EXPORT_INTERVAL", "1m"},
	} {
		_, err := telemetry.Open(t.Context(), telemetry.Options{Lookup: env(set...)})
		if err == nil || !strings.HasPrefix(err.Error(), set[0]) || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%v: got %v, want a fault that names the variable and what is accepted", set, err)
		}
	}
}
