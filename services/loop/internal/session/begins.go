package session

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// moment is the time after which a run in its first turn is recorded as begun in the
// store, so that its agent is shown as running. A first turn that is persisted earlier
// records the run itself.
const moment = 250 * time.Millisecond

// Begins records the begin of runs whose first turn takes longer than moment. It is
// safe for concurrent use.
//
// The begin of a message that may be due soon ([Expiry.Soon]) is recorded at once.
//
// Another begin that is not recorded, because the process crashed or the store is
// unavailable, is recorded with the run's first turn. Until then the journal has it.
type Begins struct {
	record func(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) error
	soon   func(cmd api.Run, at int64) bool
	log    *slog.Logger
	more   chan struct{} // capacity 1: a run has begun

	mu      sync.Mutex
	waiting []*beginning // ordered by due
}

type beginning struct {
	cmd   api.Run
	input engine.Input
	tier  api.Tier
	at    int64
	due   time.Time
	over  bool // already recorded, or no longer needed
}

// NewBegins returns the record of begins; record stores one, and soon is [Expiry.Soon].
func NewBegins(record func(context.Context, api.Run, engine.Input, api.Tier, int64) error, soon func(api.Run, int64) bool, log *slog.Logger) *Begins {
	return &Begins{record: record, soon: soon, log: log, more: make(chan struct{}, 1)}
}

// Begun registers a run that has begun for the first time, and returns the function
// that removes it. The begin of a message that may be due soon is recorded instead.
// Errors: Conflict if the run is over, because its message has expired.
func (b *Begins) Begun(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) (done func(), err error) {
	if b.soon(cmd, at) {
		err := b.record(ctx, cmd, input, tier, at)
		if code := api.CodeOf(err); err != nil && code != api.Denied && code != api.NotFound { // the turn finds that the agent is dead or deleted
			return nil, err
		}
		return func() {}, nil
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
	}, nil
}

// Flush records the registered begins of an agent, or of all if agent is "". It is
// called before the agent's state is changed by other requests, so that the changes are
// stored in the order in which they happened.
func (b *Begins) Flush(ctx context.Context, agent string) error {
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
		// Other errors say that the run is over, or that its agent is dead or deleted.
		if code := api.CodeOf(err); code == api.Invalid || code == api.Unavailable || code == api.Internal {
			return err
		}
	}
	return nil
}

// Run records begins that are due until ctx ends. [Begins.Close] records the rest.
func (b *Begins) Run(ctx context.Context) error {
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
				b.log.DebugContext(ctx, "begin of a run not recorded, its first turn records it", "run", v.cmd.Run, "err", err)
			}
		}
		wait.Reset(next)
	}
}

// keep returns begins that could not be recorded to the list.
func (b *Begins) keep(due []*beginning) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(due, b.waiting...)
}

// Close records the registered begins of this process, so that other processes can
// resume the runs. It is called before the process exits, when no run is in progress.
func (b *Begins) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := b.Flush(ctx, ""); err != nil {
		b.log.WarnContext(ctx, "begin of a run not recorded", "err", err)
	}
}

// take removes and returns the begins that are due, and the time until the next one.
func (b *Begins) take(now time.Time) (next time.Duration, due []*beginning) {
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
	return time.Hour, due // the channel more signals the next one
}
