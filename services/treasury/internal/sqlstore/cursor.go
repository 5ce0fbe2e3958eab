package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/failpoint"
)

// Cursor returns the position of the feed: the last published transaction and the stream
// sequence of its message, 0 and 0 before the first.
func (s *Store) Cursor(ctx context.Context) (seq int64, stream uint64, err error) {
	err = s.db.QueryRowContext(ctx, "select seq, stream from cursors where name = 'posted'").Scan(&seq, &stream)
	return seq, stream, err
}

// Advance sets the cursor, unless it is beyond seq.
func (s *Store) Advance(ctx context.Context, seq int64, stream uint64) error {
	return failpoint.Do(ctx, failpoint.TreasuryCursor, func(ctx context.Context) error {
		_, err := s.db.ExecContext(ctx, "update cursors set seq = $1, stream = $2 where name = 'posted' and seq <= $1", seq, int64(stream)) //nolint:gosec // a stream's sequence fits
		return err
	})
}
