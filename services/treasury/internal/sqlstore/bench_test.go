package sqlstore_test

import (
	"fmt"
	"path/filepath"
	"runtime"
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

// BenchmarkHolds measures holds on one account with concurrent callers, without NATS. The
// goals are 2,000 per second embedded and 1,000 on PostgreSQL
// (docs/reference/treasury.md, Limits).
func BenchmarkHolds(b *testing.B) {
	urls := map[string]func(*testing.B) string{
		"sqlite/sync=normal": func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") },
		"sqlite/sync=full":   func(b *testing.B) string { return "sqlite:" + filepath.Join(b.TempDir(), "bench.db") + "?sync=full" },
		"postgres":           func(b *testing.B) string { return sqldbtest.Postgres(b) },
	}
	for _, name := range []string{"sqlite/sync=normal", "sqlite/sync=full", "postgres"} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				db, err := sqldb.Open(b.Context(), urls[name](b), sqldb.Options{Schema: "treasury"})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = db.Close() }()
				if err := sqldb.Migrate(b.Context(), db, sqlstore.Migrations()); err != nil {
					b.Fatal(err)
				}
				benchmarkHolds(b, db, callers)
			})
		}
	}
}

func benchmarkHolds(b *testing.B, db *sqldb.DB, callers int) {
	ctx := b.Context()
	ledgers := newLedger(b, sqlstore.New(db, nil))
	if err := ledgers.Open(ctx, "lucky"); err != nil {
		b.Fatal(err)
	}
	if _, err := ledgers.Deposit(ctx, ledger.DepositRequest{ID: "d", Agent: "lucky", Amount: api.MaxMicros, Source: "faucet"}); err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	began := time.Now()
	for range callers {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				r := ledger.HoldRequest{ID: fmt.Sprintf("h%d", n), Agent: "lucky", Amount: 100, Category: "inference", Turn: "t1", ExpiresAt: now.Add(time.Hour).UnixMicro()}
				if _, err := ledgers.Hold(ctx, r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "holds/s")
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
