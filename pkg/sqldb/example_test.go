package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing/fstest"

	"github.com/anima-run/anima/pkg/sqldb"
)

// ExampleInTx moves money in a store: it locks the row, checks the balance, writes. The
// same text runs on both engines.
func ExampleInTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqldb.Open(ctx, "sqlite:"+filepath.Join(dir, "ledger.db"), sqldb.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	err = sqldb.Migrate(ctx, db, fstest.MapFS{"0001_create_accounts.sql": {Data: []byte(`
		create table accounts (id text primary key, balance bigint not null);
		insert into accounts values ('alice', 5);
	`)}})
	if err != nil {
		panic(err)
	}

	errInsufficient := errors.New("insufficient")
	spend := func(amount int64) error {
		return sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			var have int64
			err := tx.QueryRowContext(ctx, "select balance from accounts where id = $1"+tx.ForUpdate(), "alice").Scan(&have)
			if err != nil {
				return err
			}
			if have < amount {
				return errInsufficient
			}
			_, err = tx.ExecContext(ctx, "update accounts set balance = balance - $1 where id = $2", amount, "alice")
			return err
		})
	}
	fmt.Println(spend(3))
	fmt.Println(spend(3))
	// Output:
	// <nil>
	// insufficient
}
