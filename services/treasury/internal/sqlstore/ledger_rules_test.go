package sqlstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// asKept compares transactions by their stored fields.
var asKept = cmpopts.IgnoreFields(ledger.Transaction{}, "Parent")

func sameAgain(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b, other := run(t, open(), ledger.Options{}), run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	funded(t, b, "bob", 0)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

	deposit := ledger.DepositRequest{ID: "d1", Agent: "lucky", Amount: 500, Source: "faucet", Memo: "thanks – ď", Parent: parent}
	transfer := ledger.TransferRequest{ID: "t1", From: "lucky", To: "bob", Amount: 100, Memo: "rent"}
	firstDeposit, err := b.Deposit(ctx, deposit)
	if err != nil {
		t.Fatalf("deposit: %v", err)
	}
	if firstDeposit.Trace != "0af7651916cd43dd8448eb211c80319c" || firstDeposit.Hash != firstDeposit.Sum() {
		t.Errorf("deposit: got %+v, want its trace and hash", firstDeposit)
	}
	firstTransfer, err := b.Transfer(ctx, transfer)
	if err != nil {
		t.Fatalf("transfer: %v", err)
	}
	deposit.Parent = ""
	for _, b := range []*ledger.Ledger{b, other} {
		again, err := b.Deposit(ctx, deposit)
		if diff := cmp.Diff(firstDeposit, again, asKept); err != nil || diff != "" {
			t.Errorf("deposit again: %v, (-first +again):\n%s", err, diff)
		}
		again, err = b.Transfer(ctx, transfer)
		if diff := cmp.Diff(firstTransfer, again, asKept); err != nil || diff != "" {
			t.Errorf("transfer again: %v, (-first +again):\n%s", err, diff)
		}
	}

	for _, b := range []*ledger.Ledger{b, other} {
		if h := hold(t, b, "h1", "lucky", 400); h.Status != api.HoldActive || h.Available != 1000 {
			t.Errorf("hold: got %+v, want active and 1000 available", h)
		}
	}
	for _, b := range []*ledger.Ledger{b, other} {
		if h := settle(t, b, "h1", 50, "provider:openai"); h.Settled != 50 || h.Available != 1350 {
			t.Errorf("settle: got %+v, want 50 settled and 1350 available", h)
		}
	}
	// A repeated hold must show that the hold has ended.
	if h := hold(t, other, "h1", "lucky", 400); h.Status != api.HoldSettled || h.Settled != 50 {
		t.Errorf("hold after settle: got %+v, want settled", h)
	}
	wantBalance(t, b, "lucky", 1350, 0)
	wantBalance(t, b, "bob", 100, 0)
	if r := wantSound(t, b); r.Transactions != 5 {
		t.Errorf("verify: got %d transactions, want 5", r.Transactions)
	}
}

