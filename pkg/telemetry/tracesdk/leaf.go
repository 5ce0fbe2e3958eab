package tracesdk

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// LeafTracer returns a tracer for many small spans without children, such as those of SQL
// statements: they are a third of all spans, and cost a quarter of the others. A span is
// started only below a sampled one. All spans of one name have the kind and the start
// attributes of the first one; attributes and status that are set later belong to each
// span. Start returns the context unchanged. Events and links are not supported.
func (p *Provider) LeafTracer(scope string) trace.Tracer {
	if p.exporter == nil {
		return p.Tracer(scope)
	}
	return &leafTracer{exporter: p.exporter, source: p.exporter.source(p.resource, instrumentation.Scope{Name: scope})}
}

type leafTracer struct {
	noop.Tracer

	exporter *Exporter
	source   *source
	kinds    sync.Map // name → []byte: the common fields of all spans of the name, encoded for OTLP
}

func (t *leafTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsSampled() {
		return ctx, noop.Span{}
	}
	common, ok := t.kinds.Load(name)
	if !ok {
		cfg := trace.NewSpanStartConfig(opts...)
		b := appendVarint(appendText(nil, spanName, name), spanKind, uint64(trace.ValidateSpanKind(cfg.SpanKind())))
		common, _ = t.kinds.LoadOrStore(name, appendAttributes(b, spanAttributes, cfg.Attributes()))
	}
	return ctx, &leafSpan{
		tracer: t, parent: parent, id: newSpanID(), common: common.([]byte), baggage: t.exporter.opts.Baggage(ctx), began: time.Now(),
	}
}

// leafSpan is not safe for concurrent use.
type leafSpan struct {
	noop.Span

	tracer  *leafTracer
	parent  trace.SpanContext
	id      trace.SpanID
	common  []byte // encoded fields of all spans of the name
	baggage [2]Member
	began   time.Time
	attrs   []attribute.KeyValue
	status  sdktrace.Status
	ended   bool
}

func (s *leafSpan) IsRecording() bool { return !s.ended }

func (s *leafSpan) SpanContext() trace.SpanContext {
	return s.parent.WithSpanID(s.id).WithRemote(false)
}

func (s *leafSpan) SetAttributes(kv ...attribute.KeyValue) { s.attrs = append(s.attrs, kv...) }

func (s *leafSpan) SetStatus(code codes.Code, description string) {
	s.status = sdktrace.Status{Code: code, Description: description}
}

func (s *leafSpan) End(...trace.SpanEndOption) {
	if s.ended {
		return
	}
	s.ended = true
	end := s.began.Add(time.Since(s.began)) // by the monotonic clock
	s.tracer.exporter.put(s.tracer.source, s.id, end, func(b []byte, _ bool) []byte { return s.append(b, end) })
}

func (s *leafSpan) append(b []byte, end time.Time) []byte {
	traceID, parent := s.parent.TraceID(), s.parent.SpanID()
	b = appendBytes(appendBytes(b, spanTraceID, traceID[:]), spanID, s.id[:])
	if state := s.parent.TraceState(); state.Len() > 0 {
		b = appendText(b, spanTraceState, state.String())
	}
	b = appendBytes(b, spanParent, parent[:])
	b = append(b, s.common...)
	b = appendTime(appendTime(b, spanStart, s.began), spanEnd, end)
	b = appendFixed32(b, spanFlags, flagsOf(s.parent, s.parent))
	b = appendAttributes(b, spanAttributes, s.attrs)
	b = appendBaggage(b, s.baggage, s.attrs)
	if s.status.Code != codes.Unset {
		b = appendStatus(b, s.status)
	}
	return b
}
