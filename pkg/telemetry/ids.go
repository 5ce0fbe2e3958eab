package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"

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

// StartDerived starts a span as tracer.Start does, in the trace and below the
// span that ctx holds, with the span id of [DeriveSpanID] for that trace and key.
// A process that takes work over after a crash starts the same span again by the
// same key: children that the dead process sent before then find their parent.
// Give the time at which the work first began as trace.WithTimestamp, so that no
// child is older than its parent.
//
// The key must be unique within the trace, such as "tool/" and the id of the
// call; two spans of one key are two spans of one id, which backends merge or drop. Only
// this span gets the derived id: spans started from the returned context get ids
// of their own. Without a span in ctx a new trace begins. The id holds for
// tracers of [Providers]. The caller ends the span.
func StartDerived(ctx context.Context, tracer trace.Tracer, name, key string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	_, span := tracer.Start(context.WithValue(ctx, derivedKey{}, key), name, opts...) //nolint:spancheck // the caller ends it
	// The context of Start would give every span below it the same id.
	return trace.ContextWithSpan(ctx, span), span //nolint:spancheck // the caller ends it
}

// DeriveSpanID makes the id of a span from its trace and from what names its work
// within that trace. Equal input gives equal ids in every process and release;
// ids are never zero.
func DeriveSpanID(traceID trace.TraceID, key string) trace.SpanID {
	sum := sha256.Sum256(append(traceID[:len(traceID):len(traceID)], key...))
	id := trace.SpanID(sum[:8])
	if !id.IsValid() {
		id[len(id)-1] = 1
	}
	return id
}

// The wanted ids go to the generator in the context that Start is given.
type (
	forcedKey  struct{} // forced
	derivedKey struct{} // string
)

type forced struct {
	trace trace.TraceID
	span  trace.SpanID
}

// ids generates random ids, except for StartRoot and StartDerived.
type ids struct{}

func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	f, _ := ctx.Value(forcedKey{}).(forced)
	for !f.trace.IsValid() {
		binary.BigEndian.PutUint64(f.trace[:8], rand.Uint64())
		binary.BigEndian.PutUint64(f.trace[8:], rand.Uint64())
	}
	if !f.span.IsValid() {
		f.span = g.NewSpanID(ctx, f.trace)
	}
	return f.trace, f.span
}

func (ids) NewSpanID(ctx context.Context, traceID trace.TraceID) trace.SpanID {
	if key, ok := ctx.Value(derivedKey{}).(string); ok {
		return DeriveSpanID(traceID, key)
	}
	var id trace.SpanID
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
