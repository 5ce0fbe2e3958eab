package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// secret is an argument of a statement. No span may contain it.
const secret = "hunter2"

// work runs statements as a store does, with the span in ctx as parent.
func work(ctx context.Context, t *testing.T, db *sqldb.DB) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	_, err := db.ExecContext(ctx, "insert into accounts (id, balance) values ($1, $2)", secret, 9)
	must(err)
	must(sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		var have int64
		if err := tx.QueryRowContext(ctx, "select balance from accounts where id = $1"+tx.ForUpdate(), secret).Scan(&have); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, "update accounts set balance = $1 where id = $2 returning balance", have-1, secret).Scan(&have); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "insert into entries (id, account, amount) values ($1, $2, $3)", "e1", secret, 1)
		return err
	}))
	must(sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, "update accounts set balance = balance + $1 where id = $2", 0, secret)
		row := tx.QueueRow(ctx, "select balance from accounts where id = $1", secret)
		if err := row.Scan(new(int)); err != nil {
			return err
		}
		tx.Queue(ctx, "delete from entries where id = $1", "none")
		return nil
	}))
	must(sqldb.Snapshot(ctx, db, func(tx *sqldb.Tx) error {
		_, err := sqldb.All(ctx, tx, func(s sqldb.Scanner) (id string, err error) { return id, s.Scan(&id) },
			"with big as (select id from accounts where balance > $1) select id from big order by id", 3)
		return err
	}))
	var none string
	if err := db.QueryRowContext(ctx, "select id from entries where id = $1", "nothing").Scan(&none); err == nil {
		t.Error("found a row that is not there")
	}
	fails := func(what, query string, args ...any) {
		t.Helper()
		err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		})
		if err == nil {
			t.Errorf("%s: got no error", what)
		}
	}
	fails("a taken id", "insert into accounts (id, balance) values ($1, $2)", secret, 9)
	if err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, "insert into accounts (id, balance) values ($1, $2)", secret, 9)
		tx.Queue(ctx, "update accounts set balance = $1 where id = $2", 1, secret)
		return nil
	}); err == nil {
		t.Error("a taken id, queued: got no error")
	}
	fails("a deferred constraint", "insert into entries (id, account, amount) values ($1, $2, $3)", "e2", secret+" of nobody", 1)
	fails("no such table", "delete from nowhere where id = $1", secret)
	refused := errors.New("refused by the service")
	if err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, "update accounts set balance = $1 where id = $2", 0, secret)
		return errors.Join(refused, tx.QueueRow(ctx, "select id from accounts where id = $1", "nothing").Scan(&none))
	}); !errors.Is(err, refused) {
		t.Errorf("a refused transaction: got %v, want %v", err, refused)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := db.ExecContext(ended, "update accounts set balance = 0"); err == nil {
		t.Error("ran a statement after the end")
	}
	must(db.Ping(ctx))
}

// wantSpans has a line for each span, by whether statements of transactions have spans:
// name, operation, collection, error.
var wantSpans = map[bool][]string{
	false: {
		"INSERT accounts: INSERT accounts",
		"SELECT accounts: SELECT accounts",
		"UPDATE accounts: UPDATE accounts",
		"WITH accounts: WITH accounts",
		"SELECT entries: SELECT entries",
		"INSERT accounts: INSERT accounts error conflict",
		"INSERT accounts: INSERT accounts error conflict",
		"INSERT entries: INSERT entries error conflict",
		"DELETE nowhere: DELETE nowhere error _OTHER",
		"UPDATE accounts: UPDATE accounts",
		"SELECT: SELECT -",
	},
	true: {
		"INSERT accounts: INSERT accounts",
		"SELECT accounts: SELECT accounts",
		"UPDATE accounts: UPDATE accounts",
		"INSERT entries: INSERT entries",
		"SELECT accounts: SELECT accounts", // the transaction
		"UPDATE accounts: UPDATE accounts",
		"SELECT accounts: SELECT accounts",
		"DELETE entries: DELETE entries",
		"UPDATE accounts: UPDATE accounts", // the transaction
		"WITH accounts: WITH accounts",
		"WITH accounts: WITH accounts", // the transaction
		"SELECT entries: SELECT entries",
		"INSERT accounts: INSERT accounts error conflict",
		"INSERT accounts: INSERT accounts error conflict", // the transaction
		"INSERT accounts: INSERT accounts error conflict",
		"INSERT accounts: INSERT accounts error conflict", // the transaction
		"INSERT entries: INSERT entries",
		"INSERT entries: INSERT entries error conflict", // the transaction
		"DELETE nowhere: DELETE nowhere error _OTHER",
		"DELETE nowhere: DELETE nowhere error _OTHER", // the transaction
		"UPDATE accounts: UPDATE accounts",
		"SELECT accounts: SELECT accounts",
		"UPDATE accounts: UPDATE accounts", // the transaction
		"SELECT: SELECT -",
	},
}

