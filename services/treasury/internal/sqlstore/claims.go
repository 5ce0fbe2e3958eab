package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/sqldb"
)

// EndClaims ends the claims of payments, of presented payments and of settlements. It is
// for the only process that uses the database, before it claims anything: a process that
// has claimed something and has not ended the claim has crashed. With several processes
// claims end by their time, up to two minutes later.
func (s *Store) EndClaims(ctx context.Context) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, "update payments set busy_until = 0 where busy_until > 0")
		tx.Queue(ctx, "update uses set until = 0 where until > 0 and state <> 'done'")
		tx.Queue(ctx, "update settlements set until = 0 where until > 0 and state = 'pending'")
		return nil
	})
}
