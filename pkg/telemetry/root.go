package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// The root span of work that may outlive its process is one span, whoever sends it:
// the process that brings the work to its end. There is a moment, when the end is
// being written down, of which nobody can tell afterwards whether it was reached.
// So the root is kept as it would be sent ([Ending]) before the end is written, and
// if the process did not live to send it, the next one asks the books ([Resolve]).

// Abandon ends a span that is never sent, because whoever takes the work up starts
// it again under the same ids. A span that is not ended at all would be taken for
// one under way. After [Ending] it is sent if [Resolve] finds that the work did end.
func Abandon(span trace.Span) {
	span.SetName(abandoned)
	span.End()
}

// abandoned is a name that nobody else gives.
const abandoned = "\x00abandoned"

// Ending says that the work of a root span, one of [StartRoot] by a tracer of p, is
// being written down as ended at that time. The caller ends the span when it is
// written, or abandons it. Without a spool it does nothing.
func Ending(p trace.TracerProvider, root trace.Span, end time.Time) {
	tp, ok := p.(*tracerProvider)
	s, recorded := root.(*span)
	if ok && recorded && tp.queue != nil && tp.queue.spool != nil && s.tracer.of.spool {
		s.mu.Lock()
		defer s.mu.Unlock()
		tp.queue.spool.ending(s.tracer.of.number, s, end)
	}
}

// Resolve sends the roots that a process did not live to send, or abandoned, after
// [Ending]: those of which ended says that the books have exactly this end. It works
// until ctx ends, and returns nil. An error of ended is tried again. At most one
// service of a process may call it, the one that uses Ending.
func Resolve(ctx context.Context, p trace.TracerProvider, ended func(ctx context.Context, turn string, end time.Time) (bool, error)) error {
	tp, ok := p.(*tracerProvider)
	if !ok || tp.queue == nil {
		<-ctx.Done()
		return nil
	}
	tp.queue.doubts.resolve(ctx, ended)
	return nil
}

// doubt is a root that was kept by Ending and not sent.
type doubt struct {
	span *tracepb.ResourceSpans // with this span only
	turn string
	end  time.Time
	done func() // forgets it
}

// doubts are those of a process, from its life and from dead ones.
type doubts struct {
	client otlptrace.Client
	log    *slog.Logger
	sent   func(spans int)

	mu   sync.Mutex
	open []doubt
	more chan struct{}
}

func (d *doubts) add(all ...doubt) {
	d.mu.Lock()
	d.open = append(d.open, all...)
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default: // it looks anyway
	}
}

func (d *doubts) resolve(ctx context.Context, ended func(context.Context, string, time.Time) (bool, error)) {
	for {
		d.mu.Lock()
		open := d.open
		d.open = nil
		d.mu.Unlock()
		var left []doubt
		for _, v := range open {
			if err := d.decide(ctx, v, ended); err != nil {
				d.log.WarnContext(ctx, "the root of a turn waits to be sent", "turn", v.turn, "err", err)
				left = append(left, v)
			}
		}
		d.mu.Lock()
		d.open = append(d.open, left...)
		d.mu.Unlock()
		var again <-chan time.Time
		if len(left) > 0 {
			again = time.After(retryEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.more:
		case <-again:
		}
	}
}

func (d *doubts) decide(ctx context.Context, v doubt, ended func(context.Context, string, time.Time) (bool, error)) error {
	yes, err := ended(ctx, v.turn, v.end)
	if err != nil {
		return err
	}
	if yes {
		once, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		if err := d.client.UploadTraces(once, []*tracepb.ResourceSpans{v.span}); err != nil {
			return err
		}
		d.sent(1)
	}
	v.done()
	return nil
}
