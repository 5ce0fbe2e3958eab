package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type walletCmd struct {
	Show    walletShowCmd    `cmd:"" help:"Show the wallet of an agent: its USDC on the chain and in the ledger, and its deposits."`
	Fund    walletFundCmd    `cmd:"" help:"Give USDC of the dev chain to the wallet of an agent."`
	Backup  walletBackupCmd  `cmd:"" help:"Write the wallet of an agent to a file, encrypted."`
	Restore walletRestoreCmd `cmd:"" help:"Store the wallet of an agent that has none, from a backup."`
	Rotate  walletRotateCmd  `cmd:"" help:"Give an agent another wallet, and move its USDC there."`
}

type walletShowCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	watching
}

func (c walletShowCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetWallet{Agent: strings.ToLower(c.Agent)}, a.writeWallet)
}

func (a *app) writeWallet(w io.Writer, v api.WalletState) {
	fields(w, "agent", v.Agent, "address", v.Address, "earlier", strings.Join(v.Earlier, " "), "network", cmp.Or(v.Network, "none: treasury has no chain"))
	switch {
	case v.Network == "":
	case !v.Known:
		row(w, "on chain", "not known: "+plain(v.Error))
	case v.Stale:
		row(w, "on chain", fmt.Sprintf("%s, stale: of block %d, read %s", v.OnChain, v.Block, when(v.ReadAt)))
		row(w, "", plain(v.Error))
	default:
		row(w, "on chain", fmt.Sprintf("%s at block %d", v.OnChain, v.Block))
	}
	for _, e := range v.Left {
		row(w, "earlier wallet", fmt.Sprintf("%s at %s", e.OnChain, e.Address))
		row(w, "", a.named("anima wallet rotate "+v.Agent+" --address "+e.Address+" moves it"))
	}
	held := ""
	if v.Held > 0 {
		held = fmt.Sprintf(", %s of it held for payments", v.Held)
	}
	row(w, "in the ledger", v.Ledger.String()+held)
	if f := v.Frozen; f != nil {
		row(w, "frozen", fmt.Sprintf("since %s: the ledger and the chain differ by %s at block %d", when(f.Since), f.Difference, f.Block))
		row(w, "", a.named("anima ledger reconcile "+v.Agent))
	}
	if len(v.Deposits) == 0 {
		return
	}
	fmt.Fprintln(w)
	table(w, "DEPOSIT\tAMOUNT\tSTATE\tBLOCK\tFROM\tTRANSACTION", v.Deposits, api.Page{}, func(d api.ChainDeposit) []any {
		return []any{when(d.SeenAt), d.Amount, d.State, d.Block, d.From, d.Tx}
	})
}

type walletFundCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Amount string `arg:"" help:"Dollars of USDC: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request pays once."`
}

func (c walletFundCmd) Run(ctx context.Context, a *app) error {
	amount, err := positive(c.Amount)
	if err != nil {
		return err
	}
	req := api.FundUSDC{ID: cmp.Or(c.ID, "wallet-"+uuid.NewString()), Agent: strings.ToLower(c.Agent), Amount: amount}
	err = show(ctx, a, req, func(w io.Writer, v api.FundedUSDC) {
		if v.Tx == "" {
			fmt.Fprintf(w, "the id was used before: nothing was paid to %s\n", v.Address)
			return
		}
		fmt.Fprintf(w, "%s of USDC to %s in %s\n", amount, v.Address, v.Tx)
	})
	return a.repeatable(err, "--id", req.ID, "pays once")
}

type walletBackupCmd struct {
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Address string `help:"The address of an earlier wallet of the agent, which was rotated." placeholder:"ADDRESS"`
	File    string `short:"f" help:"The new file; without it the backup is written to the standard output." placeholder:"FILE"`
}

// Run writes the keystore itself, in the format that other wallets read too.
func (c walletBackupCmd) Run(ctx context.Context, a *app) error {
	v, err := ask[api.WalletBackup](ctx, a, api.BackupWallet{Agent: strings.ToLower(c.Agent), Address: c.Address})
	if err != nil {
		return err
	}
	if c.File == "" {
		return a.print(v, func(w io.Writer) { fmt.Fprintln(w, v.Keystore) })
	}
	err = createFile(c.File, []byte(v.Keystore+"\n"))
	switch {
	case errors.Is(err, fs.ErrExist):
		return failure(api.Conflict, c.File+" exists", "name a new file: a backup of another wallet is not replaced")
	case err != nil:
		return failure(api.Invalid, "the backup cannot be written: "+err.Error(), "name a file in a folder that you may write")
	}
	saved := struct {
		Agent   string `json:"agent"`
		Address string `json:"address"`
		File    string `json:"file"`
	}{v.Agent, v.Address, c.File}
	return a.print(saved, func(w io.Writer) {
		fmt.Fprintf(w, "the wallet %s of %s is in %s; only the passphrase of treasury opens it\n", v.Address, v.Agent, c.File)
	})
}

type walletRestoreCmd struct {
	Agent string `arg:"" help:"The agent, which has no wallet yet." predictor:"agent"`
	File  string `arg:"" help:"The backup; - for the standard input."`
}

func (c walletRestoreCmd) Run(ctx context.Context, a *app) error {
	keystore, err := a.readText(c.File, "name a backup; anima wallet backup writes one")
	if err != nil {
		return err
	}
	req := api.RestoreWallet{Agent: strings.ToLower(c.Agent), Keystore: strings.TrimSpace(keystore)}
	return show(ctx, a, req, func(w io.Writer, v api.Account) {
		fmt.Fprintf(w, "the wallet of %s is %s\n", v.Agent, v.Address)
	})
}

type walletRotateCmd struct {
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Address string `help:"The address of the wallet to replace; default is that of the present one. A repeated command with it rotates once. With that of an earlier wallet, the USDC that is left there is moved." placeholder:"ADDRESS"`
}

func (c walletRotateCmd) Run(ctx context.Context, a *app) error {
	req := api.RotateWallet{Agent: strings.ToLower(c.Agent), Address: c.Address}
	if req.Address == "" {
		v, err := ask[api.WalletState](ctx, a, api.GetWallet{Agent: req.Agent})
		if err != nil {
			return err
		}
		req.Address = v.Address
	}
	err := show(ctx, a, req, func(w io.Writer, v api.RotatedWallet) {
		fmt.Fprintf(w, "the wallet of %s is %s, and was %s\n", v.Agent, v.Address, v.Earlier)
		if v.Moved > 0 {
			fmt.Fprintf(w, "%s of USDC moved in %s\n", v.Moved, v.Tx)
		}
	})
	return a.repeatable(err, "--address", req.Address, "rotates once")
}
