package sqlstore_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	testLedger(t, func(t *testing.T, test func(*testing.T, func() ledger.Store)) {
		sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
			test(t, func() ledger.Store { return sqlstore.New(reopen(t, db), nil) })
		})
	})
}

// TestLedgerAlone checks the ledger on a store that answers balances from memory.
func TestLedgerAlone(t *testing.T) {
	t.Parallel()
	testLedger(t, func(t *testing.T, test func(*testing.T, func() ledger.Store)) {
		sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
			s := sqlstore.NewAlone(db, nil)
			test(t, func() ledger.Store { return s })
		})
	})
}

// TestAssets checks operations in USDC on both kinds of stores.
func TestAssets(t *testing.T) {
	t.Parallel()
	testAssets(t, func(t *testing.T, test func(*testing.T, func() ledger.Store)) {
		sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
			test(t, func() ledger.Store { return sqlstore.New(reopen(t, db), nil) })
		})
	})
}

func TestAssetsAlone(t *testing.T) {
	t.Parallel()
	testAssets(t, func(t *testing.T, test func(*testing.T, func() ledger.Store)) {
		sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
			s := sqlstore.NewAlone(db, nil)
			test(t, func() ledger.Store { return s })
		})
	})
}

// TestLedgerBesideReleaseBefore checks the ledger when each second process is one of the
// previous release, as in a rolling update or after a rollback.
func TestLedgerBesideReleaseBefore(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		t.Run([]string{"older first", "newer first"}[which], func(t *testing.T) {
			t.Parallel()
			testLedger(t, func(t *testing.T, test func(*testing.T, func() ledger.Store)) {
				sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
					n := which
					test(t, func() ledger.Store {
						if n++; n%2 == 1 {
							return &older{reopen(t, db)}
						}
						return sqlstore.New(reopen(t, db), nil)
					})
				})
			})
		})
	}
}

// forms returns the stores that write transactions in the two formats.
func forms(db *sqldb.DB) map[string]ledger.Store {
	return map[string]ledger.Store{"lean rows": sqlstore.New(db, nil), "rows of the release before": &older{db}}
}

// TestUpgrade checks that a ledger of the previous release is read, verified, listed and
// continued.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqldbtest.Before(t, sqlstore.Migrations(), "0005"), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		was := written(t, &older{db})
		want, _, err := was.Transactions(ctx, "", 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		if err := sqldb.Migrate(ctx, db, sqlstore.Migrations()); err != nil {
			t.Fatal(err)
		}
		b := newLedger(t, sqlstore.New(db, nil))
		sound := func(b *ledger.Ledger, n int64) {
			t.Helper()
			if r, err := b.Verify(ctx, nil); err != nil || len(r.Faults) != 0 || r.Transactions != n {
				t.Errorf("verify: got %+v, %v, want %d transactions and no faults", r, err, n)
			}
		}
		sound(b, 8)
		got, _, err := b.Transactions(ctx, "", 0, 100)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("transactions, %v (-before +after):\n%s", err, diff)
		}
		if seq, stream, err := sqlstore.New(db, nil).Cursor(ctx); err != nil || seq != 8 || stream != 0 {
			t.Errorf("cursor: got %d, %d, %v, want 8, as those are announced", seq, stream, err)
		}
		if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d-bob", Agent: "bob", Amount: 10_000, Source: "faucet"}); err != nil {
			t.Errorf("deposit again: %v", err)
		}
		if _, err := b.Settle(ctx, ledger.SettleRequest{ID: "active", Amount: 400, Payee: "agent:bob"}); err != nil {
			t.Errorf("settle: %v", err)
		}
		sound(b, 9)
		sound(was, 9)
		for _, b := range []*ledger.Ledger{b, was} {
			var ids []string
			ts, _, err := b.Transactions(ctx, "bob", 0, 100)
			for _, x := range ts {
				ids = append(ids, x.ID)
			}
			if diff := cmp.Diff([]string{"d-bob", "t1", "active/settle"}, ids); err != nil || diff != "" {
				t.Errorf("bob's transactions, %v (-want +got):\n%s", err, diff)
			}
		}
	})
}

