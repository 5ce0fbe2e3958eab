package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// balanceWhen asks for the balance of an agent until it fits.
func (m *machine) balanceWhen(agent, what string, fits func(api.Balance) bool) api.Balance {
	m.t.Helper()
	for end := time.Now().Add(patience); ; {
		b := asked[[]api.Balance](m, "ledger", "balance", agent)[0]
		if fits(b) {
			return b
		}
		if time.Now().After(end) {
			m.t.Fatalf("balance of %s: got %+v, want %s within %s", agent, b, what, patience)
		}
	}
}

// TestLowAgentBuysCredits makes an agent at a low tier buy credits with USDC on the dev
// chain, over x402, and think with them. The receipt, the ledger and the chain agree, also
// after a restart.
func TestLowAgentBuysCredits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	u := m.up()
	if !strings.HasPrefix(u.Chain, "http://127.0.0.1:") {
		t.Fatalf("up: got chain %q, want a dev chain", u.Chain)
	}
	if r := m.run("---\nname: Poor\n---\nBe poor.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	m.cli("agent", "fund", "poor", "0.2")
	m.cli("session", "send", "lucky", "hello") // agents without USDC do not start the chain
	if strings.Contains(u.log(), "dev chain started") {
		t.Error("the dev chain runs before its first use")
	}
	if _, err := os.Stat(filepath.Join(u.Data, "devchain")); err == nil {
		t.Error("the dev chain has a folder before its first use")
	}
	m.usdc("poor", "6")
	if out := m.cli("wallet", "fund", "poor", "6", "--id", "first"); !strings.Contains(out, "nothing was paid") {
		t.Errorf("the same id: got %q", out)
	}
	m.balanceWhen("poor", "credits for 5 dollars", func(b api.Balance) bool {
		return b.Available == 520*api.Cent && b.USDC == api.Dollar && b.USDCHeld == 0
	})
	end := asked[api.LoopEnd](m, "session", "send", "poor", "hello")
	if !end.Success {
		t.Errorf("the run after the purchase: got %+v, want success", end)
	}
	ps := asked[api.Payments](m, "payment", "list", "poor").Payments
	if len(ps) != 1 || ps[0].State != api.PaymentSettled || ps[0].Amount != 5*api.Dollar {
		t.Fatalf("payments: got %+v, want one settled for 5 dollars", ps)
	}
	receipt := asked[api.Payment](m, "payment", "show", ps[0].ID)
	if !strings.Contains(string(receipt.Body), `"credits_cents":500`) || !strings.Contains(string(receipt.Body), receipt.Transaction) {
		t.Errorf("receipt: got %s, want 500 cents in %s", receipt.Body, receipt.Transaction)
	}
	w := asked[api.WalletState](m, "wallet", "show", "poor")
	if !w.Known || w.Stale || w.OnChain != api.Dollar || w.Ledger != api.Dollar || len(w.Deposits) != 1 || w.Deposits[0].Amount != 6*api.Dollar {
		t.Errorf("wallet: got %+v, want a dollar on the chain and in the ledger", w)
	}
	agree := func() {
		t.Helper()
		for _, words := range [][]string{{"ledger", "reconcile"}, {"ledger", "reconcile", "poor"}} {
			if r := asked[api.Reconciliation](m, words...); !r.OK {
				t.Errorf("%v: got %+v, want agreement", words, r)
			}
		}
		if r := asked[api.LedgerReport](m, "ledger", "verify"); !r.OK {
			t.Errorf("verify: got %+v, want no fault", r)
		}
	}
	agree()
	if c := asked[api.ChainState](m, "chain"); !c.OK || c.Network != "dev" || c.Block == 0 {
		t.Errorf("chain: got %+v, want the dev chain", c)
	}
	for text, words := range map[string][]string{
		"in the ledger  $1.00": {"wallet", "show", "poor"}, "dev (1337)": {"chain"}, "poor": {"ledger", "reconcile"},
	} {
		if out := m.cli(words...); !strings.Contains(out, text) {
			t.Errorf("%v: got %q, want %q in it", words, out, text)
		}
	}
	u.stop()
	m.up()
	if w := asked[api.WalletState](m, "wallet", "show", "poor"); w.OnChain != api.Dollar {
		t.Errorf("wallet after a restart: got %+v, want a dollar", w)
	}
	agree()
}

func TestWalletCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_TREASURY_RPC_URL"] = "" // no chain at all
	if u := m.up(); u.Chain != "" {
		t.Errorf("up: got chain %q, want none", u.Chain)
	}
	g := asked[api.Agent](m, "agent", "get", "lucky")
	file := filepath.Join(t.TempDir(), "lucky.json")
	if out := m.cli("wallet", "backup", "lucky", "-f", file); !strings.Contains(out, g.Address) {
		t.Errorf("backup: got %q, want the address %s", out, g.Address)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup: got %v, %v, want a file of mode 0600", info, err)
	}
	keystore := readFile(t, file)
	if out := m.cli("wallet", "backup", "Lucky"); out != keystore || !strings.Contains(out, `"ciphertext"`) {
		t.Errorf("backup to the standard output: got %q, want %q", out, keystore)
	}
	m.fails(exitConflict, "", []string{"wallet", "backup", "lucky", "-f", file}, "exists")
	if out := m.cli("wallet", "restore", "lucky", file); !strings.Contains(out, g.Address) {
		t.Errorf("restore over itself: got %q, want %s", out, g.Address)
	}
	m.fails(exitConflict, keystore, []string{"wallet", "restore", "other", "-"})
	m.fails(exitUsage, "x", []string{"wallet", "restore", "other", "-"}, "keystore")
	m.fails(exitNotFound, "", []string{"wallet", "backup", "ghost"}, "ghost")
	m.fails(exitNotFound, "", []string{"wallet", "show", "ghost"}, "ghost")
	if out := m.cli("wallet", "show", "lucky"); !strings.Contains(out, "treasury has no chain") {
		t.Errorf("show: got %q, want that there is no chain", out)
	}
	for _, words := range [][]string{{"chain"}, {"ledger", "reconcile"}, {"wallet", "fund", "lucky", "5"}} {
		m.fails(exitNotFound, "", words, "treasury has no chain", "ANIMA_TREASURY_RPC_URL")
	}
	m.fails(exitUsage, "", []string{"ledger", "reconcile", "--accept", "because"}, "needs an agent")
	m.fails(exitUsage, "", []string{"wallet", "fund", "lucky", "0"}, "zero")
}

// TestRefusedRunBuysCredits checks that a run whose model call costs more than the agent
// has, at a tier at which treasury buys nothing by itself, has credits bought and goes on;
// and that it ends as before when the wallet is empty.
func TestRefusedRunBuysCredits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.born("Rich") // one dollar: the tier is normal
	m.cli("model", "set-price", "anima-sim-1", "--in", "500", "--out", "500")
	if r := m.run("", "session", "send", "rich", "hello"); r.code != exitFailed || !strings.Contains(r.err, "anima agent fund rich 5") {
		t.Fatalf("without USDC: exit %d\n%s%s\nwant a run that cannot pay", r.code, r.out, r.err)
	}
	m.usdc("rich", "6")
	end := asked[api.LoopEnd](m, "session", "send", "rich", "are you there?")
	if !end.Success || end.Turns != 1 {
		t.Errorf("with USDC: got %+v, want one turn", end)
	}
	ps := asked[api.Payments](m, "payment", "list", "rich").Payments
	b := asked[[]api.Balance](m, "ledger", "balance", "rich")[0]
	if len(ps) != 1 || ps[0].Amount != 5*api.Dollar || b.USDC != api.Dollar || b.Available >= 6*api.Dollar || b.Available < api.Dollar {
		t.Errorf("got %d payments and %+v, want credits for 5 dollars, less the cost of the call", len(ps), b)
	}
}

// TestWalletRotation checks that an agent signs its messages with its next wallet, that all
// services learn the address, and that the command is safe to repeat.
func TestWalletRotation(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	nova := m.born("Nova")
	was := asked[api.Agent](m, "agent", "get", "lucky").Address
	m.usdc("lucky", "2")
	out := m.cli("wallet", "rotate", "lucky")
	now := asked[api.RotatedWallet](m, "wallet", "rotate", "lucky", "--address", was)
	if now.Address == was || !strings.Contains(out, now.Address) || !strings.Contains(out, "$2.00 of USDC moved in 0x") {
		t.Fatalf("rotate: got %q and then %+v, want another wallet with the USDC", out, now)
	}
	m.outputWhen(now.Address, "agent", "get", "lucky")
	m.outputWhen("earlier        "+was, "wallet", "show", "lucky")
	m.cli("session", "send", "lucky", "tell "+nova.Address+" hello from the new wallet")
	m.outputWhen(now.Address, "social", "inbox", "nova")
	m.cli("session", "send", "nova", "tell "+now.Address+" hello to the new wallet")
	m.outputWhen("hello to the new wallet", "social", "inbox", "lucky")
	m.fails(exitConflict, "", []string{"wallet", "rotate", "nova", "--address", was}, "the wallet of nova is "+nova.Address)
	if out := m.cli("wallet", "backup", "lucky", "--address", was); !strings.Contains(out, strings.ToLower(was[2:])) {
		t.Errorf("backup of the earlier wallet: got %q", out)
	}
	m.fails(exitUsage, "", []string{"wallet", "backup", "lucky", "--address", "0x00"}, `"0x00" is not an address`, "anima wallet show lucky")
	m.fails(exitNotFound, "", []string{"wallet", "backup", "lucky", "--address", nova.Address}, "lucky has and had no wallet "+nova.Address, "anima wallet show lucky")
}
