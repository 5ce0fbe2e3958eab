package sqlstore_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// testAssets runs the tests of operations in USDC. The previous release has none.
func testAssets(t *testing.T, each eachEngine) {
	for name, test := range map[string]func(*testing.T, func() ledger.Store){
		"payments":               usdcPayments,
		"tiers":                  usdcTiers,
		"refusals":               usdcRefusals,
		"purchases":              purchases,
		"purchase from outside":  purchaseFromOutside,
		"the same id":            assetIDs,
		"reversals":              reversals,
		"reversal of a purchase": reversedPurchase,
		"debts":                  debts,
		"undone settlements":     undone,
		"undone is one payment":  undoneIsOne,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, test)
		})
	}
}

const dev = "usdc-chain:dev"

// arrived posts a deposit of USDC from the chain.
func arrived(t *testing.T, b *ledger.Ledger, id, agent string, amount api.Micros) ledger.Transaction {
	t.Helper()
	x, err := b.Deposit(t.Context(), ledger.DepositRequest{ID: id, Agent: agent, Amount: amount, Source: ledger.ChainUSDC("dev")})
	if err != nil {
		t.Fatalf("deposit %s: %v", id, err)
	}
	return x
}

func holdUSDC(ctx context.Context, b *ledger.Ledger, id string, amount api.Micros) (ledger.HoldState, error) {
	return b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Asset: api.USDC, Amount: amount, Category: "x402", ExpiresAt: soon})
}

// wantAll compares the amounts of an agent; Entries and the name are not compared.
func wantAll(t *testing.T, b *ledger.Ledger, agent string, want ledger.Balance) {
	t.Helper()
	got, err := b.Balance(t.Context(), agent)
	if err != nil {
		t.Fatalf("balance of %s: %v", agent, err)
	}
	got.Agent, got.Entries = "", 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("balance of %s (-want +got):\n%s", agent, diff)
	}
}

// lines returns the amounts of a transaction by account.
func lines(x ledger.Transaction) map[string]api.Micros {
	all := map[string]api.Micros{}
	for _, l := range x.Lines {
		all[l.Account] = l.Amount
	}
	return all
}

func wantLines(t *testing.T, what string, x ledger.Transaction, want map[string]api.Micros) {
	t.Helper()
	if got := lines(x); !maps.Equal(got, want) {
		t.Errorf("lines of %s: got %v, want %v", what, got, want)
	}
}

func usdcPayments(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	c := newClock()
	b := run(t, open(), ledger.Options{Now: c.now})
	other := run(t, open(), ledger.Options{Now: c.now})
	funded(t, b, "lucky", 700)
	funded(t, b, "bob", 0)
	wantAll(t, b, "lucky", ledger.Balance{Available: 700})
	wantLines(t, "the deposit", arrived(t, b, "tx1/0", "lucky", 1000), map[string]api.Micros{dev: -1000, "usdc:lucky": 1000})
	wantAll(t, b, "lucky", ledger.Balance{Available: 700, USDC: 1000})

	h, err := holdUSDC(ctx, other, "pay", 400)
	if err != nil || h.Asset != api.USDC || h.Available != 600 || h.Tier != api.TierOf(700) {
		t.Errorf("hold: got %+v, %v, want 600 of USDC available and the tier of the credits", h, err)
	}
	wantAll(t, b, "lucky", ledger.Balance{Available: 700, USDC: 600, USDCHeld: 400})
	if h := settle(t, b, "pay", 150, ledger.PayeeUSDC("0xAB")); h.Settled != 150 || h.Available != 850 || h.Asset != api.USDC {
		t.Errorf("settle: got %+v, want 150 of USDC settled and 850 available", h)
	}
	wantAll(t, other, "lucky", ledger.Balance{Available: 700, USDC: 850})

	// A credit hold of the same agent, one to another agent, one that is released and one
	// that expires.
	hold(t, b, "think", "lucky", 100)
	for _, id := range []string{"gift", "back", "late"} {
		if _, err := holdUSDC(ctx, b, id, 50); err != nil {
			t.Fatalf("hold %s: %v", id, err)
		}
	}
	settle(t, other, "gift", 50, "usdc:bob")
	if _, err := b.Release(ctx, "back", "", ""); err != nil {
		t.Fatalf("release: %v", err)
	}
	active, err := b.Holds(ctx, ledger.HoldFilter{Agent: "lucky"})
	if err != nil || len(active) != 2 || active[0].ID != "late" || active[0].Available != 750 || active[1].Available != 600 {
		t.Errorf("active holds: got %+v, %v, want late with 750 of USDC and think with 600 credits available", active, err)
	}
	c.advance(2 * time.Minute)
	if n, err := b.Expire(ctx, 0); err != nil || n != 2 {
		t.Errorf("expire: got %d, %v, want 2", n, err)
	}
	wantAll(t, b, "lucky", ledger.Balance{Available: 700, USDC: 800})
	wantAll(t, b, "bob", ledger.Balance{USDC: 50})
	ts, _, err := b.Transactions(ctx, "bob", 0, 0)
	if err != nil || len(ts) != 1 || ts[0].ID != "gift/settle" {
		t.Errorf("transactions of bob: got %v, %v, want the gift", ts, err)
	}
	wantSound(t, b)
}

