package sqlstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// TestRotations checks on each engine that a rotation ends as a whole and once, that it can
// be dropped, and that all wallets of an agent are known by their addresses.
func TestRotations(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s, ctx := sqlstore.New(db, nil), t.Context()
		const (
			one     = "0x00000000000000000000000000000000000000A1"
			two     = "0x00000000000000000000000000000000000000A2"
			three   = "0x00000000000000000000000000000000000000A3"
			dropped = "0x00000000000000000000000000000000000000A4"
		)
		for name, address := range map[string]string{"lucky": one, "treasury:fees": three} {
			if _, err := s.AddWallet(ctx, name, wallet.Wallet{Address: address, Keystore: "k" + address}); err != nil {
				t.Fatal(err)
			}
		}
		is := func(when, address string, rotating bool) {
			t.Helper()
			if got, turning, err := s.Rotating(ctx, "lucky"); got != address || turning != rotating || err != nil {
				t.Errorf("%s: got %s, %t, %v; want %s, %t", when, got, turning, err, address, rotating)
			}
		}
		announced := 0
		end := func(fails error) error {
			return s.EndRotation(ctx, "lucky", one, func(context.Context, *sqldb.Tx, string) error { announced++; return fails })
		}
		is("before", one, false)
		if err := end(nil); api.CodeOf(err) != api.Conflict || announced != 0 {
			t.Errorf("the end of no rotation: got %v and %d events, want Conflict and none", err, announced)
		}
		for _, address := range []string{dropped, two} {
			if _, err := s.AddWallet(ctx, wallet.Next("lucky"), wallet.Wallet{Address: address, Keystore: "k2"}); err != nil {
				t.Fatal(err)
			}
			is("begun", one, true)
			if err := end(errors.New("no event")); err == nil {
				t.Error("a rotation without its event has ended")
			}
			is("not announced", one, true)
			if announced == 1 {
				if err := s.DropRotation(ctx, "lucky", address); err != nil {
					t.Fatal(err)
				}
				is("dropped", one, false)
				if err := end(nil); api.CodeOf(err) != api.Conflict {
					t.Errorf("the end of a dropped rotation: got %v, want Conflict", err)
				}
			}
		}
		if err := s.EndRotation(ctx, "lucky", three, nil); api.CodeOf(err) != api.Conflict {
			t.Errorf("the end of a rotation of another wallet: got %v, want Conflict", err)
		}
		for range 2 { // of two requests one ends it
			if err := end(nil); err != nil || announced != 3 {
				t.Fatalf("end: got %v and %d events, want 3 with those that failed", err, announced)
			}
		}
		is("after", two, false)
		all, err := s.Wallets(ctx)
		want := map[common.Address]wallet.Owner{common.HexToAddress(one): {Agent: "lucky", Retired: true}, common.HexToAddress(two): {Agent: "lucky"}, common.HexToAddress(dropped): {Agent: "lucky", Retired: true}}
		if diff := cmp.Diff(want, all); err != nil || diff != "" {
			t.Errorf("wallets: %v (-want +got):\n%s", err, diff)
		}
		for _, address := range []string{one, strings.ToLower(two)} {
			if agent, err := s.AgentAt(ctx, address); agent != "lucky" || err != nil {
				t.Errorf("agent at %s: got %q, %v", address, agent, err)
			}
		}
		earlier, err := s.Earlier(ctx, "lucky")
		if diff := cmp.Diff([]string{one, dropped}, earlier); err != nil || diff != "" {
			t.Errorf("earlier: %v (-want +got):\n%s", err, diff)
		}
		if names, err := s.RetiredWallets(ctx); len(names) != 2 || err != nil {
			t.Errorf("retired wallets: got %v, %v, want two", names, err)
		}
		if w, err := s.Wallet(ctx, wallet.Retired("lucky", one)); w.Keystore != "k"+one || err != nil {
			t.Errorf("the earlier wallet: got %+v, %v", w, err)
		}
	})
}
