package sqldb

import (
	"context"
	"encoding/json"
)

// Do is [InTx] for a function with a result. It returns the result of the last call of
// fn, also with an error.
func Do[T any](ctx context.Context, db *DB, fn func(tx *Tx) (T, error)) (v T, err error) {
	err = InTx(ctx, db, func(tx *Tx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v, err
}

// One returns the only column of the first row of a query. It returns ErrNotFound if
// there is no row.
func One[T any](ctx context.Context, q Querier, query string, args ...any) (v T, err error) {
	err = q.QueryRowContext(ctx, query, args...).Scan(&v)
	return v, err
}

// Column scans a row with one column, for [All].
func Column[T any](row Scanner) (v T, err error) {
	err = row.Scan(&v)
	return v, err
}

// JSON returns a destination of Scan for a column of JSON, which it decodes into the
// value that v points to. NULL leaves the value unchanged.
func JSON(v any) any { return jsonColumn{v} }

type jsonColumn struct{ into any }

func (j jsonColumn) scan(c columns, i int) error {
	if c.kind(i) == null {
		return nil
	}
	data, err := bytesOf(c, i)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, j.into)
}