// usdcTiers checks that USDC changes no tier.
func usdcTiers(t *testing.T, open func() ledger.Store) {
	changes := 0
	b := run(t, open(), ledger.Options{Committed: func(_ context.Context, c ledger.Changes, _ int) { changes += len(c.Tiers) }})
	funded(t, b, "lucky", 0)
	arrived(t, b, "tx1/0", "lucky", 1000*api.Dollar)
	got, err := b.Balance(t.Context(), "lucky")
	if err != nil || got.Tier() != api.TierCritical || changes != 0 {
		t.Errorf("with USDC only: got tier %q, %d changes, %v, want critical and none", got.Tier(), changes, err)
	}
	if _, err := holdUSDC(t.Context(), b, "pay", 5*api.Dollar); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Purchase(t.Context(), ledger.PurchaseRequest{Hold: "pay", Agent: "lucky", USDC: 5 * api.Dollar, Credits: 5 * api.Dollar}); err != nil {
		t.Fatal(err)
	}
	if changes != 1 {
		t.Errorf("after the purchase: got %d changes of the tier, want 1", changes)
	}
}

func usdcRefusals(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	arrived(t, b, "tx1/0", "lucky", 100)
	hold(t, b, "credits", "lucky", 10)
	if _, err := holdUSDC(ctx, b, "usdc", 10); err != nil {
		t.Fatal(err)
	}
	_, err := holdUSDC(ctx, b, "more", 91)
	wantRefused(t, "more than there is", err, api.Denied, api.ReasonInsufficient)
	_, err = b.Hold(ctx, ledger.HoldRequest{ID: "x", Agent: "lucky", Asset: "eth", Amount: 1, ExpiresAt: soon})
	wantRefused(t, "another asset", err, api.Invalid, "")
	_, err = b.Hold(ctx, ledger.HoldRequest{ID: "x", Agent: "nobody", Asset: api.USDC, Amount: 1, ExpiresAt: soon})
	wantRefused(t, "an agent without an account", err, api.NotFound, "")
	_, err = b.Deposit(ctx, ledger.DepositRequest{ID: "x", Agent: "nobody", Amount: 1, Source: dev})
	wantRefused(t, "a deposit without an account", err, api.NotFound, "")
	_, err = b.Deposit(ctx, ledger.DepositRequest{ID: "x", Agent: "lucky", Amount: 1, Source: "usdc-debt:bob"})
	wantRefused(t, "a deposit from a debt", err, api.Invalid, "")
	for what, r := range map[string]ledger.SettleRequest{
		"USDC to an account of credits": {ID: "usdc", Amount: 1, Payee: "provider:openai"},
		"USDC to a debt":                {ID: "usdc", Amount: 1, Payee: "usdc-debt:bob"},
		"USDC to a hold":                {ID: "usdc", Amount: 1, Payee: "usdc-held:bob"},
		"USDC to its agent":             {ID: "usdc", Amount: 1, Payee: "usdc:lucky"},
		"USDC to a name":                {ID: "usdc", Amount: 1, Payee: "usdc:not a name"},
		"credits to an address":         {ID: "credits", Amount: 1, Payee: "usdc-payee:0xab"},
		"credits to a debt":             {ID: "credits", Amount: 1, Payee: "debt:bob"},
	} {
		_, err := b.Settle(ctx, r)
		wantRefused(t, what, err, api.Invalid, "")
	}
	_, err = b.Settle(ctx, ledger.SettleRequest{ID: "usdc", Amount: 1, Payee: "usdc:nobody"})
	wantRefused(t, "USDC to an agent without an account", err, api.NotFound, "")
	wantAll(t, b, "lucky", ledger.Balance{Available: 990, Held: 10, USDC: 90, USDCHeld: 10})
	wantSound(t, b)
}

