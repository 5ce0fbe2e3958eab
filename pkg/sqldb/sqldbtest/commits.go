package sqldbtest

import (
	"encoding/binary"
	"os"
	"testing"
)

// Commits returns how many transactions a SQLite database has committed since it was
// opened: a counter in the header of its WAL index file (SQLite's file formats,
// WAL-index).
func Commits(t testing.TB, file string) int64 {
	t.Helper()
	index, err := os.ReadFile(file + "-shm")
	if err != nil {
		t.Fatal(err)
	}
	return int64(binary.NativeEndian.Uint32(index[8:]))
}
