package telemetry

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// tracerProvider creates spans for the queue. Without a queue they have ids and are not
// sent. The SDK's provider copies each span twice and passes it through several
// interfaces; with 50 spans in a turn that was a tenth of the turn's work.
type tracerProvider struct {
	embedded.TracerProvider

	queue    *queue // nil: traces are not sent
	resource *resource.Resource
	sampler  sdktrace.Sampler
	stopped  atomic.Bool

	mu      sync.Mutex
	tracers map[instrumentation.Scope]*tracer
}

func newTracerProvider(q *queue, r *resource.Resource, s sdktrace.Sampler) *tracerProvider {
	return &tracerProvider{queue: q, resource: r, sampler: s, tracers: map[instrumentation.Scope]*tracer{}}
}

func (p *tracerProvider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	cfg := trace.NewTracerConfig(opts...)
	scope := instrumentation.Scope{Name: name, Version: cfg.InstrumentationVersion(), SchemaURL: cfg.SchemaURL(), Attributes: cfg.InstrumentationAttributes()}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tracers[scope]
	if t == nil {
		t = &tracer{provider: p}
		if p.queue != nil {
			t.of = p.queue.source(p.resource, scope)
		}
		p.tracers[scope] = t
	}
	return t
}

// shutdown disables the provider's tracers and flushes the queue.
func (p *tracerProvider) shutdown(ctx context.Context) error {
	p.stopped.Store(true)
	if p.queue == nil {
		return nil
	}
	return p.queue.ForceFlush(ctx)
}

type tracer struct {
	embedded.Tracer

	provider *tracerProvider
	of       *source // nil: traces are not sent
}

func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.provider.stopped.Load() {
		return noop.Tracer{}.Start(ctx, name)
	}
	cfg := trace.NewSpanStartConfig(opts...)
	s := &span{tracer: t, name: name, kind: trace.ValidateSpanKind(cfg.SpanKind()), began: cfg.Timestamp(), attrs: cfg.Attributes(), links: cfg.Links()}
	root := false
	if !cfg.NewRoot() {
		s.parent = trace.SpanContextFromContext(ctx)
	} else if f, forced := ctx.Value(forcedKey{}).(forced); forced {
		root = true
		s.start.TraceID, s.start.SpanID = f.trace, f.span
	}
	if s.parent.TraceID().IsValid() {
		s.start.TraceID = s.parent.TraceID()
	}
	for !s.start.TraceID.IsValid() {
		binary.BigEndian.PutUint64(s.start.TraceID[:8], rand.Uint64())
		binary.BigEndian.PutUint64(s.start.TraceID[8:], rand.Uint64())
	}
	for !s.start.SpanID.IsValid() {
		binary.BigEndian.PutUint64(s.start.SpanID[:], rand.Uint64())
	}
	above := ctx
	if cfg.NewRoot() {
		above = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	sampled := t.provider.sampler.ShouldSample(sdktrace.SamplingParameters{
		ParentContext: above, TraceID: s.start.TraceID, Name: name, Kind: s.kind, Attributes: s.attrs, Links: s.links,
	})
	s.start.TraceState = sampled.Tracestate
	s.start.TraceFlags = s.parent.TraceFlags() &^ trace.FlagsSampled
	if sampled.Decision == sdktrace.RecordAndSample {
		s.start.TraceFlags |= trace.FlagsSampled
	}
	s.sc = trace.NewSpanContext(s.start)
	if sampled.Decision != sdktrace.RecordAndSample {
		u := unsampled{sc: s.sc, provider: t.provider}
		return trace.ContextWithSpan(ctx, u), u
	}
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.agent, s.turn = Turn(ctx)
	if q := t.provider.queue; q != nil && q.spool != nil && t.of.spool {
		state := stateStarted
		if root {
			state = stateRoot
		}
		q.spool.started(t.of.number, s, state)
	}
	return trace.ContextWithSpan(ctx, s), s
}

// unsampled is a span that has ids, for its children, and is not sent.
type unsampled struct {
	noop.Span

	sc       trace.SpanContext
	provider *tracerProvider
}

func (u unsampled) SpanContext() trace.SpanContext       { return u.sc }
func (u unsampled) TracerProvider() trace.TracerProvider { return u.provider }

// span is a sampled span, which is sent when it has ended.
type span struct {
	embedded.Span

	tracer      *tracer
	start       trace.SpanContextConfig
	sc, parent  trace.SpanContext
	kind        trace.SpanKind
	agent, turn string // from the baggage
	began       time.Time

	mu     sync.Mutex
	name   string
	end    time.Time // zero while the span has not ended
	attrs  []attribute.KeyValue
	links  []trace.Link
	events []event
	status sdktrace.Status
}

