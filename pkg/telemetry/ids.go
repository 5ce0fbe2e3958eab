package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"go.opentelemetry.io/otel/trace"
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
	_, span := tracer.Start(context.WithValue(ctx, forcedKey{}, forced{traceID, spanID}), name, opts...) //nolint:spancheck // the caller ends it
	// The context that Start returns would force the same ids on every root below it.
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

// forcedKey is the context key with which [StartRoot] passes the ids to a tracer.
type forcedKey struct{} // value: forced

type forced struct {
	trace trace.TraceID
	span  trace.SpanID
}
