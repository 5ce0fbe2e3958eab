package sqldb

import (
	"context"
	"testing"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// TestSpansAreFreeWhenNothingIsRecorded is not parallel, because AllocsPerRun counts the
// allocations of the whole process.
func TestSpansAreFreeWhenNothingIsRecorded(t *testing.T) {
	provider := noop.NewTracerProvider()
	s := newSpans(provider, semconv.DBSystemNamePostgreSQL, "loop")
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "remote span": ctx} {
		got := testing.AllocsPerRun(100, func() {
			finish(ctx, s.start(ctx, "select 1 from accounts"), nil)
			finish(ctx, (*spans)(nil).start(ctx, "select 1 from accounts"), nil)
			finish(ctx, s.startAt(ctx, "select 1 from accounts", time.Time{}), nil)
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

func TestSummariesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSpans(noop.NewTracerProvider(), semconv.DBSystemNameSQLite, "")
	for n := range 2 * maxSummaries {
		query := "select 1 from accounts where id in (" + string(rune('a'+n)) + ")"
		if got := s.statement(query).name; got != "SELECT accounts" {
			t.Fatalf("%s: %q", query, got)
		}
	}
	if len(s.seen) != maxSummaries {
		t.Errorf("%d summaries are kept, want %d", len(s.seen), maxSummaries)
	}
}
