package sqlstore_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

func failed(id string, at int64) sqlstore.FailedAttempt {
	c := paid(id, "", "").Call
	c.Model, c.Task, c.LatencyMS, c.At, c.Cost = "n", api.TaskTriage, 7, at, 10_001
	return sqlstore.FailedAttempt{Call: c, Run: "r", Kind: "stalled", Counts: true, Hold: id + "/0"}
}

// record stores two answers and a failed attempt, an hour apart.
func record(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	dear := paid("c2", "c2/0", "dear")
	dear.Call.At, dear.Call.Cost, dear.Call.LatencyMS, dear.Call.Tokens.CachedInput = 3_600_000_000, 20_000, 10, 0
	dear.Call.PriceVersion = 7
	for _, p := range []sqlstore.StoredCall{paid("c1", "c1/0", "cheap"), dear} {
		if _, err := s.Record(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time as after a lost reply
		n, err := s.RecordFailure(t.Context(), failed("c2", 3_600_000_001))
		if want := (sqlstore.FailureCounts{Call: 1, Cost: 10_001, Run: 1}); err != nil || n != want {
			t.Fatalf("failure: got %+v, %v, want %+v", n, err, want)
		}
	}
}

// lines returns the rows of a query, with the columns joined by spaces.
func lines(t *testing.T, db *sqldb.DB, columns int, query string) string {
	t.Helper()
	all, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (string, error) {
		values, targets := make([]string, columns), make([]any, columns)
		for i := range values {
			targets[i] = &values[i]
		}
		err := r.Scan(targets...)
		return strings.Join(values, " "), err
	}, query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return strings.Join(all, "\n")
}

// text returns a list of columns as texts, so that both engines return the same.
func text(columns string) string {
	names := strings.Fields(columns)
	for i, name := range names {
		names[i] = "cast(" + name + " as text)"
	}
	return strings.Join(names, ", ")
}

// TestEveryAttempt checks that the rows of answered and of failed attempts have what the
// attempt used, under the names of seed 003.
func TestEveryAttempt(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		record(t, sqlstore.New(db))
		const columns = "id session_id turn_id model provider input_tokens output_tokens cost_cents latency_ms tier task_type cache_hit " +
			"agent cost_micros cached_tokens cache_write_tokens reasoning_tokens estimated trace outcome price_version"
		got := lines(t, db, 21, "select "+text(columns)+" from inference_attempts order by created_at, id")
		want := `c1 s r.1 m p 10 3 1 5 high agent_turn 1 lucky 42 4 2 1 1 t answered 0
c2 s r.1 m p 10 3 2 10 high agent_turn 0 lucky 20000 0 2 1 1 t answered 7
c2/failed/3600000001 s r.1 n p 10 3 2 7 high heartbeat_triage 1 lucky 10001 4 2 1 1 t stalled 0`
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if got, want := lines(t, db, 1, "select created_at from inference_attempts where id = 'c2'"), "1970-01-01 01:00:00"; got != want {
			t.Errorf("created_at: got %s, want %s", got, want)
		}
	})
}