// reopen opens a database as another process would.
func reopen(t *testing.T, db *sqldb.DB) *sqldb.DB {
	t.Helper()
	again, err := db.Reopen(t.Context())
	if err != nil {
		t.Fatalf("reopen: %v", err)
	}
	t.Cleanup(func() {
		if err := again.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return again
}

// now is the time of the tests' clocks.
var now = time.UnixMicro(1_800_000_000_000_000)

func newLedger(t testing.TB, store ledger.Store) *ledger.Ledger {
	t.Helper()
	b := ledger.New(store, ledger.Options{Now: func() time.Time { return now }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

// written returns a ledger with each kind of transaction.
func written(t *testing.T, store ledger.Store) *ledger.Ledger {
	t.Helper()
	ctx := t.Context()
	b := newLedger(t, store)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, agent := range []string{"lucky", "bob"} {
		must(b.Open(ctx, agent))
		_, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d-" + agent, Agent: agent, Amount: 10_000, Source: "faucet"})
		must(err)
	}
	for _, id := range []string{"active", "settled", "released"} {
		_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Amount: 1000, Category: "inference", ExpiresAt: now.Add(time.Hour).UnixMicro()})
		must(err)
	}
	_, err := b.Settle(ctx, ledger.SettleRequest{ID: "settled", Amount: 300, Payee: "provider:openai", Memo: "thought"})
	must(err)
	_, err = b.Release(ctx, "released", "", "")
	must(err)
	_, err = b.Transfer(ctx, ledger.TransferRequest{ID: "t1", From: "lucky", To: "bob", Amount: 77})
	must(err)
	return b
}

func TestVerifyFindsTampering(t *testing.T) {
	t.Parallel()
	both := map[string][]string{
		"a memo":                 {"update journal set memo = 'x' where id = 'settled/settle'"},
		"a time":                 {"update journal set at = at + 1 where seq = 2"},
		"a turn":                 {"update journal set turn = 'r1.1' where seq = 4"},
		"a hash":                 {"update journal set hash = previous where seq = 2"},
		"a hash that is none":    {"update journal set hash = 'nonsense' where seq = 2"},
		"a kind":                 {"update journal set kind = 'deposit' where id = 'active/hold'"},
		"a transaction removed":  {"delete from postings_v1 where seq = 4", "delete from journal where seq = 4"},
		"the last one removed":   {"delete from postings_v1 where seq = 8", "delete from journal where seq = 8"},
		"a line added":           {"insert into postings (seq, line, account, amount, balance) values (4, 9, 'agent:bob', 5, 10005)"},
		"an account":             {"update accounts set balance = balance + 1 where id = 'agent:bob'"},
		"an account's count":     {"update accounts set entries = entries + 1 where id = 'agent:bob'"},
		"an account removed":     {"delete from accounts where id = 'faucet'"},
		"an account made up":     {"insert into accounts (id, balance, entries) values ('agent:eve', 5, 1)"},
		"a hold's amount":        {"update holds set amount = 1001 where id = 'active'"},
		"a hold's owner":         {"update holds set agent = 'bob' where id = 'active'"},
		"a hold revived":         {"update holds set status = 'active', settled = 0 where id = 'settled'"},
		"a hold ended":           {"update holds set status = 'released' where id = 'active'"},
		"a hold made up":         {"insert into holds (id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent) select 'eve', agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent from holds where id = 'active'"},
		"what a hold settled":    {"update holds set settled = 301 where id = 'settled'"},
		"whom a hold paid":       {"update holds set payee = 'provider:mallory' where id = 'settled'"},
		"whose hold it was":      {"update holds set agent = 'bob' where id = 'released'"},
		"the turn of a hold":     {"update holds set turn = 'r1.1' where id = 'settled'"},
		"the end of a hold":      {"update holds set ended_at = ended_at + 1 where id = 'released'"},
		"a hold that is removed": {"delete from holds where id = 'released'"},
	}
	lines := map[string]map[string][]string{
		"lean rows": {
			"an amount":            {`update journal set lines = replace(lines, '"agent:lucky",-1000,', '"agent:lucky",-999,') where seq = 3`},
			"both amounts":         {"update journal set lines = replace(replace(lines, ',-1000,', ',-2000,'), ',1000,', ',2000,') where seq = 3"},
			"a running balance":    {"update journal set lines = replace(lines, ',9000]', ',9001]') where seq = 3"},
			"an account of a line": {"update journal set lines = replace(lines, 'provider:openai', 'provider:mallory') where id = 'settled/settle'"},
			"a line removed":       {`update journal set lines = '[["agent:lucky",-1000,8000]]' where seq = 4`},
			"all lines removed":    {"update journal set lines = '' where seq = 4"},
			"lines that are none":  {"update journal set lines = 'nonsense' where seq = 4"},
		},
		"rows of the release before": {
			"an amount":            {"update postings_v1 set amount = amount + 1 where seq = 3 and line = 0"},
			"both amounts":         {"update postings_v1 set amount = amount * 2 where seq = 3"},
			"a running balance":    {"update postings_v1 set balance = balance + 1 where seq = 3 and line = 0"},
			"an account of a line": {"update postings_v1 set account = 'provider:mallory' where account = 'provider:openai'"},
			"a line removed":       {"delete from postings_v1 where seq = 4 and line = 1"},
		},
	}
	// On SQLite the head of the chain is the last row of the journal.
	heads := map[string][]string{
		"the head":        {"update chain set seq = 7"},
		"the head's hash": {"update chain set hash = 'nonsense'"},
	}
	for form, own := range lines {
		cases := maps.Clone(both)
		maps.Copy(cases, own)
		maps.Copy(cases, heads)
		for what, statements := range cases {
			t.Run(form+"/"+what, func(t *testing.T) {
				t.Parallel()
				sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
					b := written(t, forms(db)[form])
					r, err := b.Verify(t.Context(), nil)
					if err != nil || len(r.Faults) != 0 || r.Transactions != 8 || r.ActiveHolds != 1 {
						t.Fatalf("verify before: got %+v, %v, want 8 transactions, 1 active hold, no faults", r, err)
					}
					withoutTriggers(t, db)
					for _, s := range statements {
						if _, err := db.ExecContext(t.Context(), s); err != nil {
							t.Fatalf("%s: %v", s, err)
						}
					}
					harmless := heads[what] != nil && db.Engine == sqldb.SQLite
					r, err = newLedger(t, sqlstore.New(db, nil)).Verify(t.Context(), nil)
					if err != nil || (len(r.Faults) == 0) != harmless {
						t.Errorf("verify after: got %+v, %v, want faults: %t", r, err, !harmless)
					}
				})
			})
		}
	}
}

// TestVerifyComparesEachHold checks that each field of an ended hold is compared, so that
// what was paid cannot move from one hold to another, and that the ledger's own changes are
// no faults.
func TestVerifyComparesEachHold(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b := written(t, sqlstore.New(db, nil))
		for _, id := range []string{"second", "nothing"} {
			hold(t, b, id, "lucky", 1000)
		}
		settle(t, b, "second", 500, "provider:openai")
		settle(t, b, "nothing", 0, "provider:openai")
		wantSound(t, b)
		for _, s := range []string{
			"update holds set settled = 800 - settled where id in ('settled', 'second')",
			"update holds set payee = 'provider:mallory', category = 'other' where id in ('second', 'nothing')",
		} {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		r, err := b.Verify(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"hold settled: its settled amount should be 300 and is stored as 500",
			"hold second: its settled amount should be 500 and is stored as 300",
			"hold second: its payee should be provider:openai and is stored as provider:mallory",
		}
		if diff := cmp.Diff(want, r.Faults); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
}

// TestVerifyFindsRehashedRow checks that Verify detects a row that was changed together
// with its hash. The row by itself is valid; only the next row, with the previous hash,
// shows the change.
func TestVerifyFindsRehashedRow(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b := written(t, sqlstore.New(db, nil))
		all, err := sqlstore.New(db, nil).Transactions(t.Context(), "", 3, 1)
		if err != nil || len(all) != 1 {
			t.Fatalf("transaction 4: got %+v and error %v", all, err)
		}
		changed := all[0]
		changed.Memo = "tampered"
		changed.Hash = changed.Sum()
		withoutTriggers(t, db)
		if _, err := db.ExecContext(t.Context(), "update journal set memo = $1, hash = $2 where seq = $3", changed.Memo, changed.Hash.String(), changed.Seq); err != nil {
			t.Fatal(err)
		}
		r, err := b.Verify(t.Context(), nil)
		if err != nil || len(r.Faults) != 1 || !strings.Contains(r.Faults[0], "transaction 5 ") || !strings.Contains(r.Faults[0], "is not the hash of the transaction before it") {
			t.Errorf("got %+v and error %v, want one fault: transaction 5 does not follow", r, err)
		}
	})
}

