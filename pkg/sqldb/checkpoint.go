package sqldb

import (
	"context"
	"sync"
	"time"
)

// SQLite appends changed pages to the WAL file. A checkpoint copies them to the database
// file, and syncs both; SQLite makes one in the commit that reaches a number of pages, and
// all other writers wait for the disk. A checkpointer makes them beside the commits; this
// needs SQLite 3.51.3, which corrected the WAL-reset bug (https://sqlite.org/wal.html#walresetbug).
const (
	// checkpointPages is the size of the WAL file, 32 MiB, from which its pages are copied.
	// With SQLite's default of 1,000 pages a page that changes often is copied more often.
	checkpointPages = 8000
	// commitPages is the size at which SQLite makes a checkpoint in a commit, because the
	// checkpointer is slower than the writers. A WAL file that has become larger, in one
	// transaction, is cut to it.
	commitPages = 2 * checkpointPages
	// checkpointCommits is the number of commits after which the size of the WAL file is
	// read.
	checkpointCommits = 32
	// checkpointTimeout is the time limit of each step of a checkpoint.
	checkpointTimeout = 30 * time.Second
)

// checkpointer makes the checkpoints of a SQLite file in its own goroutine. It ignores
// errors: the pages remain in the WAL file, and it tries again after further commits.
type checkpointer struct {
	db    *DB
	pages int           // see checkpointPages
	wake  chan struct{} // has room for one signal
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// newCheckpointer starts a checkpointer for the pools that db will have at its first
// commit. The caller must close it.
func newCheckpointer(db *DB) *checkpointer {
	c := &checkpointer{db: db, pages: checkpointPages, wake: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.done.Go(func() {
		for {
			select {
			case <-c.wake:
				_ = c.checkpoint(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return c
}

// committed must be called after each commit, with the number of commits.
func (c *checkpointer) committed(n int64) {
	if n%checkpointCommits != 0 {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// close interrupts a checkpoint in progress.
func (c *checkpointer) close() {
	c.stop()
	c.done.Wait()
}

// checkpoint copies the pages of a large WAL file beside the writers. It then copies those
// that were written meanwhile, for which the writers wait, because the next commit begins
// the file again only if all its pages are copied.
func (c *checkpointer) checkpoint(ctx context.Context) error {
	pages, err := c.db.read.checkpoint(ctx, "noop")
	if err != nil || pages < c.pages {
		return err
	}
	if _, err := c.db.read.checkpoint(ctx, "passive"); err != nil {
		return err
	}
	_, err = c.db.write.checkpoint(ctx, "passive")
	return err
}

// checkpoint makes a checkpoint on a connection of the pool, and returns the number of
// pages in the WAL file. The mode "passive" waits for no reader and copies only pages that
// none needs; "noop" copies none.
func (p *litePool) checkpoint(ctx context.Context, mode string) (pages int, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
	defer cancel()
	conn, err := p.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer p.release(conn)
	s, err := conn.stmt("pragma wal_checkpoint("+mode+")", true)
	if err != nil {
		return 0, err
	}
	defer conn.done(s, nil)
	if _, err = conn.step(ctx, s); err != nil {
		return 0, err
	}
	return int(s.raw.ColumnInt64(1)), nil
}
