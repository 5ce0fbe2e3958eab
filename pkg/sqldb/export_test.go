package sqldb

import (
	"context"
	"time"
)

// InTxWithin is InTx for one that waits so long for others to begin, as [DB.ExecSoon] does.
func (db *DB) InTxWithin(ctx context.Context, while time.Duration, fn func(tx *Tx) error) error {
	return db.commits.inTx(ctx, while, fn)
}

// Group says whether somebody leads a group of transactions, and how many wait.
func (db *DB) Group() (led bool, waiting int) {
	db.commits.mu.Lock()
	defer db.commits.mu.Unlock()
	return db.commits.led, len(db.commits.waiting)
}
