package sqldb

import (
	"path/filepath"
	"testing"
	"time"
)

// TestIdleConnections checks that the idle connections of a burst are closed at a later
// release, and that the connection used last is kept.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	pool := db.read
	burst := make([]*liteConn, 4)
	for i := range burst {
		if burst[i], err = pool.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range burst {
		pool.release(c)
	}
	if got := len(pool.free); got != len(burst) {
		t.Errorf("%d connections are kept after a burst, want all %d", got, len(burst))
	}
	pool.idle = time.Nanosecond
	for range 2 {
		last := pool.free[len(pool.free)-1]
		var n int
		if err := db.QueryRowContext(t.Context(), "select count(*) from sqlite_master").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if len(pool.free) != 1 || pool.free[0] != last {
			t.Errorf("%d connections are kept, want the one that was used last", len(pool.free))
		}
	}
}
