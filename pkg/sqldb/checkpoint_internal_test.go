package sqldb

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// openSmall opens a database whose WAL file is copied when it has 100 pages.
func openSmall(ctx context.Context, path string) (*DB, error) {
	db, err := Open(ctx, "sqlite:"+path, Options{})
	if err == nil {
		db.checkpoints.pages = 100
		_, err = db.ExecContext(ctx, "create table if not exists t (id bigint primary key, v text not null)")
	}
	return db, err
}

// insert adds a row of about ten pages.
func insert(ctx context.Context, db *DB, id int) error {
	_, err := db.ExecContext(ctx, "insert into t (id, v) values ($1, $2)", id, string(make([]byte, 40_000)))
	return err
}

// TestCheckpoints checks that the WAL file begins again while several callers write, much
// below the size at which a commit would make a checkpoint, and that no row is lost.
func TestCheckpoints(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := openSmall(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	const callers, rows = 4, 200
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range rows {
				if err := insert(t.Context(), db, c*rows+i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	const written = callers * rows * 10 // pages, half of commitPages
	for n := callers * rows; ; n++ {
		pages, err := db.read.checkpoint(t.Context(), "noop")
		if err != nil {
			t.Fatal(err)
		}
		if pages < written/2 {
			break
		}
		if pages > written*3/2 {
			t.Fatalf("the WAL file has %d pages and was not begun again", pages)
		}
		if err := insert(t.Context(), db, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got := check(t, path); got < callers*rows {
		t.Errorf("%d rows after it was opened again, want %d", got, callers*rows)
	}
}

// TestSQLiteVersion checks that SQLite has the correction of the WAL-reset bug
// (https://sqlite.org/wal.html#walresetbug): before 3.51.3 a checkpoint on one connection
// beside a commit on another could damage the file.
func TestSQLiteVersion(t *testing.T) {
	t.Parallel()
	db, err := openSmall(t.Context(), filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	var version string
	if err := db.QueryRowContext(t.Context(), "select sqlite_version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil || major*1_000_000+minor*1000+patch < 3_051_003 {
		t.Errorf("SQLite is %q, %v, want 3.51.3 or later", version, err)
	}
}

// check opens a database, fails the test if its file is damaged, and returns the number of
// rows.
func check(t *testing.T, path string) (rows int) {
	t.Helper()
	db, err := openSmall(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	var report string
	if err := db.QueryRowContext(t.Context(), "pragma integrity_check").Scan(&report); err != nil || report != "ok" {
		t.Fatalf("integrity_check = %q, %v, want ok", report, err)
	}
	if err := db.QueryRowContext(t.Context(), "select count(*) from t").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// writerFile is the environment variable that makes TestKilledAtCheckpoint the writer.
const writerFile = "SQLDB_TEST_WRITER"

// TestKilledAtCheckpoint kills a process that writes and makes checkpoints, and checks
// that its file is whole and has each row whose commit it reported.
func TestKilledAtCheckpoint(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(writerFile); path != "" {
		writeForever(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "x.db")
	reported := 0
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledAtCheckpoint$")
		cmd.Env = append(os.Environ(), writerFile+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 150+7*round && lines.Scan(); n++ {
			if reported, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if got := check(t, path); got < reported {
			t.Fatalf("round %d: %d rows, want the %d that were reported", round, got, reported)
		}
	}
}

// writeForever inserts rows and prints the number of rows after each commit.
func writeForever(t *testing.T, path string) {
	rows := check(t, path)
	db, err := openSmall(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for ; ; rows++ {
		if err := insert(t.Context(), db, rows); err != nil {
			t.Fatal(err)
		}
		fmt.Println(rows + 1)
	}
}