type event struct {
	name  string
	at    time.Time
	attrs []attribute.KeyValue
}

// most is the limit of attributes, links and events of a span, each, as in the
// conventions.
const most = 128

func (s *span) SpanContext() trace.SpanContext       { return s.sc }
func (s *span) TracerProvider() trace.TracerProvider { return s.tracer.provider }

// StartTime returns the start time, for another span that is to begin at the same time.
func (s *span) StartTime() time.Time { return s.began }

func (s *span) IsRecording() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end.IsZero()
}

func (s *span) SetName(name string) {
	s.change(func() { s.name = name })
}

func (s *span) SetAttributes(all ...attribute.KeyValue) {
	s.change(func() {
		for _, kv := range all {
			if !kv.Valid() {
				continue
			}
			if i := indexOf(s.attrs, kv.Key); i >= 0 {
				s.attrs[i] = kv
			} else if len(s.attrs) < most {
				s.attrs = append(s.attrs, kv)
			}
		}
	})
}

func indexOf(all []attribute.KeyValue, key attribute.Key) int {
	for i := range all {
		if all[i].Key == key {
			return i
		}
	}
	return -1
}

// SetStatus sets the status. As the API requires, ok is final and unset does not replace
// an error.
func (s *span) SetStatus(code codes.Code, description string) {
	s.change(func() {
		if s.status.Code > code {
			return
		}
		if code != codes.Error {
			description = ""
		}
		s.status = sdktrace.Status{Code: code, Description: description}
	})
}

func (s *span) AddLink(l trace.Link) {
	s.change(func() {
		if l.SpanContext.IsValid() && len(s.links) < most {
			s.links = append(s.links[:len(s.links):len(s.links)], l)
		}
	})
}

func (s *span) AddEvent(name string, opts ...trace.EventOption) {
	cfg := trace.NewEventConfig(opts...)
	s.change(func() {
		if len(s.events) < most {
			s.events = append(s.events, event{name, cfg.Timestamp(), cfg.Attributes()})
		}
	})
}

func (s *span) RecordError(err error, opts ...trace.EventOption) {
	if err != nil {
		s.AddEvent("exception", append(opts, trace.WithAttributes(
			attribute.String("exception.type", fmt.Sprintf("%T", err)), attribute.String("exception.message", err.Error())))...)
	}
}

// change calls f with the lock held if the span has not ended.
func (s *span) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end.IsZero() {
		f()
	}
}

func (s *span) End(opts ...trace.SpanEndOption) {
	cfg := trace.NewSpanEndConfig(opts...)
	s.mu.Lock()
	if !s.end.IsZero() {
		s.mu.Unlock()
		return
	}
	if s.end = cfg.Timestamp(); s.end.IsZero() {
		s.end = s.began.Add(time.Since(s.began)) // by the monotonic clock
	}
	s.mu.Unlock()
	switch q := s.tracer.provider.queue; {
	case q == nil, s.tracer.provider.stopped.Load():
	case s.name == abandoned:
		q.abandon(s.tracer.of, s.start.SpanID)
	default:
		q.put(s.tracer.of, s.start.SpanID, s.end, s.append)
	}
}

// append appends the span encoded for OTLP; lean leaves out attributes and events. The
// caller holds s.mu, or no other goroutine can change the span.
func (s *span) append(b []byte, lean bool) []byte {
	b = appendBytes(appendBytes(b, spanTraceID, s.start.TraceID[:]), spanID, s.start.SpanID[:])
	if s.start.TraceState.Len() > 0 {
		b = appendText(b, spanTraceState, s.start.TraceState.String())
	}
	if id := s.parent.SpanID(); id.IsValid() {
		b = appendBytes(b, spanParent, id[:])
	}
	b = appendVarint(appendText(b, spanName, s.name), spanKind, uint64(s.kind)) // trace.SpanKind has the numbers of OTLP
	b = appendTime(b, spanStart, s.began)
	if !s.end.IsZero() {
		b = appendTime(b, spanEnd, s.end)
	}
	b = appendFixed32(b, spanFlags, flagsOf(s.sc, s.parent))
	for _, l := range s.links {
		b = appendLink(b, l)
	}
	if s.status.Code != codes.Unset {
		b = appendStatus(b, s.status)
	}
	b = appendStamp(b, AgentID, s.agent, s.attrs)
	b = appendStamp(b, TurnID, s.turn, s.attrs)
	if lean {
		return b
	}
	for i := range s.events {
		b = appendEvent(b, &s.events[i])
	}
	return appendAttributes(b, spanAttributes, s.attrs)
}
