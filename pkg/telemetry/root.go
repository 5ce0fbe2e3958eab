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

// The root span of work that may be resumed by another process is exported as one span,
// by the process that ends the work. If a process crashes while it stores the end, it is
// unknown whether the end was stored. So [Ending] stores the finished root in the spool
// before the end is stored. If the process does not export it, the next one looks the end
// up in the store ([Resolve]).

// Abandon ends a span without exporting it, because the process that resumes the work
// starts it again under the same ids. A span that is not ended at all would be treated as
// one in progress. After [Ending] the span is exported if [Resolve] finds that the work
// has ended.
func Abandon(span trace.Span) {
	span.SetName(abandoned)
	span.End()
}

// abandoned is a span name that no caller of SetName uses.
const abandoned = "\x00abandoned"

// Ending stores a root span, started by [StartRoot] with a tracer of p, in the spool with
// that end, before the end of the work is stored. Afterwards the caller ends the span, or
// abandons it. Without a spool Ending does nothing.
func Ending(p trace.TracerProvider, root trace.Span, end time.Time) {
	tp, ok := p.(*tracerProvider)
	s, recorded := root.(*span)
	if ok && recorded && tp.queue != nil && tp.queue.spool != nil && s.tracer.of.spool {
		s.mu.Lock()
		defer s.mu.Unlock()
		tp.queue.spool.ending(s.tracer.of.number, s, end)
	}
}

// Resolve exports the roots that a process abandoned, or did not export before a crash,
// after [Ending], if ended reports that the store has exactly this end. It runs until ctx
// ends, and returns nil. After an error of ended it retries. At most one service of a
// process may call it, the one that uses Ending.
func Resolve(ctx context.Context, p trace.TracerProvider, ended func(ctx context.Context, turn string, end time.Time) (bool, error)) error {
	tp, ok := p.(*tracerProvider)
	if !ok || tp.queue == nil {
		<-ctx.Done()
		return nil
	}
	tp.queue.doubts.resolve(ctx, ended)
	return nil
}

// doubt is a root that Ending has stored and that was not exported.
type doubt struct {
	span *tracepb.ResourceSpans // the span with its resource and scope
	turn string
	end  time.Time
	done func() // removes the doubt from the spool
}

// doubts are the open doubts of this process and of crashed ones.
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
	default: // resolve has been notified
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
				d.log.WarnContext(ctx, "root span of a turn not sent, retrying", "turn", v.turn, "err", err)
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
