package sqldb

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMigrationsAreFrozen checks that the text that each engine executes is that of
// testdata/migrations.txt, because databases hold its checksum. A new migration is added
// to the file, in the order of the lines.
func TestMigrationsAreFrozen(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("../../services/*/internal/sqlstore/migrations")
	if err != nil || len(dirs) < 6 {
		t.Fatalf("%d folders of migrations were found, %v", len(dirs), err)
	}
	var got []string
	for _, dir := range append(dirs, "../outbox/migrations") {
		for _, engine := range []Engine{Postgres, SQLite} {
			all, err := migrations(os.DirFS(dir), engine)
			if err != nil {
				t.Fatalf("%s: %v", dir, err)
			}
			for _, m := range all {
				owner := strings.Split(filepath.ToSlash(dir), "/")
				got = append(got, fmt.Sprintf("%s %s %s %s", owner[max(len(owner)-4, 1)], m.name, engine, m.checksum))
			}
		}
	}
	slices.Sort(got)
	golden, err := os.ReadFile("testdata/migrations.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(golden)), "\n")
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("not in testdata/migrations.txt:\n%s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("only in testdata/migrations.txt, so it was changed or removed:\n%s", line)
		}
	}
}