func otherContent(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 10_000)
	funded(t, b, "bob", 10_000)
	for _, id := range []string{"active", "settled", "released"} {
		hold(t, b, id, "lucky", 100)
	}
	settle(t, b, "settled", 40, "provider:openai")
	if _, err := b.Release(ctx, "released", "", ""); err != nil {
		t.Fatalf("release: %v", err)
	}
	if _, err := b.Transfer(ctx, ledger.TransferRequest{ID: "t1", From: "lucky", To: "bob", Amount: 1, Memo: "a"}); err != nil {
		t.Fatalf("transfer: %v", err)
	}
	before := wantSound(t, b)

	holds := func(id, agent string, amount api.Micros, category string) error {
		_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: agent, Amount: amount, Category: category, ExpiresAt: soon})
		return err
	}
	settles := func(id string, amount api.Micros, payee string) error {
		_, err := b.Settle(ctx, ledger.SettleRequest{ID: id, Amount: amount, Payee: payee})
		return err
	}
	releases := func(id string) error {
		_, err := b.Release(ctx, id, "", "")
		return err
	}
	deposits := func(id, agent string, amount api.Micros, source, memo string) error {
		_, err := b.Deposit(ctx, ledger.DepositRequest{ID: id, Agent: agent, Amount: amount, Source: source, Memo: memo})
		return err
	}
	transfers := func(id, from, to string, amount api.Micros, memo string) error {
		_, err := b.Transfer(ctx, ledger.TransferRequest{ID: id, From: from, To: to, Amount: amount, Memo: memo})
		return err
	}
	for what, err := range map[string]error{
		"hold with another amount":       holds("active", "lucky", 101, "inference"),
		"hold with another agent":        holds("active", "bob", 100, "inference"),
		"hold with another category":     holds("active", "lucky", 100, "x402"),
		"hold over a settled one":        holds("settled", "lucky", 99, "inference"),
		"settle with another amount":     settles("settled", 41, "provider:openai"),
		"settle to another payee":        settles("settled", 40, "provider:other"),
		"settle what is released":        settles("released", 40, "provider:openai"),
		"release what is settled":        releases("settled"),
		"deposit with another amount":    deposits("fund-lucky", "lucky", 1, "faucet", ""),
		"deposit to another agent":       deposits("fund-lucky", "bob", 10_000, "faucet", ""),
		"deposit from another source":    deposits("fund-lucky", "lucky", 10_000, "bank", ""),
		"deposit with another memo":      deposits("fund-lucky", "lucky", 10_000, "faucet", "x"),
		"deposit over a transfer":        deposits("t1", "bob", 1, "faucet", "a"),
		"transfer with another amount":   transfers("t1", "lucky", "bob", 2, "a"),
		"transfer the other way":         transfers("t1", "bob", "lucky", 1, "a"),
		"transfer with another memo":     transfers("t1", "lucky", "bob", 1, "b"),
		"transfer over a deposit":        transfers("fund-lucky", "lucky", "bob", 10_000, ""),
		"settle all of what is released": settles("released", 100, "provider:openai"),
	} {
		wantRefused(t, what, err, api.Conflict, "")
	}
	if after := wantSound(t, b); after.Head != before.Head {
		t.Errorf("a refused operation left something behind: head %s became %s", before.Head, after.Head)
	}
}

