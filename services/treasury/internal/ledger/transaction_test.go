package ledger

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

func sample() Transaction {
	return Transaction{
		Seq: 2, ID: "r1.1/hold", Kind: KindHold, Agent: "lucky", Memo: "ď", Turn: "r1.1", Trace: "0af7", At: 1_800_000_000_000_000,
		Lines: []Line{{Account: "agent:lucky", Amount: -9000}, {Account: "held:lucky", Amount: 9000}},
	}
}

// TestSumIsFixed checks that the hash of a transaction does not change: existing ledgers
// depend on it.
func TestSumIsFixed(t *testing.T) {
	t.Parallel()
	tx := sample()
	if got, want := tx.Sum().String(), "32f2be40f3680f353f51675172a289c3cbf6305c844f5d65467b26f4dcaa18a3"; got != want {
		t.Errorf("hash: got %s, want %s", got, want)
	}
}

func TestSumCoversEveryField(t *testing.T) {
	t.Parallel()
	base := sample()
	for what, change := range map[string]func(*Transaction){
		"seq":                   func(t *Transaction) { t.Seq++ },
		"id":                    func(t *Transaction) { t.ID += "x" },
		"kind":                  func(t *Transaction) { t.Kind = KindSettle },
		"agent":                 func(t *Transaction) { t.Agent = "bob" },
		"memo":                  func(t *Transaction) { t.Memo = "" },
		"turn":                  func(t *Transaction) { t.Turn = "" },
		"trace":                 func(t *Transaction) { t.Trace = "" },
		"at":                    func(t *Transaction) { t.At++ },
		"previous":              func(t *Transaction) { t.Previous[31] = 1 },
		"an amount":             func(t *Transaction) { t.Lines[0].Amount-- },
		"an account":            func(t *Transaction) { t.Lines[1].Account = "held:bob" },
		"the order":             func(t *Transaction) { t.Lines[0], t.Lines[1] = t.Lines[1], t.Lines[0] },
		"a line":                func(t *Transaction) { t.Lines = t.Lines[:1] },
		"text moved to a field": func(t *Transaction) { t.Memo, t.Turn = t.Memo+"r", "1.1" },
	} {
		changed := sample()
		change(&changed)
		if changed.Sum() == base.Sum() {
			t.Errorf("another %s: got the same hash", what)
		}
	}
	same := sample()
	same.Parent, same.Lines[0].Balance = "00-x", 5
	if same.Sum() != base.Sum() {
		t.Error("what is not announced changes the hash")
	}
}

func TestBalanced(t *testing.T) {
	t.Parallel()
	for what, lines := range map[string][]Line{
		"one line":   {{Account: "a", Amount: 0}},
		"a gain":     {{Account: "a", Amount: 2}, {Account: "b", Amount: -1}},
		"one twice":  {{Account: "a", Amount: 1}, {Account: "a", Amount: -1}},
		"a overflow": {{Account: "a", Amount: api.MaxMicros}, {Account: "b", Amount: api.MaxMicros}},
	} {
		if tx := (Transaction{Lines: lines}); tx.balanced() == "" {
			t.Errorf("%s: got it balanced", what)
		}
	}
	if tx := sample(); tx.balanced() != "" {
		t.Errorf("a good one: got %q", tx.balanced())
	}
}

func FuzzParseHash(f *testing.F) {
	tx := sample()
	f.Add(tx.Sum().String())
	f.Add(Hash{}.String())
	f.Add("zz")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHash(s)
		if err != nil {
			return
		}
		if again, err := ParseHash(h.String()); err != nil || again != h {
			t.Errorf("round trip of %q: got %s, %v", s, again, err)
		}
	})
}

func TestReceived(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		x      Transaction
		asset  api.Asset
		amount api.Micros
	}{
		"a deposit that repays a debt": {Transaction{Kind: KindDeposit, Lines: []Line{
			{Account: "faucet", Amount: -5}, {Account: "debt:lucky", Amount: 2}, {Account: "agent:lucky", Amount: 3},
		}}, api.Credits, 5},
		"a deposit of USDC": {Transaction{Kind: KindDeposit, Lines: []Line{{Account: "usdc-chain:dev", Amount: -5}, {Account: "usdc:lucky", Amount: 5}}}, api.USDC, 5},
		"a purchase with a rest": {Transaction{Kind: KindPurchase, Lines: []Line{
			{Account: "usdc-held:lucky", Amount: -9},
			{Account: "usdc-operator", Amount: 7},
			{Account: "usdc:lucky", Amount: 2},
			{Account: "operator", Amount: -6},
			{Account: "agent:lucky", Amount: 6},
		}}, api.Credits, 6},
		"a transfer": {Transaction{Kind: KindTransfer, Lines: []Line{{Account: "agent:bob", Amount: -5}, {Account: "agent:lucky", Amount: 5}}}, api.Credits, 0},
	} {
		if asset, amount := c.x.Received(); asset != c.asset || amount != c.amount {
			t.Errorf("%s: got %d of %q, want %d of %q", what, amount, asset, c.amount, c.asset)
		}
	}
}
