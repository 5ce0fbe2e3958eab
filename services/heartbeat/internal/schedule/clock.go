package schedule

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/failpoint"
)

// Limits and intervals of the clock.
const (
	// Safety is the maximum time between two rounds. A kick starts a round earlier;
	// Safety bounds the delay of a lost kick.
	Safety = 30 * time.Second

	maxBatch     = 256              // maximum number of due things in one transaction
	concurrency  = 16               // concurrent wakes
	retryAfter   = time.Second      // delay after a failure
	pruneEvery   = time.Hour        // interval between prunings of the history
	pruneAgain   = time.Second / 10 // delay between the parts of a pruning
	roundTimeout = 10 * time.Second // time limit of one round, and of one part of a pruning
)

// ClockConfig holds the dependencies of a clock. All fields but Note are required.
type ClockConfig struct {
	Timeline Timeline
	// Wake delivers a wake to the agent. It must be idempotent, even after the first wake
	// was consumed. It is called concurrently.
	Wake func(ctx context.Context, d Due) error
	// Note is called with each recorded firing; it may be nil.
	Note func(ctx context.Context, f Fired)
	Now  func() time.Time
	Log  *slog.Logger
	Keep time.Duration // retention of the history
}

// Clock fires what is due. One replica runs it at a time; two concurrent clocks only
// cause wakes of the same cause, which are idempotent.
type Clock struct {
	ClockConfig
	kick chan struct{}
}

// NewClock returns a clock that does nothing until [Clock.Run] is called.
func NewClock(c ClockConfig) *Clock {
	if c.Note == nil {
		c.Note = func(context.Context, Fired) {}
	}
	return &Clock{ClockConfig: c, kick: make(chan struct{}, 1)}
}

// Kick makes a running clock start a round now, because something new may be due before
// the next round.
func (c *Clock) Kick() {
	select {
	case c.kick <- struct{}{}:
	default: // a pending kick starts a round after this call
	}
}

// Run fires what is due until ctx ends. Failures are logged and retried.
func (c *Clock) Run(ctx context.Context) {
	var pruned time.Time
	for ctx.Err() == nil {
		wait, err := c.round(ctx)
		if err != nil {
			c.Log.WarnContext(ctx, "due entries not fired, retrying", "err", err)
			wait = retryAfter
		}
		if now := c.Now(); err == nil && now.Sub(pruned) >= pruneEvery {
			if c.prune(ctx, now) {
				wait = min(wait, pruneAgain)
			} else {
				pruned = now
			}
		}
		select {
		case <-ctx.Done():
		case <-c.kick:
		case <-time.After(wait):
		}
	}
}

// prune deletes a part of the old history, and reports whether there may be more. Wakes
// that become due meanwhile wait for one part only.
func (c *Clock) prune(ctx context.Context, now time.Time) (more bool) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	more, err := c.Timeline.Prune(ctx, now.Add(-c.Keep))
	if err != nil {
		c.Log.WarnContext(ctx, "history not pruned", "err", err)
		return false
	}
	return more
}

// round fires one batch and returns the time until the next round. It is completed even
// if the process is stopping: otherwise a wake that was delivered and not recorded would
// be delivered again.
func (c *Clock) round(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTimeout)
	defer cancel()
	due, err := c.Timeline.Due(ctx, c.Now(), maxBatch)
	if err != nil {
		return 0, err
	}
	fired, failed := c.wake(ctx, due)
	if len(fired) > 0 {
		recorded, err := failpoint.Value(ctx, failpoint.HeartbeatFire, func(ctx context.Context) ([]Fired, error) { return c.Timeline.Fire(ctx, fired) })
		if err != nil {
			return 0, err
		}
		for _, f := range recorded {
			c.Note(ctx, f)
		}
	}
	if failed != nil {
		return 0, failed
	}
	next, err := c.Timeline.Next(ctx)
	if err != nil || next.IsZero() {
		return Safety, err
	}
	return min(next.Sub(c.Now()), Safety), nil
}

// wake wakes the agents of due and returns what may be recorded. A wake is delivered
// before it is recorded: after a crash in between it is delivered again under the same
// cause, and is not lost.
func (c *Clock) wake(ctx context.Context, due []Due) (fired []Fired, failed error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrency)
	for _, d := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f, err := c.wakeOne(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			fired = append(fired, f)
		})
	}
	wg.Wait()
	return fired, failed
}

func (c *Clock) wakeOne(ctx context.Context, d Due) (Fired, error) {
	f := Fired{Due: d, When: c.Now().UTC().Truncate(time.Microsecond)}
	if d.Stale {
		return f, nil
	}
	if d.Alarm == "" {
		// All missed firings collapse into this one.
		next, err := Following(d.Cron, f.When)
		if err != nil {
			return f, err
		}
		f.Next = next
	}
	return f, c.Wake(ctx, d)
}
