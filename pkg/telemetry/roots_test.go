package telemetry_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// TestRecoveredTraceIsOne simulates a crash: the first process sends the children of a
// root that it does not end; the second one ends the root.
func TestRecoveredTraceIsOne(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	traceID, spanID := telemetry.DeriveIDs("turn", "r1", "0")
	began := time.Now()

	first := open(t, telemetry.Options{Lookup: c.Lookup})
	tracer := start(t, first, "loop").TracerProvider().Tracer("loop")
	ctx, _ := telemetry.StartRoot(t.Context(), tracer, "invoke_agent lucky", traceID, spanID, trace.WithTimestamp(began))
	_, before := tracer.Start(ctx, "before the crash")
	before.End()
	if err := first.Shutdown(deadline(t)); err != nil {
		t.Fatal(err)
	}

	second := open(t, telemetry.Options{Lookup: c.Lookup})
	tracer = start(t, second, "loop").TracerProvider().Tracer("loop")
	wakeCtx, wake := tracer.Start(t.Context(), "process wake") // StartRoot must not make the root its child
	ctx, root := telemetry.StartRoot(wakeCtx, tracer, "invoke_agent lucky", traceID, spanID, trace.WithTimestamp(began))
	childCtx, after := tracer.Start(ctx, "after the crash")
	_, apart := tracer.Start(childCtx, "outlives the turn", trace.WithNewRoot())
	apart.End()
	after.End()
	root.End()
	wake.End()
	if err := second.ForceFlush(deadline(t)); err != nil {
		t.Fatal(err)
	}

	if sc := root.SpanContext(); sc.TraceID() != traceID || sc.SpanID() != spanID || !sc.IsSampled() {
		t.Errorf("root = %s/%s, want %s/%s, sampled", sc.TraceID(), sc.SpanID(), traceID, spanID)
	}
	if apart.SpanContext().TraceID() == traceID || wake.SpanContext().TraceID() == traceID {
		t.Error("a new root below or above the forced one got its trace id")
	}
	spans := c.Wait(deadline(t), func(s []oteltest.Span) bool { return len(s) == 5 })
	if faults := oteltest.Check(spans, traceID); faults != nil {
		t.Errorf("the trace is not whole: %v", faults)
	}
}

func TestStartRootReplacesInvalidIDs(t *testing.T) {
	t.Parallel()
	tracer := start(t, open(t, telemetry.Options{}), "loop").TracerProvider().Tracer("loop")
	_, span := telemetry.StartRoot(t.Context(), tracer, "x", trace.TraceID{}, trace.SpanID{7})
	defer span.End()
	if sc := span.SpanContext(); !sc.IsValid() || sc.SpanID() != (trace.SpanID{7}) {
		t.Errorf("got %s/%s, want a random trace and the span id given", sc.TraceID(), sc.SpanID())
	}
}

func TestDeriveIDs(t *testing.T) {
	t.Parallel()
	// Stored rows contain these ids: they must not change.
	traceID, spanID := telemetry.DeriveIDs("turn", "r1", "0")
	if got, want := traceID.String()+"/"+spanID.String(), "9634dc2c186490450d088f6b028554b2/80a05654bd6ee4bb"; got != want {
		t.Errorf("DeriveIDs(turn, r1, 0) = %s, want %s", got, want)
	}
	seen := map[trace.TraceID][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a", "bc"}, {"ab", "c"}, {"abc"}, {"c", "ab"}} {
		traceID, spanID := telemetry.DeriveIDs(parts...)
		if !traceID.IsValid() || !spanID.IsValid() {
			t.Errorf("DeriveIDs(%q) = %s/%s, want valid ids", parts, traceID, spanID)
		}
		if other, ok := seen[traceID]; ok {
			t.Errorf("DeriveIDs(%q) and DeriveIDs(%q) are the same", parts, other)
		}
		seen[traceID] = parts
	}
}
