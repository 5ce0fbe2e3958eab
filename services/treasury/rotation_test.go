package treasury_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
)

// TestRotateWallet rotates the wallet of an agent on a dev chain: its USDC moves and is no
// deposit, the ledger and the chain agree, the agent pays and signs with the new key, the
// earlier one stays readable, and what is sent to it later is the agent's.
func TestRotateWallet(t *testing.T) {
	t.Parallel()
	w, p := behind(t, chaintest.Start(t, devchain.Options{}), map[string]string{"ANIMA_TREASURY_TOPUP_URL": "self"})
	changed := apptest.Watch[api.WalletChanged](t, w.Bus)
	fund(t, w.Bus, api.Dollar)
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	was := ask[api.WalletState](t, w.Bus, api.GetWallet{Agent: "lucky"}).Address
	agree := func(when string, usdc api.Micros) {
		t.Helper()
		r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{})
		if !r.OK || len(r.Accounts) != 1 || r.Accounts[0].Chain != usdc || r.Accounts[0].Ledger != usdc {
			t.Errorf("%s: reconcile: got %+v, want agreement on %s", when, r, usdc)
		}
	}

	hold := api.Hold{ID: "h", Agent: "lucky", Asset: api.USDC, Amount: api.Dollar, Category: api.CategoryX402, ExpiresAt: time.Now().Add(time.Minute).UnixMicro()}
	ask[api.HoldState](t, w.Bus, hold)
	refused(t, w.Bus, api.RotateWallet{Agent: "lucky", Address: was}, api.Conflict, api.ReasonBusy)
	ask[api.HoldState](t, w.Bus, api.Release{ID: "h"})
	refused(t, w.Bus, api.RotateWallet{Agent: "lucky", Address: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"}, api.Conflict, "")
	refused(t, w.Bus, api.RotateWallet{Agent: "nobody", Address: was}, api.NotFound, "")

	// Without an answer of the chain the rotation has begun: payments wait for its end, and
	// the repeated request continues it.
	p.Set(chaintest.Refuses)
	if _, err := bus.Call[api.RotatedWallet](t.Context(), w.Bus, api.RotateWallet{Agent: "lucky", Address: was}); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("without the chain: got %v, want Unavailable", err)
	}
	p.Set(chaintest.Works)
	if _, err := bus.Call[api.TopUpState](t.Context(), w.Bus, api.TopUp{ID: "early", Agent: "lucky", USD: 5}); api.CodeOf(err) != api.Unavailable || !strings.Contains(err.Error(), "being rotated") {
		t.Errorf("a payment during the rotation: got %v, want Unavailable", err)
	}
	got := ask[api.RotatedWallet](t, w.Bus, api.RotateWallet{Agent: "lucky", Address: strings.ToLower(was)})
	if got.Earlier != was || got.Address == was || got.Moved != 12*api.Dollar || got.Tx == "" {
		t.Fatalf("rotated: got %+v, want 12 dollars moved from %s", got, was)
	}
	if again := ask[api.RotatedWallet](t, w.Bus, api.RotateWallet{Agent: "lucky", Address: was}); again.Address != got.Address || again.Moved != 0 {
		t.Errorf("the same request again: got %+v, want %s", again, got.Address)
	}
	if m := apptest.Next(t, changed, nil); m.Earlier != was || m.Address != got.Address {
		t.Errorf("event: got %+v, want the two addresses", m)
	}

	// The purchase that waited names the earlier wallet: it fails, and its money is free.
	balanceWhen(t, w.Bus, "the money of the purchase that waited", func(b api.Balance) bool { return b.USDC == 12*api.Dollar && b.USDCHeld == 0 })
	refused(t, w.Bus, api.TopUp{ID: "early", Agent: "lucky", USD: 5}, api.Denied, "")
	if done := ask[api.TopUpState](t, w.Bus, api.TopUp{ID: "next", Agent: "lucky", USD: 5}); done.State != "done" {
		t.Errorf("a purchase with the next wallet: got %+v", done)
	}
	s := walletWhen(t, w.Bus, "7 dollars at the new address", func(s api.WalletState) bool { return s.OnChain == 7*api.Dollar })
	if s.Address != got.Address || s.Ledger != 7*api.Dollar || len(s.Deposits) != 1 || !slices.Equal(s.Earlier, []string{was}) {
		t.Errorf("wallet: got %+v, want one deposit, the new address and the earlier one", s)
	}
	agree("after the rotation", 7*api.Dollar)
	signed := ask[api.Signature](t, w.Bus, api.SignMessage{Agent: "lucky", To: was, Content: "hello", SignedAt: "2026-01-02T03:04:05.678Z"})
	if signed.From != got.Address {
		t.Errorf("signed by %s, want %s", signed.From, got.Address)
	}
	if b := ask[api.WalletBackup](t, w.Bus, api.BackupWallet{Agent: "lucky", Address: was}); !strings.Contains(b.Keystore, strings.ToLower(was[2:])) {
		t.Errorf("backup of the earlier wallet: got %s, want the key of %s", b.Keystore, was)
	}
	refused(t, w.Bus, api.BackupWallet{Agent: "lucky", Address: "0x00"}, api.Invalid, "")
	_, err := bus.Call[api.WalletBackup](t.Context(), w.Bus, api.BackupWallet{Agent: "lucky", Address: "0x" + strings.Repeat("0", 40)})
	if api.CodeOf(err) != api.NotFound || strings.Contains(err.Error(), "retired") {
		t.Errorf("backup of a wallet that lucky never had: got %v, want NotFound without an internal name", err)
	}

	p.Give(t, common.HexToAddress(was), uint64(3*api.Dollar), "late")
	balanceWhen(t, w.Bus, "the deposit to the earlier address", func(b api.Balance) bool { return b.USDC == 10*api.Dollar })
	agree("after a deposit to the earlier address", 10*api.Dollar)
	walletWhen(t, w.Bus, "3 dollars at the earlier address", func(s api.WalletState) bool {
		return slices.Equal(s.Left, []api.WalletRest{{Address: was, OnChain: 3 * api.Dollar}})
	})
	ask[api.HoldState](t, w.Bus, api.Hold{ID: "h2", Agent: "lucky", Asset: api.USDC, Amount: api.Dollar, Category: api.CategoryX402, ExpiresAt: time.Now().Add(time.Minute).UnixMicro()})
	refused(t, w.Bus, api.RotateWallet{Agent: "lucky", Address: was}, api.Conflict, api.ReasonBusy)
	ask[api.HoldState](t, w.Bus, api.Release{ID: "h2"})
	for i, want := range []api.Micros{3 * api.Dollar, 0} {
		if late := ask[api.RotatedWallet](t, w.Bus, api.RotateWallet{Agent: "lucky", Address: was}); late.Moved != want || late.Address != got.Address {
			t.Errorf("the deposit to the earlier address, request %d: got %+v, want %s moved to %s", i, late, want, got.Address)
		}
	}
	walletWhen(t, w.Bus, "10 dollars at the new address", func(s api.WalletState) bool { return s.OnChain == 10*api.Dollar && len(s.Left) == 0 })
	agree("after the earlier wallet was emptied", 10*api.Dollar)

	// The USDC moves, and the answer of the chain is lost, as after a crash in between.
	p.Set(chaintest.Forgets)
	if _, err := bus.Call[api.RotatedWallet](t.Context(), w.Bus, api.RotateWallet{Agent: "lucky", Address: got.Address}); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("without a receipt: got %v, want Unavailable", err)
	}
	p.Set(chaintest.Works)
	agree("between the transfer and the end of a rotation", 10*api.Dollar)
	second := ask[api.RotatedWallet](t, w.Bus, api.RotateWallet{Agent: "lucky", Address: got.Address})
	if second.Moved != 0 || second.Address == got.Address {
		t.Errorf("the rotation again: got %+v, want its end, with nothing left to move", second)
	}
	walletWhen(t, w.Bus, "the 10 dollars of the second wallet at the third", func(s api.WalletState) bool {
		return s.Address == second.Address && s.OnChain == 10*api.Dollar && len(s.Deposits) == 2
	})
	agree("after the second rotation", 10*api.Dollar)
	if r := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: got %+v, want no fault", r)
	}
}

// TestRotateWithoutChain rotates the wallet of an agent that has no USDC, without a chain.
func TestRotateWithoutChain(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{Env: development})
	a := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	got := ask[api.RotatedWallet](t, w.Bus, api.RotateWallet{Agent: "lucky", Address: a.Address})
	if now := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"}); got.Address == a.Address || now.Address != got.Address || got.Moved != 0 {
		t.Errorf("got %+v and then %+v, want another address", got, now)
	}
}