func refusals(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	funded(t, b, "rich", 0)
	if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d0", Agent: "rich", Amount: api.MaxMicros - 5, Source: "bank"}); err != nil {
		t.Fatalf("deposit: %v", err)
	}
	hold(t, b, "h1", "lucky", 400)
	long := strings.Repeat("x", 2000)

	type row struct {
		what   string
		err    error
		code   api.Code
		reason string
	}
	holds := func(r ledger.HoldRequest) error { _, err := b.Hold(ctx, r); return err }
	settles := func(r ledger.SettleRequest) error { _, err := b.Settle(ctx, r); return err }
	deposits := func(r ledger.DepositRequest) error { _, err := b.Deposit(ctx, r); return err }
	transfers := func(r ledger.TransferRequest) error { _, err := b.Transfer(ctx, r); return err }
	_, unknownRelease := b.Release(ctx, "none", "", "")
	for _, r := range []row{
		{"hold one more than there is", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: 601, ExpiresAt: soon}), api.Denied, api.ReasonInsufficient},
		{"hold for nobody", holds(ledger.HoldRequest{ID: "x", Agent: "nobody", Amount: 1, ExpiresAt: soon}), api.NotFound, ""},
		{"hold nothing", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", ExpiresAt: soon}), api.Invalid, ""},
		{"hold less than nothing", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: -5, ExpiresAt: soon}), api.Invalid, ""},
		{"hold too much to count", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: api.MaxMicros + 1, ExpiresAt: soon}), api.Invalid, ""},
		{"hold that is over already", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: 1, ExpiresAt: start}), api.Invalid, ""},
		{"hold without an expiry", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: 1}), api.Invalid, ""},
		{"hold without an id", holds(ledger.HoldRequest{Agent: "lucky", Amount: 1, ExpiresAt: soon}), api.Invalid, ""},
		{"hold with a long id", holds(ledger.HoldRequest{ID: long, Agent: "lucky", Amount: 1, ExpiresAt: soon}), api.Invalid, ""},
		{"hold with a bad category", holds(ledger.HoldRequest{ID: "x", Agent: "lucky", Amount: 1, Category: "a b", ExpiresAt: soon}), api.Invalid, ""},
		{"settle an unknown hold", settles(ledger.SettleRequest{ID: "none", Amount: 1, Payee: "provider:x"}), api.NotFound, ""},
		{"settle more than is held", settles(ledger.SettleRequest{ID: "h1", Amount: 401, Payee: "provider:x"}), api.Invalid, ""},
		{"settle less than nothing", settles(ledger.SettleRequest{ID: "h1", Amount: -1, Payee: "provider:x"}), api.Invalid, ""},
		{"settle to no one", settles(ledger.SettleRequest{ID: "h1", Amount: 1}), api.Invalid, ""},
		{"settle into a hold", settles(ledger.SettleRequest{ID: "h1", Amount: 1, Payee: "held:lucky"}), api.Invalid, ""},
		{"settle with a zero byte", settles(ledger.SettleRequest{ID: "h1", Amount: 1, Payee: "provider:x", Memo: "a\x00b"}), api.Invalid, ""},
		{"settle with a long memo", settles(ledger.SettleRequest{ID: "h1", Amount: 1, Payee: "provider:x", Memo: long}), api.Invalid, ""},
		{"release an unknown hold", unknownRelease, api.NotFound, ""},
		{"deposit for nobody", deposits(ledger.DepositRequest{ID: "x", Agent: "nobody", Amount: 1, Source: "faucet"}), api.NotFound, ""},
		{"deposit nothing", deposits(ledger.DepositRequest{ID: "x", Agent: "lucky", Source: "faucet"}), api.Invalid, ""},
		{"deposit from an agent", deposits(ledger.DepositRequest{ID: "x", Agent: "lucky", Amount: 1, Source: "agent:rich"}), api.Invalid, ""},
		{"deposit under the id of a hold", deposits(ledger.DepositRequest{ID: "h1/hold", Agent: "lucky", Amount: 1, Source: "faucet"}), api.Invalid, ""},
		{"deposit more than an account takes", deposits(ledger.DepositRequest{ID: "x", Agent: "rich", Amount: 6, Source: "faucet"}), api.Invalid, ""},
		{"deposit more than a source gives", deposits(ledger.DepositRequest{ID: "x", Agent: "lucky", Amount: 6, Source: "bank"}), api.Invalid, ""},
		{"transfer to oneself", transfers(ledger.TransferRequest{ID: "x", From: "lucky", To: "lucky", Amount: 1}), api.Invalid, ""},
		{"transfer to nobody", transfers(ledger.TransferRequest{ID: "x", From: "lucky", To: "nobody", Amount: 1}), api.NotFound, ""},
		{"transfer from nobody", transfers(ledger.TransferRequest{ID: "x", From: "nobody", To: "lucky", Amount: 1}), api.NotFound, ""},
		{"transfer what is held", transfers(ledger.TransferRequest{ID: "x", From: "lucky", To: "rich", Amount: 601}), api.Denied, api.ReasonInsufficient},
	} {
		wantRefused(t, r.what, r.err, r.code, r.reason)
	}
	wantBalance(t, b, "lucky", 600, 400)
	if r := wantSound(t, b); r.Transactions != 3 {
		t.Errorf("verify: got %d transactions, want the 3 that were allowed", r.Transactions)
	}
}