// TestHoldsOfACategory lists the holds of one category: of all agents and of one, the active
// ones and others.
func TestHoldsOfACategory(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b := newLedger(t, sqlstore.New(db, nil))
		for _, agent := range []string{"lucky", "bob"} {
			funded(t, b, agent, 1000)
			for _, category := range []string{api.CategoryX402, api.CategoryInference} {
				for _, n := range []string{"1", "2"} {
					h := ledger.HoldRequest{ID: agent + "/" + category + n, Agent: agent, Amount: 1, Category: category, ExpiresAt: 1 << 60}
					if _, err := b.Hold(t.Context(), h); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := b.Release(t.Context(), agent+"/inference2", "", ""); err != nil {
				t.Fatal(err)
			}
		}
		for want, f := range map[string]ledger.HoldFilter{
			"bob/inference1 lucky/inference1": {Category: api.CategoryInference},
			"lucky/x4021 lucky/x4022":         {Agent: "lucky", Category: api.CategoryX402},
			"bob/inference2":                  {Agent: "bob", Category: api.CategoryInference, Status: api.HoldReleased},
			"":                                {Category: api.CategoryTransfer},
		} {
			hs, err := b.Holds(t.Context(), f)
			var ids []string
			for _, h := range hs {
				ids = append(ids, h.ID)
			}
			slices.Sort(ids)
			if got := strings.Join(ids, " "); err != nil || got != want {
				t.Errorf("%+v: got %q, %v, want %q", f, got, err, want)
			}
		}
	})
}

