package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type walletCmd struct {
	Backup  walletBackupCmd  `cmd:"" help:"Write an agent's wallet, encrypted with treasury's passphrase."`
	Chain   walletChainCmd   `cmd:"" help:"Show treasury's access to the chain."`
	Fund    walletFundCmd    `cmd:"" help:"Have the faucet of the dev chain pay USDC to an agent."`
	Restore walletRestoreCmd `cmd:"" help:"Store the wallet of an agent that has none, from a backup."`
	Show    walletShowCmd    `cmd:"" help:"Show an agent's wallet: address, USDC on the chain and in the ledger, deposits."`
}

type walletShowCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

func (c walletShowCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetWallet{Agent: strings.ToLower(c.Agent)}, writeWallet)
}

// writeWallet writes a wallet. A balance that was never read is shown as unknown, never
// as 0.
func writeWallet(w io.Writer, v api.WalletState) {
	fmt.Fprintf(w, "agent\t%s\naddress\t%s\nledger\t%s USDC\n", v.Agent, v.Address, v.Ledger)
	if v.Held > 0 {
		fmt.Fprintf(w, "held\t%s USDC\n", v.Held)
	}
	switch {
	case v.Network == "":
		fmt.Fprint(w, "chain\tnone is configured (ANIMA_TREASURY_RPC_URL)\n")
	case !v.Known:
		fmt.Fprintf(w, "chain\tunknown on %s: %s\n", v.Network, v.Error)
	case v.Stale:
		fmt.Fprintf(w, "chain\t%s USDC on %s, stale: read %s at block %d (%s)\n", v.OnChain, v.Network, when(v.ReadAt), v.Block, v.Error)
	default:
		fmt.Fprintf(w, "chain\t%s USDC on %s at block %d\n", v.OnChain, v.Network, v.Block)
	}
	if f := v.Frozen; f != nil {
		fmt.Fprintf(w, "frozen\tsince %s: the ledger has %s more than the chain (anima ledger reconcile %s)\n", when(f.Since), f.Difference, v.Agent)
	}
	for _, d := range v.Deposits {
		fmt.Fprintf(w, "deposit\t%s USDC from %s, %s, block %d\n", d.Amount, d.From, d.State, d.Block)
	}
}

type walletChainCmd struct{}

func (walletChainCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetChain{}, func(w io.Writer, v api.ChainState) {
		state := "ok"
		if !v.OK {
			state = "not read: " + v.Error
		}
		fmt.Fprintf(w, "network\t%s (%d)\ntoken\t%s\nstate\t%s\n", v.Network, v.ChainID, v.Token, state)
		if v.ReadAt > 0 {
			fmt.Fprintf(w, "block\t%d, read %s\n", v.Block, when(v.ReadAt))
		}
		if v.Frozen > 0 {
			fmt.Fprintf(w, "frozen\t%d agents (anima ledger reconcile)\n", v.Frozen)
		}
	})
}

type walletFundCmd struct {
	Agent  string `arg:"" help:"The agent that receives USDC." predictor:"agent"`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request pays once."`
}

func (c walletFundCmd) Run(ctx context.Context, a *app) error {
	amount, err := positive(c.Amount)
	if err != nil {
		return err
	}
	req := api.FundUSDC{ID: cmp.Or(c.ID, "cli-"+uuid.NewString()), Agent: strings.ToLower(c.Agent), Amount: amount}
	return show(ctx, a, req, func(w io.Writer, v api.FundedUSDC) {
		if v.Tx == "" {
			fmt.Fprintf(w, "%s was paid before\n", req.ID)
			return
		}
		fmt.Fprintf(w, "paid %s USDC to %s in %s\n", req.Amount, v.Address, v.Tx)
	})
}

type walletBackupCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

func (c walletBackupCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.BackupWallet{Agent: strings.ToLower(c.Agent)}, func(w io.Writer, v api.WalletBackup) {
		fmt.Fprintln(w, v.Keystore)
	})
}

type walletRestoreCmd struct {
	Agent string `arg:"" help:"The agent."`
	File  string `arg:"" help:"The keystore, as anima wallet backup writes it; - for the standard input."`
}

func (c walletRestoreCmd) Run(ctx context.Context, a *app) error {
	var data []byte
	var err error
	if c.File == "-" {
		data, err = io.ReadAll(a.In)
	} else {
		data, err = os.ReadFile(c.File)
	}
	if err != nil {
		return failure(api.Invalid, "the keystore cannot be read: "+err.Error(), "name a readable file, or - for the standard input")
	}
	req := api.RestoreWallet{Agent: strings.ToLower(c.Agent), Keystore: strings.TrimSpace(string(data))}
	return show(ctx, a, req, func(w io.Writer, v api.Account) {
		fmt.Fprintf(w, "%s has the wallet %s\n", v.Agent, v.Address)
	})
}
