package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type chainCmd struct{ watching }

func (chainCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetChain{}, func(w io.Writer, v api.ChainState) {
		state := "ok"
		if !v.OK {
			state = "not read: " + plain(v.Error)
		}
		fields(w, "network", fmt.Sprintf("%s (%d)", v.Network, v.ChainID), "token", v.Token, "state", state)
		row(w, "last block", v.Block)
		row(w, "read", when(v.ReadAt))
		if v.Frozen > 0 {
			row(w, "frozen", fmt.Sprintf("%d agents: %s", v.Frozen, a.named("anima ledger reconcile")))
		}
	})
}

type ledgerReconcileCmd struct {
	Agent  string `arg:"" optional:"" help:"Only this agent." predictor:"agent"`
	Accept string `help:"Accept the difference of the frozen agent, with the reason; it can spend USDC again." placeholder:"REASON"`
}

// Run fails if the ledger and the chain differ, so that a script sees it.
func (c ledgerReconcileCmd) Run(ctx context.Context, a *app) error {
	agent := strings.ToLower(c.Agent)
	if c.Accept != "" {
		if agent == "" {
			return failure(api.Invalid, "--accept needs an agent", "anima ledger reconcile AGENT --accept REASON")
		}
		if _, err := ask[api.WalletState](ctx, a, api.ResolveFreeze{Agent: agent, Note: c.Accept}); err != nil {
			return err
		}
	}
	v, err := showAnswer(ctx, a, api.ReconcileLedger{Agent: agent}, writeReconciliation)
	if err == nil && !v.OK {
		err = failure(api.Internal, "the ledger and the chain differ",
			"a payment in progress ends by itself; otherwise find the transaction and accept the difference: anima ledger reconcile AGENT --accept REASON")
	}
	return err
}

func writeReconciliation(w io.Writer, v api.Reconciliation) {
	fmt.Fprintf(w, "%s at block %d, %s\n\n", v.Network, v.Block, v.Hash)
	table(w, "AGENT\tLEDGER\tCHAIN\tHELD\tDIFFERENCE\tSTATE\tADDRESS", v.Accounts, api.Page{}, func(r api.Reconciled) []any {
		state := "ok"
		switch {
		case r.Frozen:
			state = "frozen"
		case r.Difference != 0:
			state = "differs"
		}
		return []any{r.Agent, r.Ledger, r.Chain, r.Held, r.Difference, state, r.Address}
	})
	for _, r := range v.Accounts {
		for _, nonce := range r.Used {
			fmt.Fprintf(w, "%s: authorization %s was used since the last agreement\n", r.Agent, nonce)
		}
	}
}
