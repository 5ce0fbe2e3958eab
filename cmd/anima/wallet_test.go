package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestWalletCommands backs a wallet up and restores it, and checks the commands that need a
// chain at a treasury without one.
func TestWalletCommands(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	lucky := asked[api.WalletState](u.machine, "wallet", "show", "lucky")
	if lucky.Agent != "lucky" || !strings.HasPrefix(lucky.Address, "0x") || lucky.Network != "" || lucky.Known {
		t.Errorf("got %+v, want an address and no chain", lucky)
	}
	if out := u.cli("wallet", "show", "Lucky"); !strings.Contains(out, lucky.Address) || !strings.Contains(out, "none is configured") {
		t.Errorf("the wallet is shown as\n%s", out)
	}

	backup := u.cli("wallet", "backup", "lucky")
	if strings.Contains(backup, "passphrase") || !strings.Contains(backup, `"version":3`) {
		t.Fatalf("the backup is %s, want a keystore of version 3", backup)
	}
	file := filepath.Join(t.TempDir(), "lucky.json")
	if err := os.WriteFile(file, []byte(backup), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := asked[api.Account](u.machine, "wallet", "restore", "lucky", file); got.Address != lucky.Address {
		t.Errorf("restoring the same wallet: got %+v, want %s", got, lucky.Address)
	}
	nova := u.born("Nova")
	for name, tt := range map[string]struct {
		in   string
		args []string
		want string
	}{
		"the wallet of another agent": {"", []string{"wallet", "restore", "nova", file}, "conflict"},
		"no keystore":                 {"{}", []string{"wallet", "restore", "nova", "-"}, "invalid"},
		"no file":                     {"", []string{"wallet", "restore", "nova", file + ".x"}, "invalid"},
		"no agent":                    {"", []string{"wallet", "show", "nobody"}, "not_found"},
		"no chain":                    {"", []string{"wallet", "chain"}, "ANIMA_TREASURY_RPC_URL"},
		"no faucet":                   {"", []string{"wallet", "fund", "lucky", "5"}, "ANIMA_TREASURY_RPC_URL"},
		"nothing to reconcile":        {"", []string{"ledger", "reconcile"}, "ANIMA_TREASURY_RPC_URL"},
		"nobody to accept":            {"", []string{"ledger", "reconcile", "--accept", "moved"}, "--accept has no agent"},
	} {
		if r := u.run(tt.in, append([]string{"-o", "json"}, tt.args...)...); r.code == exitOK || !strings.Contains(r.err+r.out, tt.want) {
			t.Errorf("%s: got %d %s%s, want an error with %q", name, r.code, r.out, r.err, tt.want)
		}
	}
	if got := asked[api.WalletState](u.machine, "wallet", "show", "nova"); got.Address == lucky.Address || got.Address != nova.Address {
		t.Errorf("the wallet of nova is %s after refused restores, want %s", got.Address, nova.Address)
	}
}

// TestWriteWallet checks that an unknown balance is not shown as 0 and that a stale one is
// called so.
func TestWriteWallet(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wallet api.WalletState
		want   []string
	}{
		"unknown": {api.WalletState{Network: "base", Error: "refused"}, []string{"chain\tunknown on base: refused"}},
		"stale": {
			api.WalletState{Network: "base", Known: true, Stale: true, OnChain: 5 * api.Dollar, Block: 7, Error: "refused"},
			[]string{"5.00", "stale", "block 7", "refused"},
		},
		"frozen": {
			api.WalletState{
				Agent: "lucky", Network: "dev", Known: true, Block: 7, Frozen: &api.Freeze{Difference: api.Cent},
				Deposits: []api.ChainDeposit{{Amount: api.Dollar, From: "0x1", State: "final", Block: 3}},
			},
			[]string{"frozen", "anima ledger reconcile lucky", "from 0x1, final, block 3"},
		},
	} {
		var out bytes.Buffer
		writeWallet(&out, tt.wallet)
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: got\n%s\nwant %q in it", name, out.String(), want)
			}
		}
	}
}
