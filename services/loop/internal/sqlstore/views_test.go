package sqlstore_test

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestSeedViews checks the views kv and config_snapshots, which have the names and the times
// of the seeds, and that a changed address is announced once and changes neither.
func TestSeedViews(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		ctx := t.Context()
		kv := func() map[string]string {
			t.Helper()
			type row struct{ key, value string }
			rows, err := sqldb.All(ctx, db, func(r sqldb.Scanner) (v row, err error) { return v, r.Scan(&v.key, &v.value) },
				"select key, value from kv where agent = 'ada'")
			must(t, err)
			all := map[string]string{}
			for _, r := range rows {
				all[r.key] = r.value
			}
			return all
		}
		iso := func(at int64) string { return time.UnixMicro(at).UTC().Format("2006-01-02T15:04:05.000Z") }
		before := kv()
		if before["agent_state"] != string(api.StateSleeping) || before["last_run"] != "" {
			t.Errorf("before its first run: got %v", before)
		}
		cmd := enginetest.Command("ada", "r1")
		end := enginetest.End(cmd, 1)
		end.Sleep = end.At + time.Hour.Microseconds()
		must(t, s.Persist(ctx, enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		want := maps.Clone(before)
		maps.Copy(want, map[string]string{"last_run": iso(end.At), "sleep_until": iso(end.Sleep), "sleep_reason": end.Why})
		if diff := cmp.Diff(want, kv()); diff != "" {
			t.Errorf("after a run (-want +got):\n%s", diff)
		}
		var version int64
		var source, at string
		must(t, db.QueryRowContext(ctx, "select version, source, updated_at from config_snapshots where agent = 'ada'").Scan(&version, &source, &at))
		if version != 1 || source == "" {
			t.Errorf("configuration: got version %d of %q", version, source)
		}
		if _, err := time.Parse(time.RFC3339, at); err != nil {
			t.Errorf("configuration: time %q: %v", at, err)
		}

		events := func() int64 {
			t.Helper()
			n, err := sqldb.One[int64](ctx, db, "select count(*) from outbox where id like 'agent_state/ada/%'")
			must(t, err)
			return n
		}
		announced := events()
		for i, want := range []bool{true, false} {
			changed, err := s.SetAddress(ctx, "ada", "0x00000000000000000000000000000000000000A2", end.At+1)
			if changed != want || err != nil {
				t.Errorf("address, time %d: got %t, %v, want %t", i+1, changed, err, want)
			}
		}
		a, err := s.Agent(ctx, "ada")
		if n := events() - announced; err != nil || a.Address != "0x00000000000000000000000000000000000000A2" || n != 1 {
			t.Errorf("address: got %s, %v and %d events, want one", a.Address, err, n)
		}
		_, err = s.SetAddress(ctx, "nobody", "0x1", end.At)
		wantNotFound(t, err)
	})
}
