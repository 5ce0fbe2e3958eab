package tracesdk

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A process that is killed loses the spans that it has not sent. Their children in other
// processes would become orphaned spans, and links to them would have no target. So spans
// are kept in a file from their start until they are sent. See spool in spool.go. The next
// process that opens the folder sends the spans of a crashed one: those that had ended as
// they are, the others with an error, and with the time of that process's last write as
// their end.
//
// Roots with the ids of [WithIDs] that have not ended are not sent: the process that
// resumes their work starts them again, under the same ids. See pending.go.

// Status and error.type of a span that was in progress when its process was killed.
const (
	killedReason = "the process ended before the span did"
	killedType   = "process_killed" // error.type
)

// orphans are the spans in the file of a crashed process.
type orphans struct {
	spans   []*tracepb.ResourceSpans
	count   int
	pending []pendingRoot
	remove  func() // removes them from the spool; called once for spans and once for each pending root
}

// requests returns the spans in requests of at most limit spans, as those of a running
// process are: a collector refuses a message of more than 4 MiB, whenever it is sent.
func (o *orphans) requests(limit int) (all [][]*tracepb.ResourceSpans) {
	for _, rs := range o.spans {
		scope := rs.GetScopeSpans()[0]
		for part := range slices.Chunk(scope.GetSpans(), limit) {
			all = append(all, []*tracepb.ResourceSpans{{
				Resource: rs.GetResource(), SchemaUrl: rs.GetSchemaUrl(),
				ScopeSpans: []*tracepb.ScopeSpans{{Scope: scope.GetScope(), SchemaUrl: scope.GetSchemaUrl(), Spans: part}},
			}})
		}
	}
	return all
}

// storedSpan is a span in a slot of the file.
type storedSpan struct {
	source uint16 // number of its source
	state  uint32
	data   []byte // encoded for OTLP
}

// The states of a slot of the file. The values are part of its format.
const (
	stateFree    uint32 = iota
	stateStarted        // not ended: sent with an error if the process crashes
	stateRoot           // a root that has not ended: sent by the process that resumes the work
	stateEnding         // such a root whose end is being stored
	stateEnded
)

// restore decodes the spans that were found in a file and returns those to be sent, and
// the pending roots, whose attribute work names their work. Spans that cannot be read are
// skipped and counted in damaged: a damaged file must not prevent a service from starting.
func restore(sources []*source, found []storedSpan, last time.Time, work attribute.Key) (o orphans, damaged int) {
	spans := make([]*tracepb.Span, len(found))
	latest := map[trace.SpanID]uint32{} // highest state: a span that was ending may have two slots
	for i, f := range found {
		s := &tracepb.Span{}
		if int(f.source) >= len(sources) || proto.Unmarshal(f.data, s) != nil || len(s.GetSpanId()) != len(trace.SpanID{}) {
			damaged++
			continue
		}
		spans[i] = s
		id := trace.SpanID(s.GetSpanId())
		latest[id] = max(latest[id], f.state)
	}
	byScope := map[uint16]*tracepb.ScopeSpans{}
	for i, s := range spans {
		if s == nil || found[i].state == stateRoot || found[i].state != latest[trace.SpanID(s.GetSpanId())] {
			continue
		}
		from := found[i].source
		switch found[i].state {
		case stateEnding:
			if rs, ok := sources[from].wrap(s); ok {
				o.pending = append(o.pending, newPendingRoot(rs, s, work))
				continue
			}
			damaged++
			continue
		case stateStarted:
			s.EndTimeUnixNano = max(s.GetStartTimeUnixNano(), uint64(max(0, last.UnixNano())))
			s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: killedReason}
			s.Attributes = append(s.Attributes, &commonpb.KeyValue{
				Key: "error.type", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: killedType}},
			})
		}
		ss := byScope[from]
		if ss == nil {
			rs, ok := sources[from].wrap()
			if !ok {
				damaged++
				continue
			}
			o.spans = append(o.spans, rs)
			ss = rs.GetScopeSpans()[0]
			byScope[from] = ss
		}
		ss.Spans = append(ss.Spans, s)
		o.count++
	}
	return o, damaged
}

func newPendingRoot(rs *tracepb.ResourceSpans, s *tracepb.Span, work attribute.Key) pendingRoot {
	r := pendingRoot{span: rs, end: time.Unix(0, int64(s.GetEndTimeUnixNano()))}
	for _, kv := range s.GetAttributes() {
		if kv.GetKey() == string(work) {
			r.work = kv.GetValue().GetStringValue()
		}
	}
	return r
}

// wrap returns the spans within messages for their resource and scope.
func (f *source) wrap(spans ...*tracepb.Span) (*tracepb.ResourceSpans, bool) {
	r, sc := &resourcepb.Resource{}, &commonpb.InstrumentationScope{}
	if proto.Unmarshal(f.resource, r) != nil || proto.Unmarshal(f.scope, sc) != nil {
		return nil, false
	}
	return &tracepb.ResourceSpans{Resource: r, SchemaUrl: f.schema, ScopeSpans: []*tracepb.ScopeSpans{{Scope: sc, Spans: spans}}}, true
}
