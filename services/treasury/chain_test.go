package treasury_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
)

// onchain starts treasury with a chain behind a proxy. Only the faucet makes blocks.
func onchain(t *testing.T, change map[string]string) (*apptest.World, *chaintest.Proxy) {
	t.Helper()
	return behind(t, chaintest.Start(t, devchain.Options{Interval: -1}), change)
}

// behind starts treasury with the chain of a proxy.
func behind(t *testing.T, p *chaintest.Proxy, change map[string]string) (*apptest.World, *chaintest.Proxy) {
	t.Helper()
	env := maps.Clone(development)
	maps.Copy(env, map[string]string{
		"ANIMA_TREASURY_RPC_URL": p.URL.Reveal(), "ANIMA_TREASURY_NETWORK": "dev",
		"ANIMA_TREASURY_CHAIN_POLL": "10ms", "ANIMA_TREASURY_CHAIN_RECONCILE": "50ms",
	})
	maps.Copy(env, change)
	return start(t, apptest.Options{Env: env}), p
}

// waitWallet bounds a wait for a state of a wallet. A balance is read again after 2 s, and
// a request that hangs takes a second in [TestRPCDown].
const waitWallet = 20 * time.Second

// walletWhen asks for a wallet until it fits.
func walletWhen(t *testing.T, b *bus.Bus, what string, fits func(api.WalletState) bool) api.WalletState {
	t.Helper()
	for end := time.Now().Add(waitWallet); ; {
		w := ask[api.WalletState](t, b, api.GetWallet{Agent: "lucky"})
		if fits(w) {
			return w
		}
		if time.Now().After(end) {
			t.Fatalf("wallet: got %+v, want %s within %s", w, what, waitWallet)
		}
	}
}

func TestFundFromTheFaucet(t *testing.T) {
	t.Parallel()
	w, _ := onchain(t, nil)
	a := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	for range 2 { // the same id pays once
		f := ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 5 * api.Dollar})
		if f.Address != a.Address {
			t.Errorf("funded: got %s, want %s", f.Address, a.Address)
		}
	}
	got := ask[api.WalletState](t, w.Bus, api.GetWallet{Agent: "lucky"})
	if !got.Known || got.Stale || got.OnChain != 5*api.Dollar || got.Ledger != 5*api.Dollar || got.Block == 0 || len(got.Deposits) != 1 || got.Deposits[0].State != "safe" {
		t.Errorf("wallet: got %+v, want 5 dollars on the chain and in the ledger", got)
	}
	if b := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"}); b.USDC != 5*api.Dollar {
		t.Errorf("balance: got %+v, want 5 dollars of USDC", b)
	}
	r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{})
	if !r.OK || len(r.Accounts) != 1 || r.Accounts[0].Chain != 5*api.Dollar {
		t.Errorf("reconcile: got %+v, want agreement", r)
	}
	refused(t, w.Bus, api.FundUSDC{ID: "two", Agent: "nobody", Amount: 1}, api.NotFound, "")
	refused(t, w.Bus, api.FundUSDC{ID: "", Agent: "lucky", Amount: 1}, api.Invalid, "")
	refused(t, w.Bus, api.FundUSDC{ID: "two", Agent: "", Amount: 1}, api.Invalid, "")
	refused(t, w.Bus, api.FundUSDC{ID: "three", Agent: "lucky", Amount: 20_000 * api.Dollar}, api.Invalid, "")
	c := ask[api.ChainState](t, w.Bus, api.GetChain{})
	if c.Network != "dev" || !c.OK || c.Block == 0 || c.Frozen != 0 {
		t.Errorf("chain: got %+v, want the dev chain", c)
	}
}

// shopOf returns the address of a shop for credits whose requests a treasury answers that
// starts later, and a function that returns the number of requests.
func shopOf(t *testing.T) (at string, open func(*apptest.World), requests func() int) {
	t.Helper()
	var target atomic.Pointer[url.URL]
	var n atomic.Int64
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		n.Add(1)
		r.SetURL(target.Load())
	}})
	t.Cleanup(server.Close)
	return server.URL, func(w *apptest.World) {
		u, err := url.Parse(w.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		target.Store(u)
	}, func() int { return int(n.Load()) }
}

