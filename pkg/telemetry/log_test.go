package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

func inSpan(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0xab}, SpanID: trace.SpanID{0xcd},
	}))
}

func TestLogCarriesTrace(t *testing.T) {
	t.Parallel()
	const traceID, spanID = "ab000000000000000000000000000000", "cd00000000000000"
	turn := telemetry.WithTurn(inSpan(t.Context()), "a1", "t42")
	for _, c := range []struct {
		name string
		log  func(*slog.Logger)
		want map[string]any
	}{
		{"no span", func(l *slog.Logger) { l.InfoContext(t.Context(), "hi", "agent", "a1") }, map[string]any{"agent": "a1"}},
		{
			"span", func(l *slog.Logger) { l.InfoContext(inSpan(t.Context()), "hi") },
			map[string]any{"trace_id": traceID, "span_id": spanID},
		},
		{
			"turn, with attributes and groups", func(l *slog.Logger) {
				l.With("svc", "loop").WithGroup("g").With("a", 1).WithGroup("h").InfoContext(turn, "hi", "b", 2)
			},
			map[string]any{
				"svc": "loop", "trace_id": traceID, "span_id": spanID, "agent_id": "a1", "turn_id": "t42",
				"g": map[string]any{"a": 1.0, "h": map[string]any{"b": 2.0}},
			},
		},
		{
			"siblings do not share groups", func(l *slog.Logger) {
				l = l.WithGroup("g").With("a", 1)
				_ = l.With("b", 2)
				l.With("c", 3).InfoContext(inSpan(t.Context()), "hi")
			},
			map[string]any{"trace_id": traceID, "span_id": spanID, "g": map[string]any{"a": 1.0, "c": 3.0}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			l, err := telemetry.NewLogger(&out, telemetry.Config{})
			if err != nil {
				t.Fatal(err)
			}
			c.log(l)
			var got map[string]any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%q is not one JSON object: %v", out.String(), err)
			}
			for key, want := range map[string]any{"msg": "hi", "level": "INFO"} {
				if got[key] != want {
					t.Errorf("%s = %v, want %v", key, got[key], want)
				}
				delete(got, key)
			}
			delete(got, "time")
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("line (-want +got):\n%s", d)
			}
		})
	}
}

func TestLogConfig(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l, err := telemetry.NewLogger(&out, telemetry.Config{Log: "warn", LogFormat: "text"})
	if err != nil {
		t.Fatal(err)
	}
	l.InfoContext(t.Context(), "quiet")
	l.WarnContext(inSpan(t.Context()), "loud")
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, "msg=loud trace_id=ab0000") {
		t.Errorf("got %q, want one text line for the warning", got)
	}
	for _, cfg := range []telemetry.Config{{Log: "loud"}, {LogFormat: "xml"}} {
		if _, err := telemetry.NewLogger(&out, cfg); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%+v: got %v, want what is accepted", cfg, err)
		}
	}
}
