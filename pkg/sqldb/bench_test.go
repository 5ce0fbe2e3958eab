package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"testing/fstest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// BenchmarkHotAccount spends from one account in many goroutines, one transaction each:
// read, update, insert. The Postgres server of the tests does not sync to the disk.
func BenchmarkHotAccount(b *testing.B) {
	urls := map[string]func(b *testing.B) string{
		"sqlite/sync=normal": func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") },
		"sqlite/sync=full":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") + "?sync=full" },
		"postgres":           func(b *testing.B) string { return sqldbtest.Postgres(b) },
	}
	for name, url := range urls {
		b.Run(name, func(b *testing.B) {
			db, err := sqldb.Open(b.Context(), url(b), sqldb.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if err := sqldb.Migrate(b.Context(), db, accounts); err != nil {
				b.Fatal(err)
			}
			if _, err := db.ExecContext(b.Context(), "update accounts set balance = $1", int64(1)<<60); err != nil {
				b.Fatal(err)
			}
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := spend(b.Context(), db); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// discard is an exporter that discards the spans.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                        { return nil }

// BenchmarkSpans measures the cost of spans for a transaction of three statements:
// without a provider, with one but no recording parent, with one span for the
// transaction, and with one for each statement in addition. It does not include the
// export.
func BenchmarkSpans(b *testing.B) {
	urls := map[string]func(b *testing.B) string{
		"sqlite":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") },
		"postgres": func(b *testing.B) string { return sqldbtest.Postgres(b) },
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(discard{}, sdk.WithMaxQueueSize(1<<16)))
	b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
	tracer := provider.Tracer("bench")
	for engine, url := range urls {
		for _, mode := range []string{"off", "no parent", "transaction", "statements"} {
			b.Run(engine+"/"+mode, func(b *testing.B) {
				var opts sqldb.Options
				if mode != "off" {
					opts = sqldb.Options{TracerProvider: provider, StatementSpans: mode == "statements"}
				}
				db, err := sqldb.Open(b.Context(), url(b), opts)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = db.Close() }()
				if err := sqldb.Migrate(b.Context(), db, accounts); err != nil {
					b.Fatal(err)
				}
				if _, err := db.ExecContext(b.Context(), "update accounts set balance = $1", int64(1)<<60); err != nil {
					b.Fatal(err)
				}
				ctx, root := b.Context(), trace.SpanFromContext(b.Context())
				if mode == "statements" || mode == "transaction" {
					ctx, root = tracer.Start(ctx, "turn")
				}
				defer root.End()
				b.ReportAllocs()
				for b.Loop() {
					if err := spend(ctx, db); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// spend takes 1 from account a, in one transaction: read, update, insert.
func spend(ctx context.Context, db *sqldb.DB) error {
	return sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		var have int64
		err := tx.QueryRowContext(ctx, "select balance from accounts where id = $1"+tx.ForUpdate(), "a").Scan(&have)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "update accounts set balance = $1 where id = $2", have-1, "a"); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "insert into entries (id, account, amount) values ($1, $2, $3)", strconv.FormatInt(have, 10), "a", 1)
		return err
	})
}

// BenchmarkLimit compares a statement with its limit as a parameter and with the limit in
// the text.
func BenchmarkLimit(b *testing.B) {
	db, err := sqldb.Open(b.Context(), "sqlite:"+filepath.Join(b.TempDir(), "bench.db"), sqldb.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := sqldb.Migrate(b.Context(), db, accounts); err != nil {
		b.Fatal(err)
	}
	scan := func(r sqldb.Scanner) (n int64, err error) { return n, r.Scan(&n) }
	for name, query := range map[string]string{
		"parameter": "select balance from accounts where balance >= $1 order by balance limit $2",
		"text":      "select balance from accounts where balance >= $1 and $2 > 0 order by balance limit 10",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sqldb.All(b.Context(), db, scan, query, 0, 10); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// nine creates the tables of BenchmarkNine.
var nine = fstest.MapFS{"0001_create_nine.sql": {Data: []byte(`
	create table accounts (id text not null primary key, available bigint not null, held bigint not null);
	create table journal (seq bigint not null primary key, id text not null unique, account text not null, chain text not null);
	create table postings (journal text not null, account text not null, amount bigint not null, primary key (journal, account));
	create table outbox (id text not null primary key, subject text not null, body text not null);
	create table head (one bigint not null primary key, seq bigint not null, chain text not null);
	insert into accounts values ('a', 4000000000000000000, 0), ('b', 0, 0);
	insert into head values (1, 0, '');
`)}}

// BenchmarkNine runs a transaction of nine statements that moves money: three reads, one
// of which locks a row, and six writes. "serial" waits for each statement, "queued" once
// for the reads and once for the writes with the commit.
func BenchmarkNine(b *testing.B) {
	urls := map[string]func(b *testing.B) string{
		"sqlite":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") },
		"postgres": func(b *testing.B) string { return sqldbtest.Postgres(b) },
	}
	for engine, url := range urls {
		for mode, move := range map[string]func(context.Context, *sqldb.Tx, string) error{"serial": nineSerial, "queued": nineQueued} {
			b.Run(engine+"/"+mode, func(b *testing.B) {
				db, err := sqldb.Open(b.Context(), url(b), sqldb.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = db.Close() }()
				if err := sqldb.Migrate(b.Context(), db, nine); err != nil {
					b.Fatal(err)
				}
				// A context with a deadline, as every request has.
				ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
				defer cancel()
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					id := strconv.Itoa(i)
					err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error { return move(ctx, tx, id) })
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

const (
	readAccount = "select available, held from accounts where id = $1"
	readJournal = "select seq from journal where id = $1"
	readHead    = "select seq, chain from head where one = $1"
	debit       = "update accounts set available = $2 where id = $1"
	credit      = "update accounts set available = available + $2 where id = $1"
	addJournal  = "insert into journal (seq, id, account, chain) values ($1, $2, $3, $4)"
	addPosting  = "insert into postings (journal, account, amount) values ($1, $2, $3), ($1, $4, $5)"
	addOutbox   = "insert into outbox (id, subject, body) values ($1, $2, $3)"
	setHead     = "update head set seq = $2, chain = $3 where one = $1"
	body        = `{"id":"0123456789","account":"0x0123456789abcdef","amount":"1","kind":"hold","at":"2026-11-22T00:00:00Z"}`
)

func nineSerial(ctx context.Context, tx *sqldb.Tx, id string) error {
	var available, held, seq int64
	var chain string
	if err := tx.QueryRowContext(ctx, readAccount+tx.ForUpdate(), "a").Scan(&available, &held); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, readJournal, id).Scan(&seq); !errors.Is(err, sqldb.ErrNotFound) {
		return fmt.Errorf("found %s: %w", id, err)
	}
	if err := tx.QueryRowContext(ctx, readHead, 1).Scan(&seq, &chain); err != nil {
		return err
	}
	for _, write := range nineWrites(id, available, seq) {
		if _, err := tx.ExecContext(ctx, write.query, write.args...); err != nil {
			return err
		}
	}
	return nil
}

func nineQueued(ctx context.Context, tx *sqldb.Tx, id string) error {
	var available, held, seq int64
	var chain string
	account := tx.QueueRow(ctx, readAccount+tx.ForUpdate(), "a")
	journal := tx.QueueRow(ctx, readJournal, id)
	head := tx.QueueRow(ctx, readHead, 1)
	if err := account.Scan(&available, &held); err != nil {
		return err
	}
	if err := journal.Scan(&seq); !errors.Is(err, sqldb.ErrNotFound) {
		return fmt.Errorf("found %s: %w", id, err)
	}
	if err := head.Scan(&seq, &chain); err != nil {
		return err
	}
	for _, write := range nineWrites(id, available, seq) {
		tx.Queue(ctx, write.query, write.args...)
	}
	return nil
}

type write struct {
	query string
	args  []any
}

func nineWrites(id string, available, seq int64) []write {
	return []write{
		{debit, []any{"a", available - 1}},
		{credit, []any{"b", 1}},
		{addJournal, []any{seq + 1, id, "a", id}},
		{addPosting, []any{id, "a", -1, "b", 1}},
		{addOutbox, []any{id, "treasury.evt.posted", body}},
		{setHead, []any{1, seq + 1, id}},
	}
}
