package sqlstore_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestClusteredEpisodes checks that the migration that replaces the table of episodes keeps
// its columns and rows, and that episodes are written, found, counted and forgotten as
// before: the statements are those of the previous release, too.
func TestClusteredEpisodes(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqldbtest.Before(t, sqlstore.Migrations(), "0017"), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.Memory{Store: stored(t, db)}
		reach := func(name string) {
			t.Helper()
			must(t, s.AddNote(t.Context(), "ada", memory.Note{ID: name, Session: "ada-two", Kind: "goal", Content: "find " + name, By: self, At: at}))
			must(t, s.ReachGoal(t.Context(), "ada", name, "done", self, at))
		}
		columns := func() []string {
			query := `select column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
				from information_schema.columns where table_name = 'episodic_memory' and table_schema = current_schema() order by ordinal_position`
			if db.Engine == sqldb.SQLite {
				query = `select name || ' ' || type || ' ' || "notnull" || ' ' || coalesce(dflt_value, '') || ' ' || pk from pragma_table_info('episodic_memory') order by cid`
			}
			got, err := sqldb.All(t.Context(), db, sqldb.Column[string], query)
			must(t, err)
			return got
		}
		for i := range 30 { // not in the order of their ids
			reach(fmt.Sprintf("thing%d", i*7%30))
		}
		wantColumns, want := columns(), latest(t, s, memory.Episodic, at)
		if len(wantColumns) != 13 || len(want) != 30 {
			t.Fatalf("%d columns and %d episodes before the migration, want 13 and 30", len(wantColumns), len(want))
		}
		must(t, sqldb.Migrate(t.Context(), db, sqlstore.Migrations()))
		if diff := cmp.Diff(wantColumns, columns()); diff != "" {
			t.Errorf("columns (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(want, latest(t, s, memory.Episodic, at)); diff != "" {
			t.Errorf("episodes (-before +after):\n%s", diff)
		}
		reach("other")
		must(t, s.ReachGoal(t.Context(), "ada", "thing3", "again", self, at+1))
		for _, name := range []string{"thing3", "other"} {
			if got := search(t, s, "ada", memory.Episodic, name); !slices.Equal(got, []string{name}) {
				t.Errorf("search for %s: got %q", name, got)
			}
			there, err := s.Forget(t.Context(), "ada", memory.Episodic, name, self, at)
			if err != nil || !there {
				t.Errorf("forget %s: got %v, %v, want true", name, there, err)
			}
		}
		if got := latest(t, s, memory.Episodic, at); len(got) != 29 {
			t.Errorf("%d episodes after two were forgotten, want 29", len(got))
		}
	})
}
