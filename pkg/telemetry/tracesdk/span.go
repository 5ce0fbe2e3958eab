package tracesdk

import (
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// span is a sampled span, which is sent when it has ended.
type span struct {
	embedded.Span

	tracer     *tracer
	sc, parent trace.SpanContext
	kind       trace.SpanKind
	baggage    [2]Member
	began      time.Time

	mu     sync.Mutex
	name   string
	end    time.Time // zero while the span has not ended
	attrs  []attribute.KeyValue
	links  []trace.Link
	events []event
	status sdktrace.Status

	abandoned bool
	slot      uint32 // in the spool, or noSlot
}

type event struct {
	name  string
	at    time.Time
	attrs []attribute.KeyValue
}

// maxPerSpan is the limit of attributes, links and events of a span, each, as in the
// conventions. Further ones are dropped.
const maxPerSpan = 128

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
			} else if len(s.attrs) < maxPerSpan {
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
		if l.SpanContext.IsValid() && len(s.links) < maxPerSpan {
			s.links = append(s.links[:len(s.links):len(s.links)], l)
		}
	})
}

func (s *span) AddEvent(name string, opts ...trace.EventOption) {
	cfg := trace.NewEventConfig(opts...)
	s.change(func() {
		if len(s.events) < maxPerSpan {
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
	switch e := s.tracer.provider.exporter; {
	case e == nil, s.tracer.provider.stopped.Load():
	case s.abandoned:
		e.abandon(s)
	default:
		e.put(s)
	}
}

// append appends the span, as it ends at end (zero: it has not ended), encoded for OTLP;
// the short form has no attributes and events. The caller holds s.mu, or no other
// goroutine can change the span.
func (s *span) append(b []byte, end time.Time, short bool) []byte {
	traceID, id := s.sc.TraceID(), s.sc.SpanID()
	b = appendBytes(appendBytes(b, spanTraceID, traceID[:]), spanID, id[:])
	if state := s.sc.TraceState(); state.Len() > 0 {
		b = appendText(b, spanTraceState, state.String())
	}
	if id := s.parent.SpanID(); id.IsValid() {
		b = appendBytes(b, spanParent, id[:])
	}
	b = appendVarint(appendText(b, spanName, s.name), spanKind, uint64(s.kind)) // trace.SpanKind has the numbers of OTLP
	b = appendTime(b, spanStart, s.began)
	if !end.IsZero() {
		b = appendTime(b, spanEnd, end)
	}
	b = appendFixed32(b, spanFlags, flagsOf(s.sc, s.parent))
	for _, l := range s.links {
		b = appendLink(b, l)
	}
	if s.status.Code != codes.Unset {
		b = appendStatus(b, s.status)
	}
	b = appendBaggage(b, s.baggage, s.attrs)
	if short {
		return b
	}
	for i := range s.events {
		b = appendEvent(b, &s.events[i])
	}
	return appendAttributes(b, spanAttributes, s.attrs)
}
