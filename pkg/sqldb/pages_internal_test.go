package sqldb

import (
	"path/filepath"
	"testing"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// TestPagesAreShared checks that the pages of a connection are in the reserved slots.
func TestPagesAreShared(t *testing.T) { //nolint:paralleltest // other tests use slots, too
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	before := usedSlots(t)
	if _, err := db.ExecContext(t.Context(), "create table x (content blob)"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "insert into x values (randomblob(400000))"); err != nil {
		t.Fatal(err)
	}
	if got := usedSlots(t) - before; got < 90 {
		t.Errorf("a row of 100 pages uses %d slots", got)
	}
}

// slotStatus is the result of sqlite3_status: the present number of used slots, and the
// highest. A global variable has a fixed address.
var slotStatus [2]int32

func usedSlots(t *testing.T) int {
	t.Helper()
	tls := libc.NewTLS()
	defer tls.Close()
	now, most := uintptr(unsafe.Pointer(&slotStatus[0])), uintptr(unsafe.Pointer(&slotStatus[1]))
	if rc := lib.Xsqlite3_status(tls, lib.SQLITE_STATUS_PAGECACHE_USED, now, most, 0); rc != lib.SQLITE_OK {
		t.Fatalf("sqlite3_status: %d", rc)
	}
	return int(slotStatus[0])
}