func purchases(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	other := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 0)
	funded(t, b, "child", 0)
	arrived(t, b, "tx1/0", "lucky", 10*api.Dollar)
	for _, id := range []string{"p1", "p2", "gone"} {
		if _, err := holdUSDC(ctx, b, id, 3*api.Dollar); err != nil {
			t.Fatal(err)
		}
	}
	r := ledger.PurchaseRequest{Hold: "p1", Agent: "lucky", USDC: 2 * api.Dollar, Credits: 1_900_000, Memo: "5 dollars"}
	first, err := b.Purchase(ctx, r)
	if err != nil || first.Kind != ledger.KindPurchase || first.ID != "p1/settle" {
		t.Fatalf("purchase: got %+v, %v", first, err)
	}
	wantLines(t, "the purchase", first, map[string]api.Micros{
		"usdc-held:lucky": -3 * api.Dollar, "usdc:lucky": api.Dollar, "usdc-operator": 2 * api.Dollar, "operator": -1_900_000, "agent:lucky": 1_900_000,
	})
	again, err := other.Purchase(ctx, r)
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Errorf("again: %v (-first +again):\n%s", err, diff)
	}
	if _, err := b.Purchase(ctx, ledger.PurchaseRequest{Hold: "p2", Agent: "child", USDC: 3 * api.Dollar, Credits: 3 * api.Dollar, Payee: ledger.PayeeUSDC("0xCD")}); err != nil {
		t.Errorf("purchase for another: %v", err)
	}
	wantAll(t, other, "lucky", ledger.Balance{Available: 1_900_000, USDC: 2 * api.Dollar, USDCHeld: 3 * api.Dollar})
	wantAll(t, other, "child", ledger.Balance{Available: 3 * api.Dollar})
	if h, err := holdUSDC(ctx, b, "p1", 3*api.Dollar); err != nil || h.Status != api.HoldSettled || h.Settled != 2*api.Dollar {
		t.Errorf("the hold after the purchase: got %+v, %v, want it settled with $2", h, err)
	}

	if _, err := b.Release(ctx, "gone", "", ""); err != nil {
		t.Fatal(err)
	}
	hold(t, b, "credits", "lucky", 10)
	for what, refused := range map[string]struct {
		r    ledger.PurchaseRequest
		code api.Code
	}{
		"a released hold":        {ledger.PurchaseRequest{Hold: "gone", Agent: "lucky", USDC: 1, Credits: 1}, api.Conflict},
		"no hold":                {ledger.PurchaseRequest{Hold: "none", Agent: "lucky", USDC: 1, Credits: 1}, api.NotFound},
		"a hold of credits":      {ledger.PurchaseRequest{Hold: "credits", Agent: "lucky", USDC: 1, Credits: 1}, api.Invalid},
		"no money":               {ledger.PurchaseRequest{Hold: "credits", Agent: "lucky", USDC: 0, Credits: 1}, api.Invalid},
		"no credits":             {ledger.PurchaseRequest{Hold: "credits", Agent: "lucky", USDC: 1}, api.Invalid},
		"an id beside a hold":    {ledger.PurchaseRequest{ID: "x", Hold: "p2", Agent: "lucky", USDC: 1, Credits: 1}, api.Invalid},
		"a payee of credits":     {ledger.PurchaseRequest{Hold: "p2", Agent: "lucky", USDC: 1, Credits: 1, Payee: "provider:x"}, api.Invalid},
		"an agent that sells":    {ledger.PurchaseRequest{Hold: "p2", Agent: "lucky", USDC: 1, Credits: 1, Payee: "usdc:child"}, api.Invalid},
		"an agent as the source": {ledger.PurchaseRequest{ID: "x", Source: "usdc:lucky", Agent: "lucky", USDC: 1, Credits: 1}, api.Invalid},
		"no agent":               {ledger.PurchaseRequest{ID: "x", Source: dev, Agent: "nobody", USDC: 1, Credits: 1}, api.NotFound},
	} {
		_, err := b.Purchase(ctx, refused.r)
		wantRefused(t, what, err, refused.code, "")
	}
	wantSound(t, b)
}