// TestAnnouncesInTheSameTransaction checks that a transaction whose announcement fails is
// not committed.
func TestAnnouncesInTheSameTransaction(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		var announced []string
		b := newLedger(t, sqlstore.New(db, func(ctx context.Context, tx *sqldb.Tx, c ledger.Changes) error {
			for _, posted := range c.Transactions {
				if posted.ID == "doomed" {
					_, err := tx.ExecContext(ctx, "insert into no_such_table values (1)")
					return err
				}
				announced = append(announced, posted.ID)
			}
			return nil
		}))
		if err := b.Open(t.Context(), "lucky"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Deposit(t.Context(), ledger.DepositRequest{ID: "d1", Agent: "lucky", Amount: 5, Source: "faucet"}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Deposit(t.Context(), ledger.DepositRequest{ID: "doomed", Agent: "lucky", Amount: 5, Source: "faucet"}); err == nil {
			t.Error("deposit that cannot be announced: got no error")
		}
		if got := strings.Join(announced, " "); got != "d1" {
			t.Errorf("announced: got %q, want d1", got)
		}
		if bal, err := b.Balance(t.Context(), "lucky"); err != nil || bal.Available != 5 {
			t.Errorf("balance: got %+v, %v, want 5", bal, err)
		}
	})
}

// TestViews checks that the views of docs/reference/treasury.md, Tables, have the same
// results on both engines.
func TestViews(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"lean rows", "rows of the release before"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				views(t, db, written(t, forms(db)[form]))
			})
		})
	}
}

