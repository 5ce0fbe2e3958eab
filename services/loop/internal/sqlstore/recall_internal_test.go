package sqlstore

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// TestUnaskedPlan: SQLite reads the episodes of an agent in their order from the index
// alone, which ends after maxOwn, and each row by its key. Otherwise it would read all rows
// of an agent that has only one session.
func TestUnaskedPlan(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, Migrations())
	rows, err := db.QueryContext(t.Context(), "explain query plan "+unasked, "ada", "ada-main", 1)
	if err != nil {
		t.Fatal(err)
	}
	ordered := 0
	for rows.Next() {
		var id, parent, unused int64
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasSuffix(step, "COVERING INDEX episodic_memory_order (agent=?)"):
			ordered++
		case strings.Contains(step, "episodic_memory") && !strings.Contains(step, "EXISTS") && !strings.HasSuffix(step, "(agent=? AND id=?)"):
			t.Errorf("the plan has %q", step)
		}
	}
	if err := rows.Close(); err != nil || ordered != 1 {
		t.Errorf("%d steps read the order alone, want 1 (%v)", ordered, err)
	}
}