// rpcDown is the variable of make rpc-down: how long the RPC fails in each way. The clock
// of that run is faster than that of the kernel, so a request has more time.
const rpcDown = "ANIMA_RPC_DOWN"

// TestRPCDown checks an RPC that refuses, hangs and lies about its chain: the balance is
// stale, nothing is bought, no tier changes, and all of it recovers by itself.
func TestRPCDown(t *testing.T) {
	t.Parallel()
	settings, timeout, down := map[string]string{"ANIMA_TREASURY_X402_PRIVATE": "true"}, time.Second, time.Duration(0)
	if text := os.Getenv(rpcDown); text != "" {
		var err error
		if down, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", rpcDown, err)
		}
		timeout = 3 * time.Second
		maps.Copy(settings, map[string]string{"ANIMA_TREASURY_CHAIN_POLL": "2s", "ANIMA_TREASURY_CHAIN_RECONCILE": "1m"})
	}
	settings["ANIMA_TREASURY_RPC_TIMEOUT"] = timeout.String()
	shop, open, requests := shopOf(t)
	settings["ANIMA_TREASURY_TOPUP_URL"] = shop
	w, p := onchain(t, settings)
	open(w)
	fund(t, w.Bus, 6*api.Dollar)
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	// What was never read is not known, instead of stale.
	walletWhen(t, w.Bus, "a known balance", func(s api.WalletState) bool { return s.Known && !s.Stale })
	tiers := apptest.Watch[api.TierChanged](t, w.Bus)
	before := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
	for _, mode := range []chaintest.Mode{chaintest.Refuses, chaintest.Hangs, chaintest.Lies} {
		p.Set(mode)
		began, checks := time.Now(), 0
		for ; checks == 0 || time.Since(began) < down; checks++ {
			if checks > 0 {
				<-time.After(time.Minute)
			}
			checkDown(t, w, fmt.Sprintf("%s %d", mode, checks), timeout, before)
		}
		if down > 0 {
			t.Logf("the RPC %s for %s: %d checks", mode, time.Since(began).Round(time.Second), checks)
		}
		p.Set(chaintest.Works)
		walletWhen(t, w.Bus, "a balance that is not stale", func(s api.WalletState) bool { return !s.Stale })
	}
	if n := requests(); n != 0 {
		t.Errorf("requests to the shop: got %d, want none", n)
	}
	for len(tiers) > 0 {
		if c := <-tiers; c.EntrySeq > 1 { // the first one is of the deposit of credits
			t.Errorf("tiers: got %+v, want no change", c)
		}
	}
	p.Give(t, common.HexToAddress(ask[api.WalletState](t, w.Bus, api.GetWallet{Agent: "lucky"}).Address), 7, "afterwards")
	walletWhen(t, w.Bus, "a deposit afterwards", func(s api.WalletState) bool { return s.Ledger == 12*api.Dollar+7 })
}

// checkDown checks once what treasury does while its RPC is down. id is new for each check;
// timeout is the bound of a request to the chain.
func checkDown(t *testing.T, w *apptest.World, id string, timeout time.Duration, before api.Balance) {
	t.Helper()
	stale := walletWhen(t, w.Bus, "a stale balance", func(s api.WalletState) bool { return s.Stale })
	if !stale.Known || stale.OnChain != 12*api.Dollar || stale.Error == "" || strings.Contains(stale.Error, chaintest.Password) {
		t.Errorf("%s: got %+v, want the last balance, stale, without the address", id, stale)
	}
	began := time.Now()
	refused(t, w.Bus, api.FundUSDC{ID: "while " + id, Agent: "lucky", Amount: 1}, api.Unavailable, api.ReasonChain)
	refused(t, w.Bus, api.ReconcileLedger{}, api.Unavailable, api.ReasonChain)
	refused(t, w.Bus, api.TopUp{ID: "while " + id, Agent: "lucky", USD: 5}, api.Unavailable, "")
	if took := time.Since(began); took > 25*timeout {
		t.Errorf("%s: three refusals took %s, want the bound of a request, %s, for each", id, took, timeout)
	}
	if c := ask[api.ChainState](t, w.Bus, api.GetChain{}); c.OK || c.Error == "" || c.Frozen != 0 {
		t.Errorf("%s: got %+v, want it down and nobody frozen", id, c)
	}
	now := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
	if now.At = before.At; now != before {
		t.Errorf("%s: got %+v, want %+v as before", id, now, before)
	}
}

