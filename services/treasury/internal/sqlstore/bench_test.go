package sqlstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// stores are the databases of the benchmarks. PostgreSQL syncs its commits, as in
// production.
func stores(b *testing.B) []struct{ name, url string } {
	b.Helper()
	server, err := sqldbtest.StartSynced(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	return []struct{ name, url string }{{"sqlite/sync=normal", "sqlite:%s"}, {"sqlite/sync=full", "sqlite:%s?sync=full"}, {"postgres/fsync=on", server.URL()}}
}

// openStore opens a new database with the ledger of one rich agent.
func openStore(b *testing.B, url string) (*sqldb.DB, *ledger.Ledger) {
	b.Helper()
	if strings.Contains(url, "%s") {
		url = fmt.Sprintf(url, filepath.Join(b.TempDir(), "bench.db"))
	}
	// The benchmark function runs several times, so each has a schema of its own.
	db, err := sqldb.Open(b.Context(), url, sqldb.Options{Schema: fmt.Sprintf("bench%d", schemas.Add(1))})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	if err := sqldb.Migrate(b.Context(), db, sqlstore.Migrations()); err != nil {
		b.Fatal(err)
	}
	ledgers := newLedger(b, sqlstore.New(db, nil))
	if err := ledgers.Open(b.Context(), "lucky"); err != nil {
		b.Fatal(err)
	}
	if _, err := ledgers.Deposit(b.Context(), ledger.DepositRequest{ID: "d", Agent: "lucky", Amount: api.MaxMicros, Source: "faucet"}); err != nil {
		b.Fatal(err)
	}
	return db, ledgers
}

var schemas atomic.Int64

func hotHold(n int64) ledger.HoldRequest {
	return ledger.HoldRequest{ID: fmt.Sprintf("h%d", n), Agent: "lucky", Amount: 100, Category: "inference", Turn: "t1", ExpiresAt: now.Add(time.Hour).UnixMicro()}
}

// BenchmarkHolds measures holds on one account with concurrent callers, without NATS. The
// goals are 2,000 per second embedded and 1,000 on PostgreSQL
// (docs/reference/treasury.md, Limits).
func BenchmarkHolds(b *testing.B) {
	for _, at := range stores(b) {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", at.name, callers), func(b *testing.B) {
				_, ledgers := openStore(b, at.url)
				var next atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				began := time.Now()
				for range callers {
					wg.Go(func() {
						for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
							if _, err := ledgers.Hold(b.Context(), hotHold(n)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "holds/s")
			})
		}
	}
}

// BenchmarkHoldSettle measures a hold and its settlement, one after the other, beside two
// commits of a row in a table without anything else on the same database. The goal is 1 ms
// embedded (docs/reference/treasury.md, Limits).
func BenchmarkHoldSettle(b *testing.B) {
	for _, at := range stores(b) {
		b.Run(at.name, func(b *testing.B) {
			db, ledgers := openStore(b, at.url)
			ctx := b.Context()
			if _, err := db.ExecContext(ctx, "create table bare (n bigint primary key, text text not null)"); err != nil {
				b.Fatal(err)
			}
			var paid, bare []time.Duration
			rows := int64(0)
			commit := func() error {
				rows++
				return sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
					_, err := tx.ExecContext(ctx, "insert into bare (n, text) values ($1, $2)", rows, "as long as a hold: h1 lucky 100 inference t1")
					return err
				})
			}
			for n := int64(1); b.Loop(); n++ {
				began := time.Now()
				if _, err := ledgers.Hold(ctx, hotHold(n)); err != nil {
					b.Fatal(err)
				}
				if _, err := ledgers.Settle(ctx, ledger.SettleRequest{ID: hotHold(n).ID, Amount: 60, Payee: "provider:p"}); err != nil {
					b.Fatal(err)
				}
				paid = append(paid, time.Since(began))
				began = time.Now()
				if err := errors.Join(commit(), commit()); err != nil {
					b.Fatal(err)
				}
				bare = append(bare, time.Since(began))
			}
			slices.Sort(paid)
			slices.Sort(bare)
			mine, plain := paid[len(paid)/2], bare[len(bare)/2]
			b.ReportMetric(float64(mine.Nanoseconds())/1e6, "p50-ms")
			b.ReportMetric(float64(plain.Nanoseconds())/1e6, "p50-ms/two-commits")
			b.ReportMetric(float64(mine)/float64(plain), "x-two-commits")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkVerify measures the verification of a SQLite ledger of 10^6 transactions, and
// the memory in use during it.
func BenchmarkVerify(b *testing.B) {
	const size = 1_000_000
	db, err := sqldb.Open(b.Context(), "sqlite:"+filepath.Join(b.TempDir(), "bench.db"), sqldb.Options{Schema: "treasury"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := sqldb.Migrate(b.Context(), db, sqlstore.Migrations()); err != nil {
		b.Fatal(err)
	}
	store := sqlstore.New(db, nil)
	ledgers := newLedger(b, store)
	if err := ledgers.Open(b.Context(), "lucky"); err != nil {
		b.Fatal(err)
	}
	post(b, store, size)
	runtime.GC()
	var peak uint64
	for b.Loop() {
		r, err := ledgers.Verify(b.Context(), func(done, _ int64) error {
			if done%10_000 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			}
			return nil
		})
		if err != nil || r.Transactions != size || len(r.Faults) != 0 {
			b.Fatalf("verify: got %+v, %v", r, err)
		}
	}
	b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "transactions/s")
	b.ReportMetric(float64(peak)/(1<<20), "MiB-heap")
}
