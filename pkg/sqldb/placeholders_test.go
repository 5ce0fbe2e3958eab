package sqldb_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/sqldb"
)

func TestPlaceholdersOfRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rows, columns int
		want          string
	}{
		{1, 1, "($1)"},
		{1, 3, "($1, $2, $3)"},
		{2, 1, "($1), ($2)"},
		{2, 2, "($1, $2), ($3, $4)"},
	} {
		if got := sqldb.Placeholders(c.rows, c.columns); got != c.want {
			t.Errorf("%d rows of %d columns: got %s, want %s", c.rows, c.columns, got, c.want)
		}
	}
}
