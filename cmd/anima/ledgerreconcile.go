package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type ledgerReconcileCmd struct {
	Agent  string `arg:"" optional:"" help:"Only this agent." predictor:"agent"`
	Accept string `help:"Accept the difference of a frozen agent, which can spend USDC again. The note says why the difference is right." placeholder:"NOTE"`
}

// Run fails if the ledger and the chain differ, so that a script notices it.
func (c ledgerReconcileCmd) Run(ctx context.Context, a *app) error {
	agent := strings.ToLower(c.Agent)
	if c.Accept != "" {
		if agent == "" {
			return failure(api.Invalid, "--accept has no agent", "name one: anima ledger reconcile AGENT --accept NOTE")
		}
		return show(ctx, a, api.ResolveFreeze{Agent: agent, Note: c.Accept}, writeWallet)
	}
	r, err := showAnswer(ctx, a, api.ReconcileLedger{Agent: agent}, func(w io.Writer, v api.Reconciliation) {
		fmt.Fprintf(w, "%s at block %d (%s)\n", v.Network, v.Block, v.Hash)
		table(w, "AGENT\tLEDGER\tCHAIN\tHELD\tDIFFERENCE\tFROZEN", v.Accounts, api.Page{}, func(r api.Reconciled) []any {
			return []any{r.Agent, r.Ledger, r.Chain, r.Held, r.Difference, r.Frozen}
		})
	})
	if err == nil && !r.OK {
		return failure(api.Conflict, "the ledger and the chain differ", "explain the difference, then accept it: anima ledger reconcile AGENT --accept NOTE")
	}
	return err
}
