package oteltest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

func span(id, parent byte, name string, start int64) oteltest.Span {
	s := oteltest.Span{Service: "loop", Name: name, TraceID: trace.TraceID{1}, SpanID: trace.SpanID{id}, Start: time.Unix(start, 0)}
	if parent != 0 {
		s.Parent = trace.SpanID{parent}
	}
	return s
}

func TestCheck(t *testing.T) {
	t.Parallel()
	root, child := span(1, 0, "invoke_agent lucky", 10), span(2, 1, "chat claude-sonnet-4-5-20250929", 10)
	other := span(9, 8, "of another trace", 1)
	other.TraceID = trace.TraceID{2}
	for _, c := range []struct {
		name  string
		spans []oteltest.Span
		want  []string
	}{
		{"whole", []oteltest.Span{child, root, other}, nil},
		{"nothing", []oteltest.Span{other}, []string{"trace 01000000000000000000000000000000: no spans among 1"}},
		{
			"orphan without a root",
			[]oteltest.Span{span(2, 1, "chat", 10)},
			[]string{
				`loop "chat": orphan, its parent 0100000000000000 is missing`,
				"trace 01000000000000000000000000000000: 0 roots, want 1: ",
			},
		},
		{
			"two roots",
			[]oteltest.Span{root, span(3, 0, "ack", 11)},
			[]string{`trace 01000000000000000000000000000000: 2 roots, want 1: loop "invoke_agent lucky", loop "ack"`},
		},
		{"too early", []oteltest.Span{root, span(2, 1, "chat", 9)}, []string{`loop "chat": starts 1s before its parent loop "invoke_agent lucky"`}},
		{"twice", []oteltest.Span{root, child, child}, []string{`loop "chat claude-sonnet-4-5-20250929": span 0200000000000000 was sent twice`}},
		{
			"ids in names",
			[]oteltest.Span{root, span(2, 1, "GET /runs/0f8fad5b-d9cb-469f-a165-70867728950e", 10), span(3, 1, "defaced feedfacedead", 10)},
			[]string{`loop "GET /runs/0f8fad5b-d9cb-469f-a165-70867728950e": the name holds an id, 0f8fad5b`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(c.want, oteltest.Check(c.spans, trace.TraceID{1})); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
		})
	}
}

// recorder is a test that only records its failure.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func TestWaitFailsTheTest(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	c := oteltest.Receiver(r)
	_, err := c.Export(t.Context(), &collector.ExportTraceServiceRequest{ResourceSpans: []*otlp.ResourceSpans{{
		ScopeSpans: []*otlp.ScopeSpans{{Spans: []*otlp.Span{{Name: "lonely", TraceId: make([]byte, 16), SpanId: make([]byte, 8)}}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := c.Wait(ctx, func(spans []oteltest.Span) bool { return len(spans) == 2 })
	if len(got) != 1 || !strings.Contains(r.failure, "lonely") {
		t.Errorf("got %d spans and failure %q, want the one span and a failure that names it", len(got), r.failure)
	}
}

func TestReceiverRefusesBadIDs(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	_, err := c.Export(t.Context(), &collector.ExportTraceServiceRequest{ResourceSpans: []*otlp.ResourceSpans{{
		ScopeSpans: []*otlp.ScopeSpans{{Spans: []*otlp.Span{{Name: "bad", TraceId: []byte{1}}}}},
	}}})
	if err == nil || len(c.Spans()) != 0 {
		t.Errorf("got %v and %d spans, want a span with a short trace id refused", err, len(c.Spans()))
	}
}
