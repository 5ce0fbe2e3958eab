package sqlstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

// store wraps the store with a SeeAgents that begins its own transaction, and with a
// read of what Ping has stored.
type store struct {
	*sqlstore.Store

	db *sqldb.DB
}

// SeeAgents stores the latest states of agents and ignores older ones. stirred reports
// whether entries that waited for an agent may be due now.
func (s store) SeeAgents(ctx context.Context, all ...schedule.Agent) (stirred bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		stirred, err = s.Store.SeeAgents(ctx, tx, all)
		return err
	})
	return stirred, err
}

// LastPing returns the time of the latest ping, or the zero time if there is none.
func (s store) LastPing(ctx context.Context, agent string) (time.Time, error) {
	var at int64
	err := s.db.QueryRowContext(ctx, "select at from pings where agent = $1", agent).Scan(&at)
	if errors.Is(err, sqldb.ErrNotFound) {
		return time.Time{}, nil
	}
	return time.UnixMicro(at), err
}

// TestViews checks the views of docs/reference/heartbeat.md, Tables.
func TestViews(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		s := store{sqlstore.New(db, func(context.Context, *sqldb.Tx, []schedule.Fired) error { return nil }), db}
		start := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
		entries, faults := schedule.Check("a", []schedule.Entry{{Name: "one", Cron: "* * * * *"}}, start)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if err := s.SetSchedule(ctx, "a", entries); err != nil {
			t.Fatal(err)
		}
		if _, err := s.SeeAgents(ctx, schedule.Agent{ID: "a", State: api.StateSleeping, Seq: 1, Changed: start}); err != nil {
			t.Fatal(err)
		}
		when := start.Add(60*time.Second + 250*time.Millisecond)
		due, err := s.Due(ctx, when, 1)
		if err != nil || len(due) != 1 {
			t.Fatalf("got %+v, %v, want one due", due, err)
		}
		if _, err := s.Fire(ctx, []schedule.Fired{{Due: due[0], When: when, Next: start.Add(2 * time.Minute)}}); err != nil {
			t.Fatal(err)
		}
		var last, next, started string
		err = db.QueryRowContext(ctx, "select last_run_at, next_run_at from heartbeat_schedule where task_name = 'one'").Scan(&last, &next)
		if err != nil || last != "2026-03-02T12:01:00.250Z" || next != "2026-03-02T12:02:00.000Z" {
			t.Errorf("schedule: got %s, %s, %v", last, next, err)
		}
		err = db.QueryRowContext(ctx, "select started_at from heartbeat_history where task_name = 'one'").Scan(&started)
		if err != nil || started != last {
			t.Errorf("history: got %s, %v, want %s", started, err, last)
		}
	})
}
