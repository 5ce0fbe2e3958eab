package sqldb

import (
	"sync"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// The memory of the page caches of all SQLite connections of the process.
const (
	pageSlots = 1024
	pageBytes = 4096            // the size of a page by SQLite's default
	slotBytes = pageBytes + 272 // a page and its header; a larger one is allocated outside the slots
)

// sharePages reserves memory for pageSlots cached pages, 4.5 MB, which the connections of
// all databases share: when it is used up, a cache reuses the page whose last use is the
// longest ago. Without it SQLite allocates each page, and its allocator
// (modernc.org/memory) takes 8 KiB for a page of 4 KiB with its header and keeps freed
// memory, so the memory of a process would grow for hours.
//
// It has no effect if another package has initialized SQLite before.
var sharePages = sync.OnceFunc(func() {
	tls := libc.NewTLS()
	defer tls.Close()
	memory := libc.Xmalloc(tls, pageSlots*slotBytes)
	if memory == 0 {
		return // pages are allocated
	}
	args := libc.NewVaList(memory, int32(slotBytes), int32(pageSlots))
	defer libc.Xfree(tls, args)
	if lib.Xsqlite3_config(tls, lib.SQLITE_CONFIG_PAGECACHE, args) != lib.SQLITE_OK {
		libc.Xfree(tls, memory)
	}
})
