package telemetry_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

func scrape(t *testing.T, e *telemetry.Exporters) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	e.MetricsHandler().ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("metrics answer %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func count(ctx context.Context, t *testing.T, p *telemetry.Providers, name string, n int64) {
	t.Helper()
	c, err := p.MeterProvider().Meter("m").Int64Counter(name, metric.WithDescription("what happened"))
	if err != nil {
		t.Fatal(err)
	}
	c.Add(ctx, n, metric.WithAttributes(attribute.String("outcome", "ok")))
}

func TestServicesShareOnePage(t *testing.T) {
	t.Parallel()
	e := open(t, telemetry.Options{Version: "v1.2.3"})
	loop, twin, policy := start(t, e, "loop"), start(t, e, "loop"), start(t, e, "policy")

	ctx, span := loop.TracerProvider().Tracer("x").Start(t.Context(), "turn")
	count(ctx, t, loop, "anima.messages", 3)
	count(t.Context(), t, twin, "anima.messages", 4)
	count(t.Context(), t, policy, "anima.messages", 5)
	span.End()

	page := scrape(t, e)
	for _, want := range []string{
		`anima_messages_total\{outcome="ok",service="loop"\} 3\.0 # \{.*trace_id="` + span.SpanContext().TraceID().String(),
		`anima_messages_total\{outcome="ok",replica="2",service="loop"\} 4\.0`,
		`anima_messages_total\{outcome="ok",service="policy"\} 5\.0`,
		`anima_build_info\{go_version="go.*",revision=".*",version="v1\.2\.3"\} 1`,
		`go_goroutines \d+`,
		`process_start_time_seconds `,
		`# EOF`,
	} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(page) {
			t.Errorf("the page has no line %s:\n%s", want, page)
		}
	}
	for _, noise := range []string{"target_info", "otel_scope"} {
		if strings.Contains(page, noise) {
			t.Errorf("the page has %s", noise)
		}
	}

	// A service that restarts in the same process gets the free replica number.
	if err := loop.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if page := scrape(t, e); strings.Contains(page, `{outcome="ok",service="loop"}`) || !strings.Contains(page, `replica="2"`) {
		t.Errorf("after the shutdown of the first loop the page is:\n%s", page)
	}
	count(t.Context(), t, start(t, e, "loop"), "anima.messages", 1)
	if page := scrape(t, e); !strings.Contains(page, `anima_messages_total{outcome="ok",service="loop"} 1.0`) {
		t.Errorf("the restarted loop is not on the page:\n%s", page)
	}
}

// TestExemplars checks that the exemplar of a histogram bucket links to a sent trace.
func TestExemplars(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Lookup: c.Lookup})
	p := start(t, e, "loop")
	h, err := p.MeterProvider().Meter("m").Float64Histogram("anima.step.duration", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := p.TracerProvider().Tracer("x").Start(t.Context(), "step")
	h.Record(ctx, 0.002)
	count(ctx, t, p, "anima.steps", 1)
	span.End()
	h.Record(t.Context(), 20) // outside of any span
	server := httptest.NewServer(e.MetricsHandler())
	t.Cleanup(server.Close)
	fetch := func(accept string) (string, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.Header.Get("Content-Type"), string(text)
	}

	kind, page := fetch("application/openmetrics-text; version=1.0.0")
	if !strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Errorf("the page is %s, want OpenMetrics", kind)
	}
	if err := e.ForceFlush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	sent := c.Spans()[0] // the exemplar must link to a trace that was sent
	for _, series := range []string{`anima_step_duration_seconds_bucket\{service="loop",le="0\.0025"\} 1`, `anima_steps_total\{outcome="ok",service="loop"\} 1\.0`} {
		found := regexp.MustCompile(`(?m)^` + series + ` # \{(.*)\} `).FindStringSubmatch(page)
		if found == nil || !strings.Contains(found[1], `trace_id="`+sent.TraceID.String()) || !strings.Contains(found[1], `span_id="`+sent.SpanID.String()) {
			t.Errorf("%s has the exemplar %q, want span %s of trace %s:\n%s", series, found, sent.SpanID, sent.TraceID, page)
		}
	}
	if n := strings.Count(page, "trace_id="); n != 2 {
		t.Errorf("%d exemplars, want 2: none outside a span:\n%s", n, page)
	}
	if kind, page := fetch("text/plain"); !strings.HasPrefix(kind, "text/plain") || strings.Contains(page, "trace_id=") {
		t.Errorf("the plain page is %s, with exemplars: %v", kind, strings.Contains(page, "trace_id="))
	}
}

func TestHistogramBounds(t *testing.T) {
	t.Parallel()
	e := open(t, telemetry.Options{})
	m := start(t, e, "router").MeterProvider().Meter("m")
	for name, unit := range map[string]string{
		"anima.step.duration":              "s",
		"anima.batch.size":                 "{message}",
		"gen_ai.client.operation.duration": "s",
		"gen_ai.client.token.usage":        "{token}",
	} {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit))
		if err != nil {
			t.Fatal(err)
		}
		h.Record(t.Context(), 1)
	}
	page := scrape(t, e)
	for series, want := range map[string][]string{
		"anima_step_duration_seconds":              {"5e-05", "120.0"},
		"anima_batch_size":                         {"0.0", "10000.0"}, // the SDK's defaults
		"gen_ai_client_operation_duration_seconds": {"0.01", "81.92"},
		"gen_ai_client_token_usage":                {"1.0", "6.7108864e+07"},
	} {
		bounds := regexp.MustCompile(series+`_bucket\{.*le="([^"]+)"\}`).FindAllStringSubmatch(page, -1)
		if len(bounds) < 3 {
			t.Errorf("%s has %d buckets:\n%s", series, len(bounds), page)
			continue
		}
		if first, last := bounds[0][1], bounds[len(bounds)-2][1]; first != want[0] || last != want[1] {
			t.Errorf("%s has bounds from %s to %s, want %s to %s", series, first, last, want[0], want[1])
		}
	}
}
