package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A process that is killed loses the spans that it has not sent. Their children in other
// processes would become orphaned spans, and links to them would have no target. So spans
// are kept in a file until they are sent; spans that may have children from their start
// on. See spool in spool_linux.go. The next process that opens the folder sends the spans
// of a crashed one: those that had ended as they are, the others with an error, and with
// the time of that process's last write as their end.
//
// Roots that [StartRoot] has started and that have not ended are not sent: the process
// that resumes their work starts them again, under the same ids. See root.go.

// Status and error.type of a span that was in progress when its process was killed.
const (
	killedReason = "the process ended before the span did"
	killedType   = "process_killed" // error.type
)

// left holds the spans of a crashed process.
type left struct {
	spans  []*tracepb.ResourceSpans
	count  int
	doubts []doubt
	done   func() // removes them from the spool; called once for spans and once for each doubt
}

// leftSpan is one of these spans, encoded for OTLP, with the number of its source.
type leftSpan struct {
	source uint16
	state  uint32
	data   []byte
}

// The states of a place in the file.
const (
	stateFree    uint32 = iota
	stateStarted        // not ended: sent with an error if the process crashes
	stateRoot           // a root that has not ended: sent by the process that resumes the work
	stateEnding         // such a root whose end is being stored
	stateEnded
)

// restore decodes the spans that were found in a file and returns those to be sent, and
// the doubts. Spans that cannot be read are skipped and counted in damaged: a damaged
// file must not prevent a service from starting.
func restore(sources []leftSource, found []leftSpan, last time.Time) (l left, damaged int) {
	spans := make([]*tracepb.Span, len(found))
	best := map[trace.SpanID]uint32{} // highest state: a span that was ending may have two places
	for i, f := range found {
		s := &tracepb.Span{}
		if int(f.source) >= len(sources) || proto.Unmarshal(f.data, s) != nil || len(s.GetSpanId()) != len(trace.SpanID{}) {
			damaged++
			continue
		}
		spans[i] = s
		id := trace.SpanID(s.GetSpanId())
		best[id] = max(best[id], f.state)
	}
	byScope := map[uint16]*tracepb.ScopeSpans{}
	for i, s := range spans {
		if s == nil || found[i].state == stateRoot || found[i].state != best[trace.SpanID(s.GetSpanId())] {
			continue
		}
		from := found[i].source
		switch found[i].state {
		case stateEnding:
			if rs, ok := sources[from].around(s); ok {
				l.doubts = append(l.doubts, newDoubt(rs, s))
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
			rs, ok := sources[from].around()
			if !ok {
				damaged++
				continue
			}
			l.spans = append(l.spans, rs)
			ss = rs.GetScopeSpans()[0]
			byScope[from] = ss
		}
		ss.Spans = append(ss.Spans, s)
		l.count++
	}
	return l, damaged
}

func newDoubt(rs *tracepb.ResourceSpans, s *tracepb.Span) doubt {
	d := doubt{span: rs, end: time.Unix(0, int64(s.GetEndTimeUnixNano()))}
	for _, kv := range s.GetAttributes() {
		if kv.GetKey() == string(TurnID) {
			d.turn = kv.GetValue().GetStringValue()
		}
	}
	return d
}

// leftSource is the source of left spans: an encoded resource and scope.
type leftSource struct {
	resource, scope []byte
	schema          string // schema URL of the resource
}

// around returns the spans within messages for their resource and scope.
func (f leftSource) around(spans ...*tracepb.Span) (*tracepb.ResourceSpans, bool) {
	r, sc := &resourcepb.Resource{}, &commonpb.InstrumentationScope{}
	if proto.Unmarshal(f.resource, r) != nil || proto.Unmarshal(f.scope, sc) != nil {
		return nil, false
	}
	return &tracepb.ResourceSpans{Resource: r, SchemaUrl: f.schema, ScopeSpans: []*tracepb.ScopeSpans{{Scope: sc, Spans: spans}}}, true
}

// spoolFiles returns the spool files in a folder.
func spoolFiles(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix)) // the error is only for a malformed pattern
	return all
}

const spoolSuffix = ".spans"

// heir sends the spans of crashed processes in the background.
type heir struct {
	client otlptrace.Client
	log    *slog.Logger
	sent   func(spans int)
	stop   context.CancelFunc
	work   sync.WaitGroup
}

// retryEvery is the pause before a batch that the collector did not accept is sent again.
const retryEvery = 2 * time.Second

// inherit sends spans in the background until all are sent or close is called. Unsent
// spans stay in their files for the next process.
func inherit(client otlptrace.Client, all []left, log *slog.Logger, sent func(int)) *heir {
	ctx, stop := context.WithCancel(context.Background())
	h := &heir{client: client, log: log, sent: sent, stop: stop}
	h.work.Go(func() {
		for _, l := range all {
			if err := h.send(ctx, l); err != nil {
				return
			}
		}
	})
	return h
}

func (h *heir) send(ctx context.Context, l left) error {
	for said := false; len(l.spans) > 0; {
		err := h.client.UploadTraces(ctx, l.spans)
		if err == nil {
			break
		}
		if !said {
			h.log.WarnContext(ctx, "spans of an exited process not sent, retrying", "spans", l.count, "err", err)
		}
		said = true
		t := time.NewTimer(retryEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return errors.Join(ctx.Err(), err)
		case <-t.C:
		}
	}
	h.sent(l.count)
	if l.count > 0 {
		h.log.InfoContext(ctx, "spans of a killed process sent", "spans", l.count)
	}
	l.done()
	return nil
}

// close stops the sending. It waits for a request in progress until ctx ends.
func (h *heir) close(ctx context.Context) {
	done := make(chan struct{})
	go func() { h.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	h.stop()
	<-done
}