func views(t *testing.T, db *sqldb.DB, b *ledger.Ledger) {
	t.Helper()
	ctx := t.Context()
	for _, err := range []error{
		func() error {
			_, err := b.Deposit(ctx, ledger.DepositRequest{ID: "more", Agent: "bob", Amount: 3 * api.Dollar, Source: "faucet"})
			return err
		}(),
		func() error {
			_, err := b.Transfer(ctx, ledger.TransferRequest{ID: "gift", From: "bob", To: "lucky", Amount: 150 * api.Cent, Memo: "a gift"})
			return err
		}(),
		func() error {
			_, err := newLedger(t, sqlstore.New(db, nil)).Purchase(ctx, ledger.PurchaseRequest{ID: "bought", Source: "usdc-chain:dev", Agent: "bob", USDC: 5, Credits: 6})
			return err
		}(),
		func() error {
			_, err := newLedger(t, sqlstore.New(db, nil)).Reverse(ctx, ledger.ReverseRequest{ID: "bought"})
			return err
		}(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := func(query string) []string {
		t.Helper()
		got, err := sqldb.All(ctx, db, func(row sqldb.Scanner) (string, error) {
			var text string
			err := row.Scan(&text)
			return text, err
		}, query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return got
	}
	got := rows("select id || ' ' || agent || ' ' || type || ' ' || amount_cents || ' ' || amount_micros || ' ' || created_at from transactions order by created_at, id")
	const at = " 2027-01-15T08:00:00Z"
	want := []string{
		"bought bob credit_purchase 0 6" + at, "bought/reversal bob reversal 0 -6" + at,
		"d-bob bob credit_purchase 1 10000" + at, "d-lucky lucky credit_purchase 1 10000" + at,
		"gift bob transfer_out -150 -1500000" + at, "gift/in lucky transfer_in 150 1500000" + at,
		"more bob credit_purchase 300 3000000" + at, "settled/settle lucky inference 0 -300" + at,
		"t1 lucky transfer_out 0 -77" + at, "t1/in bob transfer_in 0 77" + at,
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("transactions (-want +got):\n%s", diff)
	}
	got = rows("select category || ' ' || recipient || ' ' || amount_micros || ' ' || window_hour || ' ' || window_day from spend_tracking")
	if diff := cmp.Diff([]string{"inference provider:openai 300 2027-01-15T08 2027-01-15"}, got); diff != "" {
		t.Errorf("spend (-want +got):\n%s", diff)
	}
}

func TestWallets(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		s := sqlstore.New(db, nil)
		if _, err := s.Wallet(ctx, "lucky"); api.CodeOf(err) != api.NotFound {
			t.Errorf("wallet before: got %v, want not_found", err)
		}
		first, second := wallet.Wallet{Address: "0xA", Keystore: "{1}"}, wallet.Wallet{Address: "0xB", Keystore: "{2}"}
		for _, w := range []wallet.Wallet{first, second} {
			if got, err := s.AddWallet(ctx, "lucky", w); err != nil || got != first {
				t.Errorf("add %v: got %v, %v, want the first to stand", w, got, err)
			}
		}
		if got, err := sqlstore.New(reopen(t, db), nil).Wallet(ctx, "lucky"); err != nil || got != first {
			t.Errorf("wallet: got %v, %v, want %v", got, err, first)
		}
		if _, err := s.AddWallet(ctx, "bob", first); err == nil {
			t.Error("one address for two agents: got no error")
		}
	})
}