// TestDifferenceFreezes makes the ledger pay USDC that stays on the chain. Then nothing is
// held for a payment, and no credits are bought.
func TestDifferenceFreezes(t *testing.T) {
	t.Parallel()
	w, _ := onchain(t, map[string]string{
		"ANIMA_TREASURY_TOPUP_URL": "self", "ANIMA_TREASURY_X402_PRIVATE": "true", "ANIMA_TREASURY_MAX_X402_PAYMENT_CENTS": "1000",
	})
	a := fund(t, w.Bus, 6*api.Dollar)
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	hold := func(id string) api.Hold {
		return api.Hold{ID: id, Agent: "lucky", Asset: api.USDC, Amount: api.Dollar, ExpiresAt: later()}
	}
	ask[api.HoldState](t, w.Bus, hold("h"))
	ask[api.HoldState](t, w.Bus, api.Settle{ID: "h", Amount: api.Dollar, Payee: "usdc-payee:0x1111111111111111111111111111111111111111"})
	frozen := walletWhen(t, w.Bus, "frozen", func(s api.WalletState) bool { return s.Frozen != nil })
	if frozen.Frozen.Difference != -api.Dollar {
		t.Errorf("frozen: got %+v, want a dollar", frozen.Frozen)
	}
	refused(t, w.Bus, hold("i"), api.Denied, api.ReasonFrozen)
	refused(t, w.Bus, api.TopUp{ID: "t", Agent: "lucky", USD: 5}, api.Denied, api.ReasonFrozen)
	refused(t, w.Bus, api.Pay{ID: "p", Agent: "lucky", URL: w.HTTP + "/pay/5/" + a.Address}, api.Denied, api.ReasonFrozen)
	if p := ask[api.Payment](t, w.Bus, api.GetPayment{ID: "p"}); p.State != api.PaymentIntended {
		t.Errorf("payment: got %s, want one that can be repeated", p.State)
	}
	if hs := ask[api.Holds](t, w.Bus, api.ListHolds{Agent: "lucky", Status: api.HoldReleased}).Holds; len(hs) != 0 {
		t.Errorf("released holds: got %+v, want none", hs)
	}
	ask[api.HoldState](t, w.Bus, api.Hold{ID: "credits", Agent: "lucky", Amount: 1, ExpiresAt: later()}) // credits are not frozen
	refused(t, w.Bus, api.ResolveFreeze{Agent: "lucky"}, api.Invalid, "")
	if s := ask[api.WalletState](t, w.Bus, api.ResolveFreeze{Agent: "lucky", Note: "a test"}); s.Frozen != nil {
		t.Errorf("resolved: got %+v, want it not frozen", s)
	}
	ask[api.HoldState](t, w.Bus, hold("i"))
	if r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{Agent: "lucky"}); !r.OK {
		t.Errorf("reconcile: got %+v, want agreement", r)
	}
}

// TestManyWallets compares more wallets with the chain than a public node permits calls in a
// request.
func TestManyWallets(t *testing.T) {
	t.Parallel()
	w, p := onchain(t, map[string]string{"ANIMA_TREASURY_CHAIN_RECONCILE": "1h"})
	for i := range 2 * chaintest.FreeCalls {
		ask[api.Account](t, w.Bus, api.OpenAccount{Agent: fmt.Sprintf("a%d", i)})
	}
	p.Set(chaintest.Free)
	if r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{}); !r.OK || len(r.Accounts) != 2*chaintest.FreeCalls {
		t.Errorf("reconcile: got %+v, want the agreement of %d agents", r, 2*chaintest.FreeCalls)
	}
}

