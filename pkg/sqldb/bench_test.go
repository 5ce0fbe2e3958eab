package sqldb_test

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// BenchmarkHotAccount spends from one account from many goroutines, one
// transaction each: read, update, insert. The Postgres of the tests does not sync
// to the disk.
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

// discard is an exporter that takes everything.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                        { return nil }

// BenchmarkSpans is what spans cost a transaction of three statements: without a
// provider, with one but no recorded parent, with one span for each statement,
// and, for comparison, with one made by hand for the transaction. Sending them is
// not in it.
func BenchmarkSpans(b *testing.B) {
	urls := map[string]func(b *testing.B) string{
		"sqlite":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") },
		"postgres": func(b *testing.B) string { return sqldbtest.Postgres(b) },
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(discard{}, sdk.WithMaxQueueSize(1<<16)))
	b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
	tracer := provider.Tracer("bench")
	for engine, url := range urls {
		for _, mode := range []string{"off", "no parent", "statements", "transaction"} {
			b.Run(engine+"/"+mode, func(b *testing.B) {
				var opts sqldb.Options
				if mode == "no parent" || mode == "statements" {
					opts.TracerProvider = provider
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
					ctx, span := ctx, root
					if mode == "transaction" {
						ctx, span = tracer.Start(ctx, "UPDATE accounts", trace.WithSpanKind(trace.SpanKindClient))
					}
					if err := spend(ctx, db); err != nil {
						b.Fatal(err)
					}
					if mode == "transaction" {
						span.End()
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

// BenchmarkLimit runs a statement whose limit is a parameter, and the same with it in
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
