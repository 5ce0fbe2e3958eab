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

// A process that is killed takes along the spans that it has not sent. Those of
// other processes below them would be orphans, and links to them would lead
// nowhere. So spans lie in a file until they are sent, from their start on if
// they may have children; see spool in spool_linux.go. The next process that
// opens the folder sends what a dead one left: what had ended as it is, what had
// not as ended when that process last said something, with an error.
//
// Roots that [StartRoot] has started and nobody has ended are not sent: whoever takes
// their work up makes them anew, under the same ids. See root.go.

// What a span says that its process did not live to end.
const (
	killedReason = "the process ended before the span did"
	killedType   = "process_killed" // error.type
)

// left are the spans of a dead process.
type left struct {
	spans  []*tracepb.ResourceSpans
	count  int
	doubts []doubt
	done   func() // forgets them; called once for spans and once for each doubt
}

// leftSpan is one of them: OTLP's bytes of the span, and of what it belongs to.
type leftSpan struct {
	source uint16
	state  uint32
	data   []byte
}

// The states of a place in the file.
const (
	stateFree    uint32 = iota
	stateStarted        // and not ended: sent as an error if the process dies
	stateRoot           // and not ended: whoever goes on with the work sends it
	stateEnding         // such a one, whose end is being written down
	stateEnded
)

// restore makes what is sent out of what was found. Spans that cannot be read are
// left out and counted: a damaged file must not keep a service from starting.
func restore(sources []leftSource, found []leftSpan, last time.Time) (l left, damaged int) {
	spans := make([]*tracepb.Span, len(found))
	best := map[trace.SpanID]uint32{} // a span that was just ending is there twice
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

// leftSource is what left spans belong to: OTLP's bytes of a resource and of a scope.
type leftSource struct {
	resource, scope []byte
	schema          string // of the resource
}

// around is the messages around spans.
func (f leftSource) around(spans ...*tracepb.Span) (*tracepb.ResourceSpans, bool) {
	r, sc := &resourcepb.Resource{}, &commonpb.InstrumentationScope{}
	if proto.Unmarshal(f.resource, r) != nil || proto.Unmarshal(f.scope, sc) != nil {
		return nil, false
	}
	return &tracepb.ResourceSpans{Resource: r, SchemaUrl: f.schema, ScopeSpans: []*tracepb.ScopeSpans{{Scope: sc, Spans: spans}}}, true
}

// spoolFiles are the files in a folder.
func spoolFiles(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix)) // the pattern is good
	return all
}

const spoolSuffix = ".spans"

// heir sends what dead processes have left, in the background.
type heir struct {
	client otlptrace.Client
	log    *slog.Logger
	sent   func(spans int)
	stop   context.CancelFunc
	work   sync.WaitGroup
}

// retryEvery is how soon a collector that did not take them is asked once more.
const retryEvery = 2 * time.Second

// inherit sends in the background until all is sent or close is called. What is
// not sent by then is left for the next process.
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
			h.log.WarnContext(ctx, "the spans that a process left are not sent, trying again", "spans", l.count, "err", err)
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
		h.log.InfoContext(ctx, "sent the spans that a process left when it was killed", "spans", l.count)
	}
	l.done()
	return nil
}

// close ends sending. It gives what is under way until ctx ends.
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