func expiry(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	c := newClock()
	b, other := run(t, open(), ledger.Options{Now: c.now}), run(t, open(), ledger.Options{Now: c.now})
	funded(t, b, "lucky", 10_000)
	for i := range 20 {
		r := ledger.HoldRequest{ID: fmt.Sprintf("h%02d", i), Agent: "lucky", Amount: 100, ExpiresAt: start + int64(i+1)*1_000_000}
		if _, err := b.Hold(ctx, r); err != nil {
			t.Fatalf("hold: %v", err)
		}
	}
	if n, err := b.Expire(ctx, 0); n != 0 || err != nil {
		t.Fatalf("expire at once: got %d, %v, want none", n, err)
	}
	c.advance(10 * time.Second) // the first ten are due, the tenth exactly at this time
	settle(t, b, "h00", 60, "provider:openai")

	results := make(chan int, 2)
	for _, b := range []*ledger.Ledger{b, other} {
		go func() {
			n, err := b.Expire(ctx, 0)
			if err != nil {
				t.Errorf("expire: %v", err)
			}
			results <- n
		}()
	}
	if n := <-results + <-results; n != 9 {
		t.Errorf("expire: got %d holds of both replicas, want 9", n)
	}
	wantBalance(t, b, "lucky", 10_000-60-10*100, 10*100)

	_, err := b.Settle(ctx, ledger.SettleRequest{ID: "h01", Amount: 1, Payee: "provider:openai"})
	wantRefused(t, "settle what is expired", err, api.Conflict, "")
	h, err := b.Release(ctx, "h01", "", "")
	if err != nil || h.Status != api.HoldExpired {
		t.Errorf("release what is expired: got %+v, %v, want it expired", h, err)
	}
	expired, err := b.Holds(ctx, ledger.HoldFilter{Agent: "lucky", Status: api.HoldExpired})
	if err != nil || len(expired) != 9 || expired[0].ID != "h01" {
		t.Errorf("expired holds: got %+v, %v, want nine from h01", expired, err)
	}
	wantSound(t, b)
}

// spent checks that Spent returns the settled amounts and the active holds of a turn,
// without those of other turns, categories and agents.
func spent(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 10_000)
	funded(t, b, "bob", 10_000)
	for id, h := range map[string]struct{ agent, turn, category string }{
		"broken": {"lucky", "t1", "inference"}, "whole": {"lucky", "t1", "inference"}, "active": {"lucky", "t1", "inference"},
		"released": {"lucky", "t1", "inference"}, "later": {"lucky", "t2", "inference"}, "tool": {"lucky", "t1", "x402"}, "bobs": {"bob", "t1", "inference"},
	} {
		if _, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: h.agent, Amount: 100, Category: h.category, Turn: h.turn, ExpiresAt: soon}); err != nil {
			t.Fatalf("hold %s: %v", id, err)
		}
	}
	for id, amount := range map[string]api.Micros{"broken": 3, "whole": 40, "later": 50, "tool": 60, "bobs": 70} {
		settle(t, b, id, amount, "provider:openai")
	}
	if _, err := b.Release(ctx, "released", "", ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		agent, turn string
		paid, held  api.Micros
	}{{"lucky", "t1", 43, 100}, {"lucky", "t2", 50, 0}, {"bob", "t1", 70, 0}, {"lucky", "t3", 0, 0}, {"nobody", "t1", 0, 0}} {
		if paid, held, err := b.Spent(ctx, c.agent, c.turn, "inference"); paid != c.paid || held != c.held || err != nil {
			t.Errorf("%s for %s: got %d paid and %d held, %v, want %d and %d", c.turn, c.agent, paid, held, err, c.paid, c.held)
		}
	}
}

