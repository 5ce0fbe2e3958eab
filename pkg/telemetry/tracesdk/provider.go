package tracesdk

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// Provider is the tracer provider of one service. It is safe for concurrent use.
type Provider struct {
	embedded.TracerProvider

	exporter *Exporter // nil: traces are not sent
	resource *resource.Resource
	sampler  sdktrace.Sampler
	stopped  atomic.Bool

	mu      sync.Mutex
	tracers map[instrumentation.Scope]*tracer
}

// NewProvider returns a provider of tracers whose spans have the resource r. With a nil
// exporter spans have ids, are sampled, and are not sent.
func NewProvider(e *Exporter, r *resource.Resource, s sdktrace.Sampler) *Provider {
	return &Provider{exporter: e, resource: r, sampler: s, tracers: map[instrumentation.Scope]*tracer{}}
}

// Tracer returns the tracer of a scope.
func (p *Provider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	cfg := trace.NewTracerConfig(opts...)
	scope := instrumentation.Scope{Name: name, Version: cfg.InstrumentationVersion(), SchemaURL: cfg.SchemaURL(), Attributes: cfg.InstrumentationAttributes()}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tracers[scope]
	if t == nil {
		t = &tracer{provider: p}
		if p.exporter != nil {
			t.source = p.exporter.newSource(p.resource, scope)
		}
		p.tracers[scope] = t
	}
	return t
}

// Shutdown disables the provider's tracers and flushes the exporter.
func (p *Provider) Shutdown(ctx context.Context) error {
	p.stopped.Store(true)
	return p.exporter.ForceFlush(ctx)
}

// WithIDs returns a context in which [trace.Tracer.Start], called with
// [trace.WithNewRoot], gives the new root span these ids. An invalid id is replaced by a
// random one.
func WithIDs(ctx context.Context, traceID trace.TraceID, spanID trace.SpanID) context.Context {
	return context.WithValue(ctx, idsKey{}, ids{traceID, spanID})
}

type idsKey struct{} // value: ids

type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

type tracer struct {
	embedded.Tracer

	provider *Provider
	source   *source // nil: traces are not sent
}

func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.provider.stopped.Load() {
		return noop.Tracer{}.Start(ctx, name)
	}
	cfg := trace.NewSpanStartConfig(opts...)
	s := &span{
		tracer: t, name: name, kind: trace.ValidateSpanKind(cfg.SpanKind()), began: cfg.Timestamp(), attrs: cfg.Attributes(), links: cfg.Links(), slot: noSlot,
	}
	state, parentCtx := stateStarted, ctx
	var sc trace.SpanContextConfig
	if !cfg.NewRoot() {
		s.parent = trace.SpanContextFromContext(ctx)
	} else {
		parentCtx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
		if given, ok := ctx.Value(idsKey{}).(ids); ok {
			state = stateRoot
			sc.TraceID, sc.SpanID = given.trace, given.span
		}
	}
	if s.parent.TraceID().IsValid() {
		sc.TraceID = s.parent.TraceID()
	}
	for !sc.TraceID.IsValid() {
		binary.BigEndian.PutUint64(sc.TraceID[:8], rand.Uint64())
		binary.BigEndian.PutUint64(sc.TraceID[8:], rand.Uint64())
	}
	for !sc.SpanID.IsValid() {
		binary.BigEndian.PutUint64(sc.SpanID[:], rand.Uint64())
	}
	sampled := t.provider.sampler.ShouldSample(sdktrace.SamplingParameters{
		ParentContext: parentCtx, TraceID: sc.TraceID, Name: name, Kind: s.kind, Attributes: s.attrs, Links: s.links,
	})
	sc.TraceState = sampled.Tracestate
	sc.TraceFlags = s.parent.TraceFlags().WithSampled(sampled.Decision == sdktrace.RecordAndSample)
	s.sc = trace.NewSpanContext(sc)
	if !s.sc.IsSampled() {
		u := unsampled{sc: s.sc, provider: t.provider}
		return trace.ContextWithSpan(ctx, u), u
	}
	if s.began.IsZero() {
		s.began = time.Now()
	}
	if e := t.provider.exporter; e != nil {
		s.baggage = e.opts.Baggage(ctx)
		if t.source.spooled {
			e.encode(s, state, time.Time{})
		}
	}
	return trace.ContextWithSpan(ctx, s), s
}

// unsampled is a span that has ids, for its children, and is not sent.
type unsampled struct {
	noop.Span

	sc       trace.SpanContext
	provider *Provider
}

func (u unsampled) SpanContext() trace.SpanContext       { return u.sc }
func (u unsampled) TracerProvider() trace.TracerProvider { return u.provider }
