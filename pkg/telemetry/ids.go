package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"go.opentelemetry.io/otel/trace"
)

// StartRoot starts a new root span with exactly these ids, whatever span ctx
// holds, and returns a context whose further spans get ids of their own. It is
// how work that was interrupted by a crash continues its trace: derive the ids
// from the work's name ([DeriveIDs]) and pass the time it first began as
// trace.WithTimestamp, so that no child is older than its parent.
//
// The ids hold for tracers of [Providers]; an invalid id is replaced by a
// random one. The caller ends the span.
func StartRoot(ctx context.Context, tracer trace.Tracer, name string, traceID trace.TraceID, spanID trace.SpanID, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	opts = append(opts[:len(opts):len(opts)], trace.WithNewRoot())
	_, span := tracer.Start(context.WithValue(ctx, forcedKey{}, forced{traceID, spanID}), name, opts...) //nolint:spancheck // the caller ends it
	// The context of Start would force the same ids on every root below it.
	return trace.ContextWithSpan(ctx, span), span //nolint:spancheck // the caller ends it
}

// DeriveIDs makes ids of a trace and its root span from what names the work,
// such as ("run", id). Equal parts give equal ids in every process and release;
// ids are never zero. Parts are told apart: ("a", "bc") is not ("ab", "c").
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

// The wanted ids go to the generator in the context that Start is given.
type forcedKey struct{} // forced

type forced struct {
	trace trace.TraceID
	span  trace.SpanID
}