// TestLazyChain checks that a lazy treasury makes no request before the chain is used.
func TestLazyChain(t *testing.T) {
	t.Parallel()
	w, p := onchain(t, map[string]string{"ANIMA_TREASURY_CHAIN_LAZY": "true"})
	fund(t, w.Bus, api.Dollar)
	ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
	if n := p.Calls(); n != 0 {
		t.Errorf("requests to the chain: got %d, want none", n)
	}
	ask[api.WalletState](t, w.Bus, api.GetWallet{Agent: "lucky"})
	p.Give(t, common.HexToAddress(ask[api.WalletState](t, w.Bus, api.GetWallet{Agent: "lucky"}).Address), 7, "one")
	walletWhen(t, w.Bus, "a deposit", func(s api.WalletState) bool { return s.Ledger == 7 })
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	env := maps.Clone(development)
	env["ANIMA_TREASURY_KEYSTORE_PASSPHRASE"] = "one passphrase for two installations"
	first, second := start(t, apptest.Options{Env: env}), start(t, apptest.Options{Env: env})
	a := ask[api.Account](t, first.Bus, api.OpenAccount{Agent: "lucky"})
	backup := ask[api.WalletBackup](t, first.Bus, api.BackupWallet{Agent: "lucky"})
	if backup.Address != a.Address || !strings.Contains(backup.Keystore, `"ciphertext"`) {
		t.Errorf("backup: got %+v, want the keystore of %s", backup, a.Address)
	}
	for range 2 {
		if got := ask[api.Account](t, second.Bus, api.RestoreWallet{Agent: "lucky", Keystore: backup.Keystore}); got.Address != a.Address {
			t.Errorf("restored: got %s, want %s", got.Address, a.Address)
		}
	}
	const at = "2026-11-21T08:00:00.000Z"
	sign := api.SignMessage{Agent: "lucky", To: a.Address, Content: "hello", SignedAt: at}
	if one, two := ask[api.Signature](t, first.Bus, sign), ask[api.Signature](t, second.Bus, sign); one != two {
		t.Errorf("signatures: got %+v and %+v, want the same", one, two)
	}
	refused(t, second.Bus, api.RestoreWallet{Agent: "bob", Keystore: backup.Keystore}, api.Conflict, "")
	ask[api.Account](t, second.Bus, api.OpenAccount{Agent: "carol"})
	refused(t, second.Bus, api.RestoreWallet{Agent: "carol", Keystore: backup.Keystore}, api.Conflict, "")
	for what, file := range map[string]string{
		"no JSON": "x", "a cheap key derivation": strings.Replace(backup.Keystore, "scrypt", "pbkdf2", 1),
		"an expensive one":  strings.Replace(backup.Keystore, `"n":2,`, `"n":1073741824,`, 1),
		"a changed file":    strings.Replace(backup.Keystore, `"ciphertext":"`, `"ciphertext":"00`, 1),
		"a file of a novel": strings.Repeat("x", 5000),
	} {
		if file == backup.Keystore {
			t.Fatalf("%s: the file was not changed: %s", what, file)
		}
		refused(t, second.Bus, api.RestoreWallet{Agent: "dave", Keystore: file}, api.Invalid, "")
	}
	refused(t, first.Bus, api.BackupWallet{Agent: "nobody"}, api.NotFound, "")
	other := maps.Clone(env)
	other["ANIMA_TREASURY_KEYSTORE_PASSPHRASE"] = "another passphrase"
	refused(t, start(t, apptest.Options{Env: other}).Bus, api.RestoreWallet{Agent: "lucky", Keystore: backup.Keystore}, api.Invalid, "")
	refused(t, first.Bus, api.GetChain{}, api.NotFound, "")
}
