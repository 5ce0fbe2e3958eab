package sqldb_test

import (
	"path/filepath"
	"strconv"
	"testing"

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
					err := sqldb.InTx(b.Context(), db, func(tx *sqldb.Tx) error {
						var have int64
						err := tx.QueryRowContext(b.Context(), "select balance from accounts where id = $1"+tx.ForUpdate(), "a").Scan(&have)
						if err != nil {
							return err
						}
						if _, err := tx.ExecContext(b.Context(), "update accounts set balance = $1 where id = $2", have-1, "a"); err != nil {
							return err
						}
						_, err = tx.ExecContext(b.Context(), "insert into entries (id, account, amount) values ($1, $2, $3)", strconv.FormatInt(have, 10), "a", 1)
						return err
					})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
