package telemetry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// TestLeavesAreSpans compares a leaf with a usual span of the same content.
func TestLeavesAreSpans(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Version: "1", Lookup: c.Lookup})
	p := start(t, e, "loop").TracerProvider()
	ctx, root := p.Tracer("loop").Start(telemetry.WithTurn(t.Context(), "lucky", "r.1"), "root")
	for _, tracer := range []trace.Tracer{telemetry.LeafTracer(p, "leaf"), p.Tracer("leaf")} {
		for _, failed := range []bool{false, true} {
			_, span := tracer.Start(ctx, "SELECT turns", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("db.operation.name", "SELECT")))
			if !span.IsRecording() || !span.SpanContext().IsSampled() || span.SpanContext().TraceID() != root.SpanContext().TraceID() {
				t.Errorf("the span is %+v and records: %v", span.SpanContext(), span.IsRecording())
			}
			if failed {
				span.SetAttributes(attribute.String("error.type", "conflict"))
				span.SetStatus(codes.Error, "conflict")
			}
			span.End()
			span.End() // a second End does nothing
		}
	}
	_, none := telemetry.LeafTracer(p, "leaf").Start(t.Context(), "below nothing")
	none.End()
	root.End()
	if err := e.ForceFlush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	spans := c.Spans()
	if len(spans) != 5 {
		t.Fatalf("%d spans, want the root and four below it", len(spans))
	}
	if faults := oteltest.Check(spans, root.SpanContext().TraceID()); faults != nil {
		t.Errorf("the trace is not whole: %v", faults)
	}
	for i := range spans {
		if spans[i].End.Before(spans[i].Start) {
			t.Errorf("%s ends before it begins", spans[i].Name)
		}
		spans[i].SpanID = trace.SpanID{}
		spans[i].Start, spans[i].End = spans[0].Start, spans[0].Start
	}
	var below []oteltest.Span
	for _, s := range spans {
		if s.Parent.IsValid() {
			below = append(below, s)
		}
	}
	if d := cmp.Diff(below[2:], below[:2]); d != "" {
		t.Errorf("usual spans and leaves (-usual +leaf):\n%s", d)
	}
	if below[1].Status != "error" || below[1].Attributes["automaton.turn.id"] != "r.1" || below[0].Status != "unset" {
		t.Errorf("leaves: %+v", below[:2])
	}
}

// TestLeavesOfOthers checks that LeafTracer works with another provider.
func TestLeavesOfOthers(t *testing.T) {
	t.Parallel()
	seen := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
	_, span := telemetry.LeafTracer(p, "leaf").Start(t.Context(), "one")
	span.End()
	if n := len(seen.Ended()); n != 1 {
		t.Errorf("%d spans, want one of a usual tracer", n)
	}
}
