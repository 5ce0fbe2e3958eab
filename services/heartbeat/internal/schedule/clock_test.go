package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

// bench is a clock on a real store, in the time of a synctest bubble.
type bench struct {
	db    *sqldb.DB
	store *sqlstore.Store
	clock *schedule.Clock
	wake  func(schedule.Due) error // returns the error of a wake; nil: no errors

	mu    sync.Mutex
	wakes []string // cause, and the time since the start
	start time.Time
}

// timed runs test in a bubble that starts at a full hour.
func timed(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := sqldbtest.SQLite(t, sqlstore.Migrations())
		b := &bench{db: db, start: time.Now()}
		b.store = sqlstore.New(db, func(context.Context, *sqldb.Tx, []schedule.Fired) error { return nil })
		b.clock = schedule.NewClock(schedule.ClockConfig{
			Timeline: b.store, Wake: b.put, Now: time.Now, Log: slog.New(slog.DiscardHandler), Keep: 24 * time.Hour,
		})
		b.see(t, schedule.Agent{ID: "a", State: api.StateSleeping, Seq: 1, Changed: b.start})
		test(t, b)
	})
}

func (b *bench) see(t *testing.T, a schedule.Agent) {
	t.Helper()
	err := sqldb.InTx(t.Context(), b.db, func(tx *sqldb.Tx) error {
		_, err := b.store.SeeAgents(t.Context(), tx, []schedule.Agent{a})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) put(_ context.Context, d schedule.Due) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake != nil {
		if err := b.wake(d); err != nil {
			return err
		}
	}
	b.wakes = append(b.wakes, d.Name+" after "+time.Since(b.start).String())
	return nil
}

// run starts the clock and returns a function that stops it.
func (b *bench) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.clock.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

func (b *bench) schedule(t *testing.T, entries ...schedule.Entry) {
	t.Helper()
	checked, faults := schedule.Check("a", entries, time.Now())
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if err := b.store.SetSchedule(t.Context(), "a", checked); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) alarm(t *testing.T, in time.Duration) {
	t.Helper()
	now := time.Now()
	if _, err := b.store.SetAlarm(t.Context(), schedule.Alarm{ID: "t1", Agent: "a", At: now.Add(in), Set: now}); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := cmp.Diff(want, b.wakes); d != "" {
		t.Fatalf("wakes: -want +got\n%s", d)
	}
}

// pass waits for d in the time of the bubble.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
}

func TestClockFiresOnTime(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		b.schedule(t, schedule.Entry{Name: "five", Cron: "*/5 * * * *"})
		defer b.run(t)()
		pass(t, 299*time.Second)
		b.want(t)
		pass(t, time.Second)
		b.want(t, "five after 5m0s")
		pass(t, 10*time.Minute)
		b.want(t, "five after 5m0s", "five after 10m0s", "five after 15m0s")
	})
}

func TestClockIsKicked(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		defer b.run(t)()
		pass(t, time.Second)
		b.alarm(t, 1500*time.Millisecond)
		b.clock.Kick()
		pass(t, 1499*time.Millisecond)
		b.want(t)
		pass(t, time.Millisecond)
		b.want(t, "alarm after 2.5s")
		b.alarm(t, time.Second) // the same alarm again
		b.clock.Kick()
		pass(t, time.Hour)
		b.want(t, "alarm after 2.5s")
	})
}

func TestClockHealsALostKick(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		defer b.run(t)()
		pass(t, time.Second)
		b.alarm(t, time.Second)
		pass(t, schedule.Safety)
		b.want(t, "alarm after "+schedule.Safety.String())
	})
}

func TestClockAfterARestart(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		b.schedule(t, schedule.Entry{Name: "hour", Cron: "0 * * * *"})
		stop := b.run(t)
		pass(t, time.Hour+time.Minute)
		stop()
		b.want(t, "hour after 1h0m0s")
		stop = b.run(t) // before the next time: nothing fires
		pass(t, time.Minute)
		b.schedule(t, schedule.Entry{Name: "hour", Cron: "0 * * * *"}) // the same schedule again
		b.clock.Kick()
		pass(t, time.Minute)
		b.want(t, "hour after 1h0m0s")
		stop()
		pass(t, 3*time.Hour) // misses three firings
		defer b.run(t)()
		b.want(t, "hour after 1h0m0s", "hour after 4h3m0s")
		pass(t, 57*time.Minute)
		b.want(t, "hour after 1h0m0s", "hour after 4h3m0s", "hour after 5h0m0s")
	})
}