func purchaseFromOutside(t *testing.T, open func() ledger.Store) {
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 0)
	x, err := b.Purchase(t.Context(), ledger.PurchaseRequest{ID: "pay-1", Source: dev, Agent: "lucky", USDC: 5 * api.Dollar, Credits: 5 * api.Dollar})
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, "the purchase", x, map[string]api.Micros{dev: -5 * api.Dollar, "usdc-operator": 5 * api.Dollar, "operator": -5 * api.Dollar, "agent:lucky": 5 * api.Dollar})
	wantAll(t, b, "lucky", ledger.Balance{Available: 5 * api.Dollar})
	wantSound(t, b)
}

// reversals checks that a reversal restores the amounts, once, and only of what the chain
// can undo.
func reversals(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	other := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 500)
	funded(t, b, "bob", 0)
	arrived(t, b, "tx1/0", "lucky", 1000)
	arrived(t, b, "tx2/0", "lucky", 10)
	for _, id := range []string{"pay", "nothing"} {
		if _, err := holdUSDC(ctx, b, id, 400); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, b, "pay", 150, "usdc-payee:0xab")
	settle(t, b, "nothing", 0, "usdc-payee:0xab")
	if _, err := b.Transfer(ctx, ledger.TransferRequest{ID: "t", From: "lucky", To: "bob", Amount: 1}); err != nil {
		t.Fatal(err)
	}
	first, err := b.Reverse(ctx, ledger.ReverseRequest{ID: "pay/settle", Reason: "block 7 was replaced"})
	if err != nil || first.ID != "pay/settle/reversal" || first.Kind != ledger.KindReversal || first.Agent != "lucky" {
		t.Fatalf("reversal: got %+v, %v", first, err)
	}
	wantLines(t, "the reversal", first, map[string]api.Micros{"usdc-payee:0xab": -150, "usdc:lucky": 150})
	again, err := other.Reverse(ctx, ledger.ReverseRequest{ID: "pay/settle", Reason: "block 7 was replaced"})
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Errorf("again: %v (-first +again):\n%s", err, diff)
	}
	if _, err := other.Reverse(ctx, ledger.ReverseRequest{ID: "tx2/0"}); err != nil {
		t.Errorf("reversal of a deposit: %v", err)
	}
	wantAll(t, b, "lucky", ledger.Balance{Available: 499, USDC: 1000})
	for what, refused := range map[string]struct {
		id, reason string
		code       api.Code
	}{
		"another reason": {"pay/settle", "I want it back", api.Conflict},
		"a hold":         {"pay/hold", "", api.Invalid},
		"a transfer":     {"t", "", api.Invalid},
		"a reversal":     {"tx2/0/reversal", "", api.Invalid},
		"no payment":     {"nothing/settle", "", api.Invalid},
		"no transaction": {"none", "", api.NotFound},
	} {
		_, err := b.Reverse(ctx, ledger.ReverseRequest{ID: refused.id, Reason: refused.reason})
		wantRefused(t, what, err, refused.code, "")
	}
	wantSound(t, b)
}