func TestSpansAreTheSameOnBothEngines(t *testing.T) {
	t.Parallel()
	for _, statements := range []bool{false, true} {
		t.Run(fmt.Sprintf("statements %t", statements), func(t *testing.T) {
			t.Parallel()
			sameSpans(t, statements)
		})
	}
}

func sameSpans(t *testing.T, statements bool) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	var mu sync.Mutex
	keys := map[sqldb.Engine][]string{} // attribute keys of each span
	t.Run("each", func(t *testing.T) {
		sqldbtest.EachWith(t, sqldb.Options{TracerProvider: provider, StatementSpans: statements}, accounts, func(t *testing.T, db *sqldb.DB) {
			ctx, root := provider.Tracer("test").Start(t.Context(), "turn")
			work(ctx, t, db)
			root.End()

			var got []string
			for _, s := range recorder.Ended() {
				if s.SpanContext().TraceID() != root.SpanContext().TraceID() || s.Name() == "turn" {
					continue
				}
				attrs := map[string]string{}
				var names []string
				for _, kv := range s.Attributes() {
					attrs[string(kv.Key)] = kv.Value.String()
					names = append(names, string(kv.Key))
				}
				if all := fmt.Sprint(s.Name(), attrs, s.Status(), s.Events()); strings.Contains(all, secret) {
					t.Errorf("a span holds an argument: %s", all)
				}
				if s.Parent().SpanID() != root.SpanContext().SpanID() || s.SpanKind() != trace.SpanKindClient || len(s.Events()) > 0 {
					t.Errorf("%s: parent %s, kind %s, events %v, want the turn, client and none", s.Name(), s.Parent().SpanID(), s.SpanKind(), s.Events())
				}
				if !strings.HasPrefix(attrs["db.namespace"], "test_") || attrs["db.query.summary"] != s.Name() {
					t.Errorf("%s: namespace %q, summary %q", s.Name(), attrs["db.namespace"], attrs["db.query.summary"])
				}
				if want := map[sqldb.Engine]string{sqldb.SQLite: "sqlite", sqldb.Postgres: "postgresql"}[db.Engine]; attrs["db.system.name"] != want {
					t.Errorf("%s: system %q, want %q", s.Name(), attrs["db.system.name"], want)
				}
				line := s.Name() + ": " + attrs["db.operation.name"] + " -"
				if c, ok := attrs["db.collection.name"]; ok {
					line = s.Name() + ": " + attrs["db.operation.name"] + " " + c
				}
				if s.Status().Code == codes.Error {
					line += " error " + attrs["error.type"]
				}
				got = append(got, line)
				mu.Lock()
				keys[db.Engine] = append(keys[db.Engine], strings.Join(sorted(names), " "))
				mu.Unlock()
			}
			if d := cmp.Diff(wantSpans[statements], got); d != "" {
				t.Errorf("spans (-want +got):\n%s", d)
			}
		})
	})
	if len(keys) == 2 {
		if d := cmp.Diff(keys[sqldb.SQLite], keys[sqldb.Postgres]); d != "" {
			t.Errorf("attributes differ (-sqlite +postgres):\n%s", d)
		}
	}
}

// TestNoSpansWithoutARecordedParent checks that statements of background polls do not
// create spans without a parent.
func TestNoSpansWithoutARecordedParent(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	silent := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder), sdk.WithSampler(sdk.NeverSample()))
	sqldbtest.EachWith(t, sqldb.Options{TracerProvider: provider}, accounts, func(t *testing.T, db *sqldb.DB) {
		remote := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
		})
		unsampled, span := silent.Tracer("test").Start(t.Context(), "not sampled")
		defer span.End()
		for name, ctx := range map[string]context.Context{
			"none":        t.Context(),
			"remote":      trace.ContextWithRemoteSpanContext(t.Context(), remote),
			"not sampled": unsampled,
		} {
			err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
				_, err := tx.ExecContext(ctx, "update accounts set balance = balance + $1", 1)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(recorder.Ended()); n != 0 {
				t.Errorf("parent %s: %d spans, want none", name, n)
			}
		}
	})
}

func sorted(s []string) []string { slices.Sort(s); return s }
