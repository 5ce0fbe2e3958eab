package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// LeafTracer returns a tracer for many small spans without children, such as those of SQL
// statements: they are a third of all spans, and cost a quarter of the others. A span is
// started only below a sampled one. All spans of one name have the kind and the start
// attributes of the first one; attributes and status that are set later belong to each
// span. Start returns the context unchanged. Events and links are not supported.
//
// With a provider that is not from [Providers] it returns the provider's own tracer.
func LeafTracer(p trace.TracerProvider, scope string) trace.Tracer {
	tp, ok := p.(*tracerProvider)
	if !ok || tp.queue == nil {
		return p.Tracer(scope)
	}
	return &leafTracer{queue: tp.queue, of: tp.queue.source(tp.resource, instrumentation.Scope{Name: scope})}
}

type leafTracer struct {
	noop.Tracer

	queue *queue
	of    *source
	kinds sync.Map // name → []byte: the common fields of all spans of the name, encoded for OTLP
}

func (t *leafTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanContextFromContext(ctx)
	if !parent.IsSampled() {
		return ctx, noop.Span{}
	}
	head, ok := t.kinds.Load(name)
	if !ok {
		cfg := trace.NewSpanStartConfig(opts...)
		b := appendVarint(appendText(nil, spanName, name), spanKind, uint64(trace.ValidateSpanKind(cfg.SpanKind())))
		head, _ = t.kinds.LoadOrStore(name, appendAttributes(b, spanAttributes, cfg.Attributes()))
	}
	s := &leafSpan{tracer: t, parent: parent, head: head.([]byte), began: time.Now()}
	s.agent, s.turn = Turn(ctx)
	for s.id == (trace.SpanID{}) {
		binary.BigEndian.PutUint64(s.id[:], rand.Uint64())
	}
	return ctx, s
}

// leafSpan is not safe for concurrent use.
type leafSpan struct {
	noop.Span

	tracer      *leafTracer
	parent      trace.SpanContext
	id          trace.SpanID
	head        []byte
	agent, turn string
	began       time.Time
	attrs       []attribute.KeyValue
	status      sdktrace.Status
	ended       bool
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
	s.tracer.queue.put(s.tracer.of, s.id, end, func(b []byte, _ bool) []byte { return s.append(b, end) })
}

func (s *leafSpan) append(b []byte, end time.Time) []byte {
	traceID, parent := s.parent.TraceID(), s.parent.SpanID()
	b = appendBytes(appendBytes(b, spanTraceID, traceID[:]), spanID, s.id[:])
	if state := s.parent.TraceState(); state.Len() > 0 {
		b = appendText(b, spanTraceState, state.String())
	}
	b = appendBytes(b, spanParent, parent[:])
	b = append(b, s.head...)
	b = appendTime(appendTime(b, spanStart, s.began), spanEnd, end)
	b = appendFixed32(b, spanFlags, flagsOf(s.parent, s.parent))
	b = appendAttributes(b, spanAttributes, s.attrs)
	b = appendStamp(b, AgentID, s.agent, s.attrs)
	b = appendStamp(b, TurnID, s.turn, s.attrs)
	if s.status.Code != codes.Unset {
		b = appendStatus(b, s.status)
	}
	return b
}

// source is the resource and scope of spans. There is one for each service and package.
type source struct {
	resource *resource.Resource
	scope    instrumentation.Scope

	head   []byte // encoded for OTLP: the fields of ResourceSpans besides the spans
	within []byte // encoded for OTLP: the fields of ScopeSpans besides the spans
	number uint16 // in the spool; valid if spool is set
	spool  bool
}

type sourceKey struct {
	resource *resource.Resource
	scope    string // the name is enough: the scopes in use have no version or attributes
}

// source returns the source of a resource and a scope.
func (q *queue) source(r *resource.Resource, scope instrumentation.Scope) *source {
	key := sourceKey{r, scope.Name}
	q.sourcesMu.RLock()
	s := q.sources[key]
	q.sourcesMu.RUnlock()
	if s != nil {
		return s
	}
	q.sourcesMu.Lock()
	defer q.sourcesMu.Unlock()
	if s := q.sources[key]; s != nil {
		return s
	}
	s = &source{resource: r, scope: scope}
	s.head = appendMessage(nil, 1, func(b []byte) []byte { return appendResource(b, r) })
	if url := r.SchemaURL(); url != "" {
		s.head = appendText(s.head, 3, url)
	}
	s.within = appendMessage(nil, 1, func(b []byte) []byte { return appendScope(b, scope) })
	if q.spool != nil {
		s.number, s.spool = q.spool.register(s)
	}
	q.sources[key] = s
	return s
}
