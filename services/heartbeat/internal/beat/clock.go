package beat

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/failpoint"
)

// The clock's own numbers.
const (
	// Safety is how long the clock sleeps at most. Kicks make it faster; this
	// heals a kick that was lost.
	Safety = 30 * time.Second

	batch   = 256              // due things dealt with in one transaction
	abreast = 16               // wakes under way at a time
	retry   = time.Second      // after a failure
	tidying = time.Hour        // between two prunings of the history
	bound   = 10 * time.Second // of one round of I/O
)

// ClockConfig is what a clock needs. All fields but Note are required.
type ClockConfig struct {
	Timeline Timeline
	// Wake puts a wake where the agent finds it. The same again is the same wake,
	// also when the first has been consumed. It is called by several goroutines.
	Wake func(ctx context.Context, d Due) error
	// Note is told what was recorded.
	Note func(ctx context.Context, f Fired)
	Now  func() time.Time
	Log  *slog.Logger
	Keep time.Duration // of the history
}

// Clock fires what is due. One replica runs one at a time; two would do no harm
// beyond a wake of the same cause.
type Clock struct {
	ClockConfig
	kick chan struct{}
}

// NewClock returns a clock that stands still until [Clock.Run].
func NewClock(c ClockConfig) *Clock {
	if c.Note == nil {
		c.Note = func(context.Context, Fired) {}
	}
	return &Clock{ClockConfig: c, kick: make(chan struct{}, 1)}
}

// Kick makes a running clock look again: something new may be due before it
// would have looked.
func (c *Clock) Kick() {
	select {
	case c.kick <- struct{}{}:
	default: // one is waiting already and comes after this
	}
}

// Run fires what is due until ctx ends. Failures are logged and tried again.
func (c *Clock) Run(ctx context.Context) {
	var tidied time.Time
	for ctx.Err() == nil {
		wait, err := c.round(ctx)
		if err != nil {
			c.Log.WarnContext(ctx, "cannot fire, trying again", "err", err)
			wait = retry
		}
		if now := c.Now(); err == nil && now.Sub(tidied) >= tidying {
			tidied = now
			if err := c.Timeline.Prune(ctx, now.Add(-c.Keep)); err != nil {
				c.Log.WarnContext(ctx, "history not pruned", "err", err)
			}
		}
		if wait <= 0 {
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.kick:
		case <-t.C:
		}
		t.Stop()
	}
}

// round fires one batch and says how long to wait for the next. It is finished
// even while the process ends: a wake that is made and not recorded would be
// made again.
func (c *Clock) round(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	due, err := c.Timeline.Due(ctx, c.Now(), batch)
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

// wake wakes the agents of due and returns what may be recorded. The wake comes
// first: after a crash in between it is made again, under the same cause, and
// never lost.
func (c *Clock) wake(ctx context.Context, due []Due) (fired []Fired, failed error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, abreast)
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
		// Whatever was missed collapses into this one.
		next, err := Following(d.Cron, f.When)
		if err != nil {
			return f, err
		}
		f.Next = next
	}
	return f, c.Wake(ctx, d)
}
