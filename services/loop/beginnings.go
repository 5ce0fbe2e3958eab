package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// moment is how long the first turn of a run may take before the store is told that the
// run has begun, so that people see their agent at work. A turn that ends before records
// it itself.
const moment = 250 * time.Millisecond

// beginnings records the runs whose first turn takes long. It is safe for concurrent use.
//
// What it does not record because the process is killed, or the store is away, is recorded
// with the run's first turn: until then the journal tells that the run has begun.
type beginnings struct {
	record func(ctx context.Context, cmd api.Run, input turn.Input, tier api.Tier, at int64) error
	log    *slog.Logger
	more   chan struct{} // holds one: a run has begun

	mu      sync.Mutex
	waiting []*beginning // in the order in which they are due
}

type beginning struct {
	cmd   api.Run
	input turn.Input
	tier  api.Tier
	at    int64
	due   time.Time
	over  bool // there is nothing to record any more
}

func newBeginnings(record func(context.Context, api.Run, turn.Input, api.Tier, int64) error, log *slog.Logger) *beginnings {
	return &beginnings{record: record, log: log, more: make(chan struct{}, 1)}
}

// begun is told of a run that was taken up for the first time. Where services are made
// to die nothing is recorded: whether it was would depend on the time.
func (b *beginnings) begun(cmd api.Run, input turn.Input, tier api.Tier, at int64) (done func()) {
	if failpoint.Enabled {
		return func() {}
	}
	v := &beginning{cmd: cmd, input: input, tier: tier, at: at, due: time.Now().Add(moment)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, v)
	if len(b.waiting) == 1 {
		select {
		case b.more <- struct{}{}:
		default:
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		v.over = true
	}
}

// flush records what this process has begun for an agent, "" for all, before its state is
// changed from outside: the order of the changes is that in which they happened.
func (b *beginnings) flush(ctx context.Context, agent string) error {
	b.mu.Lock()
	var due []*beginning
	for _, v := range b.waiting {
		if (agent == "" || v.cmd.Agent == agent) && !v.over {
			v.over = true
			due = append(due, v)
		}
	}
	b.mu.Unlock()
	for _, v := range due {
		err := b.record(ctx, v.cmd, v.input, v.tier, v.at)
		switch api.CodeOf(err) {
		case api.Conflict, api.Denied, api.NotFound: // the run is over, or its agent dead or deleted
			err = nil
		case api.Invalid, api.Unavailable, api.Internal:
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run records what is due until ctx ends. What waits then is for [beginnings.leave].
func (b *beginnings) run(ctx context.Context) error {
	wait := time.NewTimer(moment)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.more:
		case <-wait.C:
		}
		next, due := b.take(time.Now())
		for i, v := range due {
			err := b.record(ctx, v.cmd, v.input, v.tier, v.at)
			if err != nil && ctx.Err() != nil {
				b.keep(due[i:])
				return nil
			}
			if err != nil {
				b.log.DebugContext(ctx, "the beginning of a run is recorded with its first turn", "run", v.cmd.Run, "err", err)
			}
		}
		wait.Reset(next)
	}
}

// keep puts back what could not be recorded.
func (b *beginnings) keep(due []*beginning) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(due, b.waiting...)
}

// leave records the runs that this process has begun and not recorded: other processes
// take them up. It is called before the process exits, when no run is under way.
func (b *beginnings) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := b.flush(ctx, ""); err != nil {
		b.log.WarnContext(ctx, "the beginning of a run is not recorded", "err", err)
	}
}

// take returns what is due and how long the rest waits.
func (b *beginnings) take(now time.Time) (next time.Duration, due []*beginning) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.waiting) > 0 {
		v := b.waiting[0]
		if !v.over && v.due.After(now) {
			return v.due.Sub(now), due
		}
		b.waiting[0], b.waiting = nil, b.waiting[1:]
		if !v.over {
			due = append(due, v)
		}
	}
	b.waiting = nil
	return time.Hour, due // more says when
}
