package telemetry_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// TestRecoveredTraceIsOne tells the story of a crash: the first process sends
// the children of a root that it never ends; the second one ends the root.
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
	wakeCtx, wake := tracer.Start(t.Context(), "process wake") // StartRoot must not become its child
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

// TestTakenOverSpanIsTheSame tells of a crash below the root: the first process
// sends a child of a span that it never ends; the second one makes that span.
func TestTakenOverSpanIsTheSame(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	traceID, spanID := telemetry.DeriveIDs("turn", "r1", "0")
	began := time.Now()
	process := func(child string, last bool) trace.SpanContext {
		e := open(t, telemetry.Options{Lookup: c.Lookup})
		tracer := start(t, e, "loop").TracerProvider().Tracer("loop")
		ctx, root := telemetry.StartRoot(t.Context(), tracer, "invoke_agent lucky", traceID, spanID, trace.WithTimestamp(began))
		ctx, tool := telemetry.StartDerived(ctx, tracer, "execute_tool exec", "tool/call_1", trace.WithTimestamp(began))
		_, span := tracer.Start(ctx, child)
		span.End()
		if last {
			tool.End()
			root.End()
		}
		if err := e.Shutdown(deadline(t)); err != nil {
			t.Fatal(err)
		}
		return tool.SpanContext()
	}
	first, second := process("before the crash", false), process("after the crash", true)
	if first.TraceID() != traceID || first.SpanID() != second.SpanID() || first.SpanID() != telemetry.DeriveSpanID(traceID, "tool/call_1") {
		t.Errorf("the tool is %s/%s, then %s/%s, want one derived id in trace %s",
			first.TraceID(), first.SpanID(), second.TraceID(), second.SpanID(), traceID)
	}
	spans := c.Wait(deadline(t), func(s []oteltest.Span) bool { return len(s) == 4 })
	if faults := oteltest.Check(spans, traceID); faults != nil {
		t.Errorf("the trace is not whole: %v", faults)
	}
}

// TestStartDerivedIsForOneSpan starts many at once: the wanted id must reach the
// span it was meant for and no other.
func TestStartDerivedIsForOneSpan(t *testing.T) {
	t.Parallel()
	tracer := start(t, open(t, telemetry.Options{}), "loop").TracerProvider().Tracer("loop")
	ctx, root := tracer.Start(t.Context(), "root")
	defer root.End()
	traceID := root.SpanContext().TraceID()
	const workers = 32
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[trace.SpanID]string{root.SpanContext().SpanID(): "root"}
	see := func(what string, span trace.Span) {
		defer span.End()
		mu.Lock()
		defer mu.Unlock()
		sc := span.SpanContext()
		if other, ok := seen[sc.SpanID()]; ok {
			t.Errorf("%s has the id of %s", what, other)
		}
		if sc.TraceID() != traceID {
			t.Errorf("%s is in trace %s, want %s", what, sc.TraceID(), traceID)
		}
		seen[sc.SpanID()] = what
	}
	for n := range workers {
		all.Go(func() {
			key := fmt.Sprint("call/", n)
			below, derived := telemetry.StartDerived(ctx, tracer, "execute_tool exec", key)
			if got, want := derived.SpanContext().SpanID(), telemetry.DeriveSpanID(traceID, key); got != want {
				t.Errorf("span id of %s = %s, want %s", key, got, want)
			}
			see(key, derived)
			for i := range 2 {
				_, span := tracer.Start(below, "normal")
				see(fmt.Sprintf("child %d of %s", i, key), span)
			}
			_, span := telemetry.StartDerived(below, tracer, "nested", key+"/nested")
			see(key+"/nested", span)
			_, apart := tracer.Start(below, "outlives it", trace.WithNewRoot())
			if sc := apart.SpanContext(); sc.TraceID() == traceID || sc.SpanID() == telemetry.DeriveSpanID(sc.TraceID(), key) {
				t.Errorf("a new root below %s got %s/%s, want random ids", key, sc.TraceID(), sc.SpanID())
			}
			apart.End()
		})
	}
	all.Wait()
	if want := 1 + 4*workers; len(seen) != want {
		t.Errorf("%d ids, want %d", len(seen), want)
	}
}

func TestStartDerivedWithoutParent(t *testing.T) {
	t.Parallel()
	tracer := start(t, open(t, telemetry.Options{}), "loop").TracerProvider().Tracer("loop")
	_, span := telemetry.StartDerived(t.Context(), tracer, "x", "k")
	defer span.End()
	if sc := span.SpanContext(); !sc.IsValid() || sc.SpanID() != telemetry.DeriveSpanID(sc.TraceID(), "k") {
		t.Errorf("got %s/%s, want a new trace and the id derived from it", sc.TraceID(), sc.SpanID())
	}
}

func TestDeriveSpanID(t *testing.T) {
	t.Parallel()
	// These ids join spans of several processes and releases: they may never change.
	if got, want := telemetry.DeriveSpanID(trace.TraceID{1}, "tool/call_1").String(), "f8c73b2f1f22906f"; got != want {
		t.Errorf("DeriveSpanID = %s, want %s", got, want)
	}
	if telemetry.DeriveSpanID(trace.TraceID{1}, "a") == telemetry.DeriveSpanID(trace.TraceID{2}, "a") {
		t.Error("two traces have the same span id")
	}
	if !telemetry.DeriveSpanID(trace.TraceID{}, "").IsValid() {
		t.Error("no trace and no key make an invalid id")
	}
}

func TestDeriveIDs(t *testing.T) {
	t.Parallel()
	// These ids are in stored rows: they may never change.
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