func tiers(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	seen := make(chan ledger.TierChange, 16)
	b := run(t, open(), ledger.Options{Committed: func(_ context.Context, c ledger.Changes, _ int) {
		for _, tc := range c.Tiers {
			seen <- tc
		}
	}})
	wantOf := func(agent string, from, to api.Tier, balance api.Micros) {
		t.Helper()
		select {
		case got := <-seen:
			if got.Agent != agent || got.From != from || got.To != to || got.Balance != balance || got.Seq == 0 {
				t.Errorf("tier change: got %+v, want %s from %s to %s at %d", got, agent, from, to, balance)
			}
		default:
			t.Errorf("tier change of %s from %s to %s: got none", agent, from, to)
		}
	}
	want := func(from, to api.Tier, balance api.Micros) {
		t.Helper()
		wantOf("lucky", from, to, balance)
	}
	spend := func(id string, amount api.Micros) {
		t.Helper()
		hold(t, b, id, "lucky", amount)
		settle(t, b, id, amount, "provider:openai")
	}
	funded(t, b, "lucky", 501*api.Cent)
	want(api.TierCritical, api.TierHigh, 501*api.Cent)
	hold(t, b, "kept", "lucky", 500*api.Cent) // held credits are not spent yet
	if _, err := b.Release(ctx, "kept", "", ""); err != nil {
		t.Fatalf("release: %v", err)
	}
	spend("s1", api.Cent)
	want(api.TierHigh, api.TierNormal, 500*api.Cent)
	spend("s2", 449*api.Cent)
	spend("s3", api.Cent)
	want(api.TierNormal, api.TierLow, 50*api.Cent)
	spend("s4", 40*api.Cent)
	want(api.TierLow, api.TierCritical, 10*api.Cent)
	spend("s5", 10*api.Cent)
	funded(t, b, "bob", 20*api.Cent)
	wantOf("bob", api.TierCritical, api.TierLow, 20*api.Cent)
	if _, err := b.Transfer(ctx, ledger.TransferRequest{ID: "t1", From: "bob", To: "lucky", Amount: 11 * api.Cent}); err != nil {
		t.Fatalf("transfer: %v", err)
	}
	wantOf("bob", api.TierLow, api.TierCritical, 9*api.Cent)
	want(api.TierCritical, api.TierLow, 11*api.Cent)
	if n := len(seen); n != 0 {
		t.Errorf("tier changes: got %d more, want none", n)
	}
}

func lists(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	for _, agent := range []string{"lucky", "bob"} {
		funded(t, b, agent, 1000)
	}
	for i := range 5 {
		hold(t, b, fmt.Sprintf("l%d", i), "lucky", 10)
		hold(t, b, fmt.Sprintf("b%d", i), "bob", 20)
	}
	settle(t, b, "l0", 1, "agent:bob")

	ids := func(ts []ledger.Transaction) string {
		var s []string
		for _, t := range ts {
			s = append(s, t.ID)
		}
		return strings.Join(s, " ")
	}
	page := func(agent string, after int64, limit int) (string, bool) {
		t.Helper()
		ts, more, err := b.Transactions(ctx, agent, after, limit)
		if err != nil {
			t.Fatalf("transactions: %v", err)
		}
		return ids(ts), more
	}
	got, more := page("bob", 2, 3)
	if want := "b0/hold b1/hold b2/hold"; got != want || !more {
		t.Errorf("bob's transactions: got %q, more %t, want %q and more", got, more, want)
	}
	got, more = page("bob", 8, 0)
	if want := "b3/hold b4/hold l0/settle"; got != want || more {
		t.Errorf("bob's last transactions: got %q, more %t, want %q and no more", got, more, want)
	}
	if got, _ := page("", 0, 2); got != "fund-lucky fund-bob" {
		t.Errorf("all transactions: got %q, want both deposits", got)
	}

	hs, err := b.Holds(ctx, ledger.HoldFilter{})
	if err != nil || len(hs) != 9 {
		t.Errorf("active holds: got %d, %v, want 9", len(hs), err)
	}
	hs, err = b.Holds(ctx, ledger.HoldFilter{Agent: "lucky", Limit: 2})
	if err != nil || len(hs) != 2 || hs[0].ID != "l1" || hs[0].Available != 959 || hs[0].Tier != api.TierCritical {
		t.Errorf("lucky's first holds: got %+v, %v, want l1 and l2 with 959 available", hs, err)
	}
	hs, err = b.Holds(ctx, ledger.HoldFilter{Status: api.HoldSettled})
	if err != nil || len(hs) != 1 || hs[0].ID != "l0" || hs[0].Payee != "agent:bob" || hs[0].Settled != 1 {
		t.Errorf("settled holds: got %+v, %v, want l0", hs, err)
	}
	bal, err := b.Balance(ctx, "bob")
	if err != nil || bal.Entries != 7 {
		t.Errorf("bob's entries: got %d, %v, want 7", bal.Entries, err)
	}
}
