package sqldb

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

const scope = "github.com/anima-run/anima/pkg/sqldb"

// Each statement has a span of its own, and so has the COMMIT of a transaction
// that writes, where durability is waited for. Measured (BenchmarkSpans, sending
// apart): 3 µs and 1.6 kB for each. A transaction of three statements takes 62
// instead of 49 µs on SQLite; on Postgres, with 0.4 ms, the difference drowns in
// the noise. One span for the whole transaction would take 53 µs, and hide which
// statement was slow or failed. BEGIN and ROLLBACK have none: they add lines to a
// trace and say nothing.

// spans makes the spans of a database's statements, below those spans that are
// being recorded: a poll in the background, which has none, makes none. A nil
// *spans does nothing.
type spans struct {
	tracer trace.Tracer
	common []attribute.KeyValue // of every span

	mu   sync.RWMutex
	seen map[string]*statement // by text
}

// maxSummaries bounds the statements whose summary is kept. Those made at run
// time, with a list of values, could be without end.
const maxSummaries = 1024

// statement is what is known from the text of a statement.
type statement struct {
	name  string                  // of the span; "" means that it has none
	attrs []attribute.KeyValue    // db.query.summary, db.operation.name, db.collection.name
	opts  []trace.SpanStartOption // what is said of each of its spans
}

// newSpans returns nil without a provider. An empty namespace is left out.
func newSpans(p trace.TracerProvider, system attribute.KeyValue, namespace string) *spans {
	if p == nil {
		return nil
	}
	s := &spans{tracer: telemetry.LeafTracer(p, scope), common: []attribute.KeyValue{system}, seen: map[string]*statement{}}
	if namespace != "" {
		s.common = append(s.common, semconv.DBNamespace(namespace))
	}
	return s
}

func (s *spans) wanted(ctx context.Context) bool {
	return s != nil && trace.SpanFromContext(ctx).IsRecording()
}

func (s *spans) statement(query string) *statement {
	s.mu.RLock()
	st := s.seen[query]
	s.mu.RUnlock()
	if st != nil {
		return st
	}
	st = &statement{}
	switch operation, table := summarize(query); operation {
	case "", "BEGIN", "START", "ROLLBACK", "SAVEPOINT", "RELEASE":
	default:
		st.name = operation
		if table != "" {
			st.name += " " + table
			st.attrs = append(st.attrs, semconv.DBCollectionName(table))
		}
		st.attrs = append(st.attrs, semconv.DBQuerySummary(st.name), semconv.DBOperationName(operation))
		all := append(st.attrs[:len(st.attrs):len(st.attrs)], s.common...)
		st.opts = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(all...)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) < maxSummaries {
		s.seen[query] = st
	}
	return st
}

// start starts the span of a statement; nil means that it has none. Nothing is started
// below it, so no context is returned.
func (s *spans) start(ctx context.Context, query string) trace.Span {
	if !s.wanted(ctx) {
		return nil
	}
	st := s.statement(query)
	if st.name == "" {
		return nil
	}
	_, span := s.tracer.Start(ctx, st.name, st.opts...) //nolint:spancheck // the caller ends it
	return span                                         //nolint:spancheck // the caller ends it
}

// startAt is start for a statement that was sent at a time.
func (s *spans) startAt(ctx context.Context, query string, at time.Time) trace.Span {
	if !s.wanted(ctx) {
		return nil
	}
	st := s.statement(query)
	if st.name == "" {
		return nil
	}
	opts := append(st.opts[:len(st.opts):len(st.opts)], trace.WithTimestamp(at))
	_, span := s.tracer.Start(ctx, st.name, opts...) //nolint:spancheck // the caller ends it
	return span                                      //nolint:spancheck // the caller ends it
}

// finish ends a span of start.
func finish(ctx context.Context, span trace.Span, err error) {
	if span == nil {
		return
	}
	markFailed(ctx, span, err)
	span.End()
}

// markFailed says what went wrong in words of neither engine. The engine's own
// message stays out: it may quote a value.
func markFailed(ctx context.Context, span trace.Span, err error) {
	if err == nil {
		return
	}
	err = mapIn(ctx, err)
	kind := "_OTHER"
	switch {
	case errors.Is(err, context.Canceled):
		kind = "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		kind = "deadline_exceeded"
	case errors.Is(err, ErrConflict):
		kind = "conflict"
	case errors.Is(err, ErrBusy):
		kind = "busy"
	case errors.Is(err, ErrUnavailable):
		kind = "unavailable"
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		span.SetAttributes(semconv.DBResponseStatusCode(pg.Code))
	} else if lite, ok := errors.AsType[*liteError](err); ok {
		span.SetAttributes(semconv.DBResponseStatusCode(strconv.Itoa(int(lite.code))))
	}
	span.SetStatus(codes.Error, kind)
}
