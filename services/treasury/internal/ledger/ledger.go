// Package ledger implements the ledger: accounts, transactions that sum to zero, and
// holds that reserve credits before they are spent. It contains all decisions about
// credits and leaves persistence to a [Store]. It must not depend on messages, NATS or
// SQL.
//
// A [Ledger] accepts operations from concurrent callers and writes them in groups:
// operations that wait at the same time share one commit. Each operation has an id and is
// idempotent. Errors are [api.Error]; any other error is a failure of the store.
package ledger

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Ledger keeps accounts, transactions and holds in a [Store]. Use [New] to create one and
// [Ledger.Run] to run it. Its methods are safe for concurrent use.
type Ledger struct {
	store   Store
	opts    Options
	queue   chan *request
	stopped chan struct{}
	limiter limiter
}

// Options holds the options of a Ledger.
type Options struct {
	Now   func() time.Time
	Group int // most operations in a commit; 0 means 64 (one full pool of a route)
	// Limits, which may be nil, are the limits of agents that have none of their own.
	Limits *api.Limits
	// Committed, which may be nil, is called after each commit, also one without changes.
	// Calls are not concurrent.
	Committed func(ctx context.Context, c Changes, operations int)
}

// commitTimeout is the timeout of one commit.
const commitTimeout = 10 * time.Second

// request is an operation that waits for its group.
type request struct {
	ctx  context.Context //nolint:containedctx // context of the caller, checked when the group is formed
	keys Keys
	do   func(*batch) error
	done chan error // buffered
}

// New returns a Ledger on a store.
func New(store Store, o Options) *Ledger {
	if o.Group <= 0 {
		o.Group = 64
	}
	l := &Ledger{store: store, opts: o, queue: make(chan *request, 2*o.Group), stopped: make(chan struct{})}
	l.limiter.init(o.Limits)
	return l
}

// Run writes groups of operations, one at a time, until ctx ends. Operations that wait
// when a commit ends form the next group, so groups grow with the load. When ctx ends,
// waiting operations fail with Unavailable. Run must be called once.
func (l *Ledger) Run(ctx context.Context) {
	defer close(l.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-l.queue:
			runtime.Gosched() // lets goroutines that are ready to submit join the group
			l.write(ctx, l.gather(first))
		}
	}
}

// Queued returns the number of operations that wait for the commit in progress.
func (l *Ledger) Queued() int { return len(l.queue) }

func (l *Ledger) gather(first *request) []*request {
	group := make([]*request, 0, l.opts.Group)
	for r := first; ; {
		if err := r.ctx.Err(); err != nil {
			r.done <- err // the caller has canceled
		} else {
			group = append(group, r)
		}
		if len(group) == l.opts.Group {
			return group
		}
		select {
		case r = <-l.queue:
		default:
			return group
		}
	}
}

// write commits a group. If the store fails with an error that a retry would not fix, the
// cause may be a single operation, so each operation is written separately. This is safe
// even if the first commit succeeded, because operations are idempotent.
func (l *Ledger) write(ctx context.Context, group []*request) {
	if len(group) == 0 {
		return
	}
	refusals, err := l.commit(ctx, group)
	if err != nil && len(group) > 1 && api.CodeOf(err) != api.Unavailable && ctx.Err() == nil {
		for _, r := range group {
			l.write(ctx, []*request{r})
		}
		return
	}
	for i, r := range group {
		if err != nil {
			r.done <- err
			continue
		}
		r.done <- refusals[i]
	}
}

func (l *Ledger) commit(ctx context.Context, group []*request) ([]error, error) {
	// A commit in progress is finished even if ctx ends, so that callers of a stopping
	// service receive the outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	var keys Keys
	for _, r := range group {
		keys.Add(r.keys)
	}
	refusals := make([]error, len(group))
	var c Changes
	err := failpoint.Do(ctx, failpoint.TreasuryCommit, func(ctx context.Context) error {
		return l.store.Update(ctx, keys, func(s State) Changes {
			b := newBatch(s, l.opts.Now().UnixMicro(), &l.limiter)
			for i, r := range group {
				refusals[i] = r.do(b)
				decided(r, refusals[i])
			}
			c = b.changes()
			return c
		})
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, &api.Error{
			Code: api.Unavailable, Message: "the ledger could not be written in time",
			Next: "retry with the same id", RetryAfter: 1000,
		}
	}
	if err == nil && l.opts.Committed != nil {
		l.opts.Committed(ctx, c, len(group))
	}
	return refusals, err
}

// submit queues an operation and returns its result after the commit. If ctx ends first,
// the outcome is unknown; repeating the operation with the same id is safe.
func submit[T any](ctx context.Context, l *Ledger, keys Keys, do func(*batch) (T, error)) (T, error) {
	var got, none T
	r := &request{ctx: ctx, keys: keys, done: make(chan error, 1), do: func(b *batch) (err error) {
		got, err = do(b)
		return err
	}}
	select {
	case l.queue <- r:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-l.stopped:
		return none, stopping()
	}
	select {
	case err := <-r.done:
		return got, err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-l.stopped:
	}
	select {
	case err := <-r.done: // it was in the last group
		return got, err
	default:
		return none, stopping()
	}
}

func stopping() error {
	return &api.Error{Code: api.Unavailable, Message: "the treasury is stopping", Next: "retry with the same id", RetryAfter: 1000}
}
