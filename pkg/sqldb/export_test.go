package sqldb

import (
	"context"
	"time"
)

// InTxWithin is InTx for a deferred write that waits up to while for another transaction,
// as [DB.ExecDeferred] does.
func (db *DB) InTxWithin(ctx context.Context, while time.Duration, fn func(tx *Tx) error) error {
	return db.commits.inTx(ctx, while, fn)
}

// Group reports whether a group of transactions has a leader, and how many members wait.
func (db *DB) Group() (led bool, waiting int) {
	db.commits.mu.Lock()
	defer db.commits.mu.Unlock()
	return db.commits.led, len(db.commits.waiting)
}
