package outbox

import (
	"log/slog"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// TestPublishedRowsAreBounded checks that a relay publishes a bounded number of rows while
// it cannot delete them, and the others afterwards.
func TestPublishedRowsAreBounded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := embednats.Start(ctx, embednats.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	nc, err := bus.Dial(bus.DialOptions{InProcess: server.InProcess(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := bus.New(nc, bus.Options{Service: "loop"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	db := sqldbtest.SQLite(t, WithMigrations(fstest.MapFS{"migrations/0001_create_x.sql": {Data: []byte("create table x (id text not null primary key)")}}))
	err = sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		for i := range maxPublished + batchRows {
			if err := Add(ctx, tx, strconv.Itoa(i), api.AgentChanged{Agent: "lucky", Seq: int64(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `create trigger full before delete on outbox begin select raise(abort, 'no space left'); end`); err != nil {
		t.Fatal(err)
	}
	r := NewRelay(db, b, slog.New(slog.DiscardHandler))
	for before := -1; len(r.published) > before; {
		before = len(r.published)
		if err := r.relay(ctx); err == nil {
			t.Fatalf("no error with %d rows that cannot be deleted", len(r.published))
		}
	}
	if n := len(r.published); n == 0 || n > maxPublished {
		t.Errorf("%d rows are published and not deleted, want at most %d", n, maxPublished)
	}
	if _, err := db.ExecContext(ctx, "drop trigger full"); err != nil {
		t.Fatal(err)
	}
	if err := r.relay(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(ctx); err != nil {
		t.Fatal(err)
	}
	if n, err := sqldb.One[int](ctx, db, "select count(*) from outbox"); err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}