func TestClockTriesAgain(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		down := true
		b.wake = func(d schedule.Due) error {
			if down && d.Name == "bad" {
				return errors.New("the bucket is away")
			}
			return nil
		}
		b.schedule(t, schedule.Entry{Name: "bad", Cron: "1 * * * *"}, schedule.Entry{Name: "good", Cron: "1 * * * *"})
		defer b.run(t)()
		pass(t, time.Minute+500*time.Millisecond)
		b.want(t, "good after 1m0s")
		b.mu.Lock()
		down = false
		b.mu.Unlock()
		pass(t, time.Minute)
		b.want(t, "good after 1m0s", "bad after 1m1s")
	})
}

func TestClockDropsAStaleAlarm(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		b.alarm(t, time.Minute)
		defer b.run(t)()
		pass(t, time.Second)
		b.see(t, schedule.Agent{ID: "a", State: api.StateDead, Seq: 2, Changed: time.Now()})
		pass(t, time.Hour)
		b.want(t)
		next, err := b.store.Next(t.Context())
		if err != nil || !next.IsZero() {
			t.Errorf("next: got %s, %v, want none", next, err)
		}
	})
}

// TestClockPostponesAnAlarm tests that an alarm waits until its agent, which another cause
// has woken, sleeps again.
func TestClockPostponesAnAlarm(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		b.alarm(t, time.Minute)
		defer b.run(t)()
		pass(t, 50*time.Second)
		b.see(t, schedule.Agent{ID: "a", State: api.StateWaking, Seq: 2, Changed: time.Now()})
		pass(t, 10*time.Minute)
		b.want(t)
		b.see(t, schedule.Agent{ID: "a", State: api.StateSleeping, Seq: 3, Changed: time.Now()})
		pass(t, schedule.Safety)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.wakes) != 1 {
			t.Errorf("wakes %v, want the alarm once the agent sleeps", b.wakes)
		}
	})
}

func TestClockFiresMoreThanABatch(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		var entries []schedule.Entry
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			b.see(t, schedule.Agent{ID: id, State: api.StateSleeping, Seq: 2})
			entries = nil
			for i := range schedule.MaxEntries {
				entries = append(entries, schedule.Entry{Name: "n" + string(rune('0'+i/10)) + string(rune('0'+i%10)), Cron: "* * * * *"})
			}
			checked, faults := schedule.Check(id, entries, time.Now())
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			if err := b.store.SetSchedule(t.Context(), id, checked); err != nil {
				t.Fatal(err)
			}
		}
		defer b.run(t)()
		pass(t, time.Minute)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if got, want := len(b.wakes), 6*schedule.MaxEntries; got != want {
			t.Errorf("got %d wakes after a minute, want %d", got, want)
		}
	})
}

// TestClockPrunesInParts checks that the clock deletes an old history that is larger than
// one part, and fires what is due meanwhile on time.
func TestClockPrunesInParts(t *testing.T) {
	timed(t, func(t *testing.T, b *bench) {
		_, err := b.db.ExecContext(t.Context(), `insert into ticks (agent, cause, name, due, at)
			with recursive n (i) as (select 1 union all select i + 1 from n where i < 2500) select 'a', 'old-' || i, 'one', 0, i from n`)
		if err != nil {
			t.Fatal(err)
		}
		b.alarm(t, 150*time.Millisecond)
		defer b.run(t)()
		pass(t, time.Second)
		b.want(t, schedule.AlarmName+" after 150ms")
		left, err := sqldb.One[int](t.Context(), b.db, "select count(*) from ticks")
		if err != nil || left != 1 {
			t.Errorf("%d ticks are left, %v, want that of the alarm", left, err)
		}
	})
}
