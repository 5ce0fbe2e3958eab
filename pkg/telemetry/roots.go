package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry/tracesdk"
)

// StartRoot starts a new root span with the given ids, regardless of the span in ctx, and
// returns a context in which further spans get their own ids. Work that is resumed after
// a crash continues its trace in this way: derive the ids from the name of the work
// ([DeriveIDs]) and pass the time at which it first began as trace.WithTimestamp, so that
// no child begins before its parent.
//
// Only tracers of [Providers] use the ids. An invalid id is replaced by a random one. The
// caller ends the span.
func StartRoot(ctx context.Context, tracer trace.Tracer, name string, traceID trace.TraceID, spanID trace.SpanID, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	opts = append(opts[:len(opts):len(opts)], trace.WithNewRoot())
	_, span := tracer.Start(tracesdk.WithIDs(ctx, traceID, spanID), name, opts...) //nolint:spancheck // the caller ends it
	// With the context that Start returns, every root below it would get the same ids.
	return trace.ContextWithSpan(ctx, span), span //nolint:spancheck // the caller ends it
}

// DeriveIDs derives the ids of a trace and its root span from the name of the work, such
// as ("run", id). Equal parts give equal ids in every process and release; ids are never
// zero. Parts are hashed with their lengths: ("a", "bc") differs from ("ab", "c").
func DeriveIDs(parts ...string) (trace.TraceID, trace.SpanID) {
	h := sha256.New()
	for _, p := range parts {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	sum := h.Sum(nil)
	var traceID trace.TraceID
	var spanID trace.SpanID
	copy(traceID[:], sum)
	copy(spanID[:], sum[len(traceID):])
	if !traceID.IsValid() {
		traceID[len(traceID)-1] = 1
	}
	if !spanID.IsValid() {
		spanID[len(spanID)-1] = 1
	}
	return traceID, spanID
}

// Abandon ends a span without exporting it, because the process that resumes the work
// starts it again under the same ids. A span that is not ended at all would be treated as
// one in progress. After [Ending] the span is exported if [Resolve] finds that the work
// has ended.
func Abandon(span trace.Span) { tracesdk.Abandon(span) }

// Ending stores a root span, started by [StartRoot], in the spool with that end, before
// the end of the work is stored. Afterwards the caller ends the span, or abandons it.
// Without a spool Ending does nothing.
func Ending(root trace.Span, end time.Time) { tracesdk.Ending(root, end) }

// Resolve exports the roots that a process abandoned, or did not export before a crash,
// after [Ending], if ended reports that the store has exactly this end of the turn. It
// runs until ctx ends, and returns nil. After an error of ended it retries. At most one
// service of a process may call it, the one that uses Ending.
func Resolve(ctx context.Context, p trace.TracerProvider, ended func(ctx context.Context, turn string, end time.Time) (bool, error)) error {
	if tp, ok := p.(*tracesdk.Provider); ok {
		tp.Resolve(ctx, ended)
	} else {
		<-ctx.Done()
	}
	return nil
}
