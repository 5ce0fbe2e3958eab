package sqlstore

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// TestUnaskedPlan checks that SQLite reads at most maxOwn of an agent's latest episodes
// from a covering index, in its order, and then each row by its key. With another plan it
// would read all rows of an agent that has only one session.
func TestUnaskedPlan(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, Migrations())
	steps, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (step string, err error) {
		var id, parent, unused int64
		err = r.Scan(&id, &parent, &unused, &step)
		return step, err
	}, "explain query plan "+unasked, "ada", "ada-main", 1)
	if err != nil {
		t.Fatal(err)
	}
	ordered := 0
	for _, step := range steps {
		switch {
		case step == "SEARCH t USING COVERING INDEX episodic_memory_order (agent=?)":
			ordered++
		case strings.Contains(step, "episodic_memory") && !strings.Contains(step, "EXISTS") && !strings.HasSuffix(step, "(agent=? AND id=?)"):
			t.Errorf("the plan has %q", step)
		}
	}
	if ordered != 1 {
		t.Errorf("%d steps read the order alone, want 1", ordered)
	}
}
