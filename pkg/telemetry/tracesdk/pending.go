package tracesdk

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// The root span of work that may be resumed by another process is exported as one span,
// by the process that ends the work. If a process crashes while it stores the end, it is
// unknown whether the end was stored. So [Ending] stores the finished root in the
// spool before the end is stored. If the process does not export it, the root is pending:
// [Provider.Resolve] looks the end up in the store, in this process or in the next one.

// Abandon ends a span of this package without exporting it. After [Ending] the
// span is pending. Other spans are ended.
func Abandon(v trace.Span) {
	if s, ok := v.(*span); ok {
		s.change(func() { s.abandoned = true })
	}
	v.End()
}

// Ending stores a root span, started with [WithIDs], in the spool with that end.
// Afterwards the caller ends the span, or abandons it. Without a spool Ending does nothing.
func Ending(root trace.Span, end time.Time) {
	if s, ok := root.(*span); ok && s.tracer.source != nil && s.tracer.source.spooled {
		s.change(func() { s.tracer.provider.exporter.encode(s, stateEnding, end) })
	}
}

// Resolve exports the pending roots of this process and of crashed ones, if ended reports
// that the store has exactly this end. It runs until ctx ends. After an error of ended it
// retries. At most one service of a process may call it, the one that uses Ending.
func (p *Provider) Resolve(ctx context.Context, ended func(ctx context.Context, work string, end time.Time) (bool, error)) {
	if p.exporter == nil {
		<-ctx.Done()
		return
	}
	p.exporter.resolve(ctx, ended)
}

// pendingRoot is a root that Ending has stored and that was not exported.
type pendingRoot struct {
	span   *tracepb.ResourceSpans // the span with its resource and scope
	work   string
	end    time.Time
	remove func() // removes the root from the spool
}

// pendingRoots are the pending roots of this process and of crashed ones.
type pendingRoots struct {
	mu    sync.Mutex
	roots []pendingRoot
	added chan struct{}
}

func (e *Exporter) addPending(roots ...pendingRoot) {
	p := &e.pending
	p.mu.Lock()
	p.roots = append(p.roots, roots...)
	p.mu.Unlock()
	select {
	case p.added <- struct{}{}:
	default: // resolve has been notified
	}
}

func (e *Exporter) resolve(ctx context.Context, ended func(context.Context, string, time.Time) (bool, error)) {
	p := &e.pending
	away := false // the last attempt has failed
	for {
		p.mu.Lock()
		roots := p.roots
		p.roots = nil
		p.mu.Unlock()
		var failed []pendingRoot
		for i, r := range roots {
			err := e.decide(ctx, r, ended)
			if err == nil {
				away = false
				continue
			}
			if !away && ctx.Err() == nil {
				e.log.WarnContext(ctx, "root spans of turns not sent, retrying", "turn", r.work, "roots", len(roots)-i, "err", err)
			}
			// The others would probably fail, too. If only this one fails, it is the last of
			// the next round.
			away, failed = true, append(roots[i+1:], r)
			break
		}
		p.mu.Lock()
		p.roots = append(p.roots, failed...)
		p.mu.Unlock()
		var retry <-chan time.Time
		if len(failed) > 0 {
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.added:
		case <-retry:
		}
	}
}

// decide exports a root if its end is stored, and then removes it from the spool.
func (e *Exporter) decide(ctx context.Context, r pendingRoot, ended func(context.Context, string, time.Time) (bool, error)) error {
	stored, err := ended(ctx, r.work, r.end)
	if err != nil {
		return err
	}
	if stored {
		once, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		if err := e.client.UploadTraces(once, []*tracepb.ResourceSpans{r.span}); err != nil {
			return err
		}
		e.restored(1)
	}
	r.remove()
	return nil
}