// reversedPurchase checks that what the agent has spent of reversed credits is its debt,
// and that the next deposit repays it.
func reversedPurchase(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 0)
	arrived(t, b, "tx1/0", "lucky", 10)
	if _, err := holdUSDC(ctx, b, "buy", 10); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Purchase(ctx, ledger.PurchaseRequest{Hold: "buy", Agent: "lucky", USDC: 8, Credits: 800}); err != nil {
		t.Fatal(err)
	}
	hold(t, b, "think", "lucky", 500)
	settle(t, b, "think", 500, "provider:openai")
	x, err := b.Reverse(ctx, ledger.ReverseRequest{ID: "buy/settle"})
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, "the reversal", x, map[string]api.Micros{
		"usdc-operator": -8, "usdc:lucky": 8, "operator": 800, "agent:lucky": -300, "debt:lucky": -500,
	})
	wantAll(t, b, "lucky", ledger.Balance{USDC: 10, Debt: 500})
	_, err = b.Hold(ctx, ledger.HoldRequest{ID: "more", Agent: "lucky", Amount: 1, ExpiresAt: soon})
	wantRefused(t, "a hold with a debt", err, api.Denied, api.ReasonInsufficient)
	d := ledger.DepositRequest{ID: "d1", Agent: "lucky", Amount: 450, Source: "faucet"}
	repaid, err := b.Deposit(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, "the repayment", repaid, map[string]api.Micros{"faucet": -450, "debt:lucky": 450})
	if x, err = b.Deposit(ctx, ledger.DepositRequest{ID: "d2", Agent: "lucky", Amount: 60, Source: "faucet"}); err != nil {
		t.Fatal(err)
	}
	wantLines(t, "the rest", x, map[string]api.Micros{"faucet": -60, "debt:lucky": 50, "agent:lucky": 10})
	again, err := b.Deposit(ctx, d) // the debt at the time of the request does not matter
	if diff := cmp.Diff(repaid, again); err != nil || diff != "" {
		t.Errorf("the deposit again: %v (-first +again):\n%s", err, diff)
	}
	wantAll(t, b, "lucky", ledger.Balance{Available: 10, USDC: 10})
	wantSound(t, b)
}

// debts checks a reorganization that removes a deposit which is spent, and returns it.
func debts(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 0)
	arrived(t, b, "block7/tx1/0", "lucky", 100)
	if _, err := holdUSDC(ctx, b, "held", 30); err != nil {
		t.Fatal(err)
	}
	if _, err := holdUSDC(ctx, b, "pay", 60); err != nil {
		t.Fatal(err)
	}
	settle(t, b, "pay", 60, "usdc-payee:0xab")
	if _, err := b.Reverse(ctx, ledger.ReverseRequest{ID: "block7/tx1/0"}); err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, "lucky", ledger.Balance{USDCHeld: 30, USDCDebt: 90})
	wantLines(t, "the deposit in another block", arrived(t, b, "block8/tx1/0", "lucky", 100), map[string]api.Micros{dev: -100, "usdc-debt:lucky": 90, "usdc:lucky": 10})
	if _, err := b.Release(ctx, "held", "", ""); err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, "lucky", ledger.Balance{USDC: 40})
	wantSound(t, b)
}

