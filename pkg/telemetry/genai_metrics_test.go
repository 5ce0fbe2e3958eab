package telemetry_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/anima-run/anima/pkg/telemetry"
)

func TestGenAIHasTwoGenerations(t *testing.T) {
	t.Parallel()
	usage := telemetry.Usage{Input: 100, Output: 20, CacheRead: 60, CacheWritten: 5}
	old := []string{
		"gen_ai_client_operation_duration_seconds", "gen_ai_client_operation_time_to_first_chunk_seconds", "gen_ai_client_token_usage",
	}
	newer := []string{
		"gen_ai_client_inference_duration_seconds",
		"gen_ai_client_inference_operation_input_tokens", "gen_ai_client_inference_operation_output_tokens",
		"gen_ai_client_inference_time_to_first_chunk_seconds",
		"gen_ai_client_inference_usage_cache_read_input_tokens", "gen_ai_client_inference_usage_cache_write_input_tokens",
		"gen_ai_client_inference_usage_input_tokens", "gen_ai_client_inference_usage_output_tokens",
		"gen_ai_execute_tool_duration_seconds",
	}
	for _, c := range []struct {
		optIn string
		want  []string
		attrs []string
	}{
		{"", old, []string{"gen_ai.usage.cache_creation.input_tokens=5", "gen_ai.usage.cache_read.input_tokens=60"}},
		{"http,database", old, []string{"gen_ai.usage.cache_creation.input_tokens=5", "gen_ai.usage.cache_read.input_tokens=60"}},
		{"http, gen_ai_latest_experimental", newer, []string{"gen_ai.usage.cache_read.input_tokens=60", "gen_ai.usage.cache_write.input_tokens=5"}},
	} {
		t.Run(c.optIn, func(t *testing.T) {
			t.Parallel()
			e := open(t, telemetry.Options{Lookup: env("OTEL_SEMCONV_STABILITY_OPT_IN", c.optIn)})
			p := start(t, e, "inference-router")
			g, err := telemetry.NewGenAI(p.MeterProvider())
			if err != nil {
				t.Fatal(err)
			}
			ctx, span := p.TracerProvider().Tracer("x").Start(t.Context(), "chat claude")
			defer span.End()
			g.Call(ctx, telemetry.Call{
				Operation: telemetry.OperationChat, Provider: "anthropic", Model: "claude", ResponseModel: "claude-1",
				Duration: 2 * time.Second, FirstChunk: time.Second, Usage: usage,
			})
			g.Call(ctx, telemetry.Call{
				Operation: telemetry.OperationChat, Provider: "anthropic", Model: "claude", ErrorType: "overloaded", Duration: time.Second, Usage: usage,
			})
			g.Tool(ctx, "exec", "", time.Second)
			page := scrape(t, e)
			var got []string
			for _, m := range regexp.MustCompile(`(?m)^# TYPE (gen_ai_\S+) `).FindAllStringSubmatch(page, -1) {
				got = append(got, m[1])
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("metrics (-want +got):\n%s", d)
			}
			lines := []string{`error_type="overloaded"`, `trace_id="` + span.SpanContext().TraceID().String()}
			if c.want[0] == newer[0] {
				lines = append(lines,
					`gen_ai_client_inference_usage_input_tokens_total{gen_ai_operation_name="chat",gen_ai_provider_name="anthropic",gen_ai_request_model="claude",gen_ai_response_model="claude-1",gen_ai_token_modality="text",service="inference-router"} 100.0 # {`,
					`gen_ai_client_inference_operation_output_tokens_sum{gen_ai_operation_name="chat",gen_ai_provider_name="anthropic",gen_ai_request_model="claude",gen_ai_response_model="claude-1",service="inference-router"} 20.0`)
			} else {
				lines = append(lines, `gen_ai_token_type="input",service="inference-router"} 100.0`, `gen_ai_token_type="output",service="inference-router"} 20.0`)
			}
			for _, want := range lines {
				if !strings.Contains(page, want) {
					t.Errorf("the page has no %s:\n%s", want, page)
				}
			}
			var attrs []string
			for _, kv := range g.Usage(usage) {
				attrs = append(attrs, string(kv.Key)+"="+kv.Value.String())
			}
			slices.Sort(attrs)
			if d := cmp.Diff(slices.Concat(c.attrs, []string{"gen_ai.usage.input_tokens=100", "gen_ai.usage.output_tokens=20"}), attrs); d != "" {
				t.Errorf("attributes (-want +got):\n%s", d)
			}
		})
	}
}

func TestGenAIOfAnotherProvider(t *testing.T) {
	t.Parallel()
	g, err := telemetry.NewGenAI(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	g.Call(t.Context(), telemetry.Call{})
	if got := len(g.Usage(telemetry.Usage{})); got != 2 {
		t.Errorf("%d attributes of no usage, want 2", got)
	}
}
