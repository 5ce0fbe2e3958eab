package sqldb_test

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/disk/disktest"
	"github.com/anima-run/anima/pkg/sqldb"
)

// TestFullDisk checks that a full disk is reported as Unavailable with its reason, and
// that the same connections can write again when there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 16*disk.MiB, func(t *testing.T, dir string) {
		db, err := sqldb.Open(t.Context(), "sqlite:"+filepath.Join(dir, "x.db"), sqldb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }() // the test has ended
		text := fstest.MapFS{"0001_create_t.sql": {Data: []byte("create table t (id bigint primary key, v text not null)")}}
		if err := sqldb.Migrate(t.Context(), db, text); err != nil {
			t.Fatal(err)
		}
		free := disktest.Fill(t, dir)
		kept := 0
		for range 1000 {
			if _, err = db.ExecContext(t.Context(), "insert into t (id, v) values ($1, $2)", kept, string(make([]byte, 64<<10))); err != nil {
				break
			}
			kept++
		}
		if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonNoSpace || !errors.Is(err, sqldb.ErrUnavailable) {
			t.Errorf("on a full disk: %v, reason %q, want unavailable, %s", err, api.ReasonOf(err), api.ReasonNoSpace)
		}
		free()
		exec(t, db, "insert into t (id, v) values ($1, $2)", kept, "after")
		var n int
		if err := db.QueryRowContext(t.Context(), "select count(*) from t").Scan(&n); err != nil || n != kept+1 {
			t.Errorf("%d rows, %v, want %d", n, err, kept+1)
		}
	})
}