// assetIDs checks that each operation answers the same for the same id and content, and
// Conflict for another content.
func assetIDs(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	other := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	funded(t, b, "bob", 0)
	arrived(t, b, "d", "lucky", 1000)
	if _, err := holdUSDC(ctx, b, "h", 10); err != nil {
		t.Fatal(err)
	}
	if _, err := holdUSDC(ctx, b, "s", 10); err != nil {
		t.Fatal(err)
	}
	settle(t, b, "s", 5, "usdc-payee:0xab")
	bought := ledger.PurchaseRequest{ID: "p", Source: dev, Agent: "lucky", USDC: 5, Credits: 6}
	if _, err := b.Purchase(ctx, bought); err != nil {
		t.Fatal(err)
	}
	purchase := func(change func(*ledger.PurchaseRequest)) func(*ledger.Ledger) error {
		r := bought
		change(&r)
		return func(b *ledger.Ledger) error { _, err := b.Purchase(ctx, r); return err }
	}
	deposit := func(agent string, amount api.Micros, source string) func(*ledger.Ledger) error {
		return func(b *ledger.Ledger) error {
			_, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d", Agent: agent, Amount: amount, Source: source})
			return err
		}
	}
	settled := func(amount api.Micros, payee string) func(*ledger.Ledger) error {
		return func(b *ledger.Ledger) error {
			_, err := b.Settle(ctx, ledger.SettleRequest{ID: "s", Amount: amount, Payee: payee})
			return err
		}
	}
	for what, op := range map[string]struct {
		do   func(*ledger.Ledger) error
		code api.Code
	}{
		"the same deposit":             {deposit("lucky", 1000, dev), ""},
		"a deposit of another amount":  {deposit("lucky", 999, dev), api.Conflict},
		"a deposit of another asset":   {deposit("lucky", 1000, "faucet"), api.Conflict},
		"a deposit on another network": {deposit("lucky", 1000, "usdc-chain:base"), api.Conflict},
		"a deposit for another":        {deposit("bob", 1000, dev), api.Conflict},
		"the same settlement":          {settled(5, "usdc-payee:0xab"), ""},
		"a settlement to another":      {settled(5, "usdc-payee:0xac"), api.Conflict},
		"a settlement of more":         {settled(6, "usdc-payee:0xab"), api.Conflict},
		"the same purchase":            {purchase(func(*ledger.PurchaseRequest) {}), ""},
		"a purchase of more credits":   {purchase(func(r *ledger.PurchaseRequest) { r.Credits++ }), api.Conflict},
		"a purchase for more USDC":     {purchase(func(r *ledger.PurchaseRequest) { r.USDC++ }), api.Conflict},
		"a purchase for another":       {purchase(func(r *ledger.PurchaseRequest) { r.Agent = "bob" }), api.Conflict},
		"a purchase at another":        {purchase(func(r *ledger.PurchaseRequest) { r.Payee = "usdc-payee:0xab" }), api.Conflict},
		"a purchase with another memo": {purchase(func(r *ledger.PurchaseRequest) { r.Memo = "x" }), api.Conflict},
		"a purchase from another":      {purchase(func(r *ledger.PurchaseRequest) { r.Source = "usdc-chain:base" }), api.Conflict},
		"a purchase with a settled hold": {func(b *ledger.Ledger) error {
			_, err := b.Purchase(ctx, ledger.PurchaseRequest{Hold: "s", Agent: "lucky", USDC: 5, Credits: 6, Payee: "usdc-payee:0xab"})
			return err
		}, api.Conflict},
		"the same hold": {func(b *ledger.Ledger) error { _, err := holdUSDC(ctx, b, "h", 10); return err }, ""},
		"a hold of another asset": {func(b *ledger.Ledger) error {
			_, err := b.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Amount: 10, Category: "x402", ExpiresAt: soon})
			return err
		}, api.Conflict},
	} {
		for _, b := range []*ledger.Ledger{b, other} {
			wantRefused(t, what, op.do(b), op.code, "")
		}
	}
	wantAll(t, b, "lucky", ledger.Balance{Available: 1006, USDC: 985, USDCHeld: 10})
	wantSound(t, b)
}