// TestSeedQueries checks the queries of seed 003, word for word, over the attempts, and
// the views of the same results. Only SQLite has strftime.
func TestSeedQueries(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		record(t, sqlstore.New(db))
		const attempts = "with inference_costs as (select * from inference_attempts) select "
		for _, q := range []struct{ name, columns, seed, view, want string }{
			{"spend by model", "model total_cents", `SELECT model, SUM(cost_cents) AS total_cents
FROM inference_costs
GROUP BY model
ORDER BY total_cents DESC`, "inference_spend_by_model", "m 3\nn 2"},
			{"latency by task", "task_type round(avg_latency_ms,1)", `SELECT task_type, AVG(latency_ms) AS avg_latency_ms
FROM inference_costs
GROUP BY task_type`, "inference_latency_by_task", "agent_turn 7.5\nheartbeat_triage 7.0"},
			{"spend by hour", "hour cents", `SELECT strftime('%Y-%m-%d %H:00', created_at) AS hour, SUM(cost_cents) AS cents
FROM inference_costs
GROUP BY hour
ORDER BY hour DESC`, "inference_spend_by_hour", "1970-01-01 01:00 4\n1970-01-01 00:00 1"},
		} {
			if got := lines(t, db, 2, "select "+text(q.columns)+" from "+q.view+" order by 2 desc"); got != q.want {
				t.Errorf("%s, the view: got\n%s\nwant\n%s", q.name, got, q.want)
			}
			if db.Engine == sqldb.Postgres && strings.Contains(q.seed, "strftime") {
				continue
			}
			if got := lines(t, db, 2, attempts+text(q.columns)+" from ("+q.seed+") answer order by 2 desc"); got != q.want {
				t.Errorf("%s, the seed's query: got\n%s\nwant\n%s", q.name, got, q.want)
			}
		}
		total := lines(t, db, 1, "select cast(sum(total_micros) as text) from inference_spend_by_model")
		if hours := lines(t, db, 1, "select cast(sum(micros) as text) from inference_spend_by_hour"); total != "30043" || hours != total {
			t.Errorf("exact sums: got %s by model, %s by hour, want 30043", total, hours)
		}
	})
}

// before holds the migrations of the release before.
type before struct{ fs.FS }

func (b before) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(b.FS, name)
	if err != nil || name != "." {
		return all, err
	}
	var old []fs.DirEntry
	for _, f := range all {
		if f.Name() < "0003" {
			old = append(old, f)
		}
	}
	return old, nil
}

// TestUpgrade checks that rows of the release before are read after the upgrade, and that
// the statements of that release work on the new tables.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, before{sqlstore.Migrations()}, func(t *testing.T, db *sqldb.DB) {
		old := func(id string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), `insert into inference_costs (id, agent, session_id, turn_id, model, provider, input_tokens, output_tokens,
					cost, hold, latency_ms, tier, task_type, trace, answer, created_at)
				values ($1, 'lucky', 's', 'r.1', 'm', 'p', 10, 3, 42, $2, 5, 'high', 'agent_turn', 't', '{"text":"old"}', 1000000) on conflict (id) do nothing`,
				id, id+"/0"); err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), `insert into failed_calls (call_id, at, hold, run_id, agent, turn_id, model, provider, kind, message, counts,
					input_tokens, output_tokens, cost)
				values ($1, 1000000, 'f', 'r', 'lucky', 'r.1', 'm', 'p', 'stalled', 'no token', 1, 1, 2, 3) on conflict (call_id, at, hold) do nothing`, id); err != nil {
				t.Fatal(err)
			}
		}
		old("o1")
		if err := sqldb.Migrate(t.Context(), db, sqlstore.Migrations()); err != nil {
			t.Fatal(err)
		}
		old("o2")
		s := sqlstore.New(db)
		for _, id := range []string{"o1", "o2"} {
			want := paid(id, id+"/0", "")
			want.Call.Tokens, want.Answer = sqlstore.Tokens{Input: 10, Output: 3}, api.Completion{Text: "old"}
			got, found, n, err := s.Lookup(t.Context(), id)
			if diff := cmp.Diff(want, got); err != nil || !found || diff != "" || n != (sqlstore.FailureCounts{Call: 1, Cost: 3}) {
				t.Errorf("%s: %v, %+v, %v (-want +got):\n%s", id, found, n, err, diff)
			}
		}
		got := lines(t, db, 5, "select "+text("id cache_hit latency_ms input_tokens cost_micros")+" from inference_attempts order by id")
		if want := "o1 0 5 10 42\no1/failed/1000000 0 0 1 3\no2 0 5 10 42\no2/failed/1000000 0 0 1 3"; got != want {
			t.Errorf("attempts: got\n%s\nwant\n%s", got, want)
		}
	})
}
