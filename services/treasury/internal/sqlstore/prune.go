package sqlstore

import (
	"context"
	"fmt"
)

// prunedAtOnce is the number of rows of a table that a transaction of [Store.PrunePayments]
// removes, so that it does not delay holds.
const prunedAtOnce = 200

// ended are the rows of payments of which nothing is left to do, by table. A payment that is
// settled and not final on the chain has a next_at; one that is intended for so long was
// given up before anything was held. A presented payment that is settled and not served
// stays, because its payer has got nothing for it, and so does a sale as long as it may be
// confirmed.
var ended = [...]string{
	"payments where next_at = 0 and busy_until < $1 and state in ('intended', 'settled', 'expired', 'failed', 'free')",
	fmt.Sprintf("uses where state <> 'paid' and (state <> 'done' or until = 0 or updated_at < $1 - %d)", confirmWithin.Microseconds()),
	"settlements where state <> 'pending'",
}

// PrunePayments removes the payments, the presented payments and the settlements that ended
// before a time, and returns their number. It may be repeated, also by several processes at
// once. The time must be so long ago that no authorization of them is valid any more: the
// rows are what prevents that one is accepted twice.
func (s *Store) PrunePayments(ctx context.Context, before int64) (removed int64, err error) {
	for _, rows := range ended {
		rows += " and updated_at < $1"
		for {
			// The conditions are in the statement twice: PostgreSQL checks the outer ones again
			// for a row that a concurrent transaction has claimed meanwhile.
			res, err := s.db.ExecContext(ctx, "delete from "+rows+" and id in (select id from "+rows+" order by updated_at limit $2)", before, int64(prunedAtOnce))
			if err != nil {
				return removed, err
			}
			n, err := res.RowsAffected()
			if removed += n; err != nil || n < prunedAtOnce {
				if err != nil {
					return removed, err
				}
				break
			}
		}
	}
	return removed, nil
}
