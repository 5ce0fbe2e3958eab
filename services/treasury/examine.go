package treasury

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// Verify checks the whole ledger of a database and reports the faults. It only reads,
// with a bounded part of the ledger in memory, and may run while a treasury writes.
// progress is as in the package ledger. The error is that of the database.
func Verify(ctx context.Context, db *sqldb.DB, progress func(done, all int64) error) (api.LedgerReport, error) {
	r, err := ledger.New(sqlstore.New(db, announce), ledger.Options{Now: time.Now}).Verify(ctx, progress)
	return report(r), err
}

func report(r ledger.Report) api.LedgerReport {
	return api.LedgerReport{
		Transactions: r.Transactions, Accounts: r.Accounts, ActiveHolds: r.ActiveHolds, Head: r.Head.String(),
		OK: len(r.Faults) == 0, Faults: r.Faults,
	}
}
