package loop

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

// TestToolNamesAreLimited checks that names of tools that are not in the catalogue share
// one time series.
func TestToolNamesAreLimited(t *testing.T) {
	t.Parallel()
	exporters, err := telemetry.Open(t.Context(), telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	providers, err := exporters.Start(t.Context(), "loop")
	if err != nil {
		t.Fatal(err)
	}
	tel, err := newInstruments(providers.MeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	tel.Tool(t.Context(), "check_credits", api.OutcomeError, time.Millisecond)
	for i := range 3 {
		tel.Tool(t.Context(), fmt.Sprint("invented_", i), api.OutcomeError, time.Millisecond)
	}
	page := httptest.NewRecorder()
	exporters.MetricsHandler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var got []string
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "anima_loop_tool_calls_total{") || strings.HasPrefix(line, "anima_loop_tool_duration_seconds_count{") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`anima_loop_tool_calls_total{outcome="error",service="loop",tool="check_credits"} 1`,
		`anima_loop_tool_calls_total{outcome="error",service="loop",tool="other"} 3`,
		`anima_loop_tool_duration_seconds_count{outcome="error",service="loop",tool="check_credits"} 1`,
		`anima_loop_tool_duration_seconds_count{outcome="error",service="loop",tool="other"} 3`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("time series (-want +got):\n%s", d)
	}
}
