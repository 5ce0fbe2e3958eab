package router

import (
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/telemetry"
)

// TestCallMetrics checks the names and labels of the metrics of model calls, which
// dashboards use.
func TestCallMetrics(t *testing.T) {
	t.Parallel()
	e, err := telemetry.Open(t.Context(), telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.Start(t.Context(), "inference-router")
	if err != nil {
		t.Fatal(err)
	}
	m, err := newInstruments(p.MeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	m.call(t.Context(), "anthropic", "claude", "ok", 2*time.Second, 100, 20, 42)
	m.call(t.Context(), "anthropic", "claude", "overloaded", time.Second, 0, 0, 0)
	page := httptest.NewRecorder()
	e.MetricsHandler().ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	got := regexp.MustCompile(`(?m)^(anima_inference|gen_ai)\w+(_total|_sum)\{.*$`).FindAllString(page.Body.String(), -1)
	const call = `gen_ai_operation_name="chat",gen_ai_provider_name="anthropic",gen_ai_request_model="claude"`
	want := []string{
		`anima_inference_calls_total{` + call + `,outcome="ok",service="inference-router"} 1`,
		`anima_inference_calls_total{` + call + `,outcome="overloaded",service="inference-router"} 1`,
		`anima_inference_cost_total{` + call + `,service="inference-router"} 42`,
		`gen_ai_client_operation_duration_seconds_sum{` + call + `,service="inference-router"} 2`,
		`gen_ai_client_operation_duration_seconds_sum{error_type="overloaded",` + call + `,service="inference-router"} 1`,
		`gen_ai_client_token_usage_sum{` + call + `,gen_ai_token_type="input",service="inference-router"} 100`,
		`gen_ai_client_token_usage_sum{` + call + `,gen_ai_token_type="output",service="inference-router"} 20`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("series (-want +got):\n%s", d)
	}
}
