// Package sqlstore stores the ledger and the wallets in SQL, on SQLite and PostgreSQL. It
// must not decide about credits: package ledger computes the changes to write.
package sqlstore

import (
	"context"
	"embed"
	"io/fs"
	"sync"

	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the schema, with those of the outbox.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Announce is called with the changes of a transaction before its commit, to write their
// events in the same transaction. An error aborts the transaction.
type Announce func(context.Context, *sqldb.Tx, ledger.Changes) error

// Store implements [ledger.Store] and wallet.Store.
type Store struct {
	db       *sqldb.DB
	announce Announce
	alone    bool
	writing  sync.Mutex // serializes Update: the database would serialize the writes, too
	memory   memory
}

// New returns a store on a migrated database. announce may be nil.
func New(db *sqldb.DB, announce Announce) *Store {
	return &Store{db: db, announce: announce}
}

// NewAlone returns a store on a database that no other process writes, such as a SQLite
// file. It returns balances from memory if they are cached.
func NewAlone(db *sqldb.DB, announce Announce) *Store {
	return &Store{db: db, announce: announce, alone: true}
}

// Sizes of lists in statements. Statements are cached by their text on both engines, and
// each length of a list would be a separate statement. So lists to read are padded to one
// of readSizes, and rows to write are split into parts of writeSizes.
var (
	readSizes  = []int{2, 8, 32, 128}
	writeSizes = []int{64, 16, 8, 4, 3, 2, 1} // 3: one settlement has three accounts
)

// among calls ask for each part of ids, with a statement for the rows whose key is in
// that part. query ends in a condition without its list: "… where id in".
func among[K any](query string, ids []K, ask func(query string, args []any)) {
	largest := readSizes[len(readSizes)-1]
	for len(ids) > 0 {
		part := ids[:min(len(ids), largest)]
		ids = ids[len(part):]
		size := largest
		for _, s := range readSizes {
			if s >= len(part) {
				size = s
				break
			}
		}
		args := make([]any, size)
		for i := range args {
			args[i] = part[min(i, len(part)-1)]
		}
		ask(query+" "+sqldb.Placeholders(1, size), args)
	}
}

// later queues a read of the rows whose key is among ids; see [among].
func later[T any](ctx context.Context, tx *sqldb.Tx, scan func(sqldb.Scanner) (T, error), query string, ids []string) (parts parts[T]) {
	among(query, ids, func(query string, args []any) {
		parts = append(parts, sqldb.QueueAll(ctx, tx, scan, query, args...))
	})
	return parts
}

// parts are queued reads.
type parts[T any] []*sqldb.Later[T]

func (p parts[T]) all() (all []T, err error) {
	for _, part := range p {
		rows, err := part.All()
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

// insert queues the insertion of rows with the given number of columns. into is the
// statement up to "values", after is the text after the rows.
func insert(ctx context.Context, tx *sqldb.Tx, into, after string, columns int, args []any) {
	for _, size := range writeSizes {
		var text string
		for n := size * columns; len(args) >= n && n > 0; args = args[n:] {
			if text == "" {
				text = into + sqldb.Placeholders(size, columns) + after
			}
			tx.Queue(ctx, text, args[:n]...)
		}
	}
}
