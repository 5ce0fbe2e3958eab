package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type ledgerCmd struct {
	Balance   ledgerBalanceCmd   `cmd:"" help:"Show the balances of agents, today or at a point in the past."`
	Entries   ledgerEntriesCmd   `cmd:"" help:"List transactions, the oldest first."`
	Export    ledgerExportCmd    `cmd:"" help:"Write transactions as CSV or JSON."`
	Transfer  ledgerTransferCmd  `cmd:"" help:"Move money from one agent to another."`
	Report    ledgerReportCmd    `cmd:"" help:"Show what agents earned and spent: burn rate, runway, cost of a turn."`
	Return    ledgerReturnCmd    `cmd:"" help:"Return credits of a child to its parent, by a message that the child signs."`
	TopUp     ledgerTopUpCmd     `cmd:"" name:"topup" help:"Buy credits for an agent with the USDC of its wallet."`
	Reconcile ledgerReconcileCmd `cmd:"" help:"Compare the USDC of the ledger with the chain."`
	Verify    ledgerVerifyCmd    `cmd:"" help:"Verify the whole ledger: sums, chain, holds."`
}

type ledgerBalanceCmd struct {
	Agent string `arg:"" optional:"" help:"Only this agent." predictor:"agent"`
	At    string `help:"At this time: 2026-11-21T08:00:00Z, 2026-11-21, or 36h (so long ago)." xor:"point" placeholder:"TIME"`
	Seq   int64  `help:"After this transaction." xor:"point" placeholder:"N"`
}

func (c ledgerBalanceCmd) Run(ctx context.Context, a *app) error {
	names := []string{strings.ToLower(c.Agent)}
	if c.Agent == "" {
		var err error
		if names, err = allAgents(ctx, a); err != nil {
			return err
		}
	}
	if c.At != "" || c.Seq != 0 {
		return c.balanceAt(ctx, a, names)
	}
	balances := []api.Balance{}
	for _, n := range names {
		v, err := ask[api.Balance](ctx, a, api.GetBalance{Agent: n})
		if err != nil {
			return err
		}
		balances = append(balances, v)
	}
	return a.print(balances, func(w io.Writer) {
		table(w, "AGENT\tAVAILABLE\tHELD\tTIER\tUSDC\tUSDC HELD", balances, api.Page{}, func(b api.Balance) []any {
			return []any{b.Agent, b.Available, b.Held, b.Tier, b.USDC, b.USDCHeld}
		})
	})
}

type ledgerEntriesCmd struct {
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	After int64  `help:"Only transactions after this sequence number."`
	Limit int    `help:"How many." default:"50"`
}

func (c ledgerEntriesCmd) Run(ctx context.Context, a *app) error {
	req := api.ListEntries{Agent: strings.ToLower(c.Agent), After: c.After, Limit: c.Limit}
	return listOf(ctx, a, req.Agent, req, func(v api.Entries) int { return len(v.Entries) }, func(w io.Writer, v api.Entries) {
		var page api.Page
		if n := len(v.Entries); v.More && n > 0 {
			page = api.Page{More: true, Next: strconv.FormatInt(v.Entries[n-1].Seq, 10)}
		}
		table(w, "SEQ\tTIME\tKIND\tPOSTINGS\tID", v.Entries, page, func(e api.Posted) []any {
			var sides []string
			for _, p := range e.Postings {
				sides = append(sides, p.Account+" "+p.Amount.String())
			}
			return []any{e.Seq, when(e.At), e.Kind, strings.Join(sides, ", "), e.ID}
		})
	})
}

type ledgerTransferCmd struct {
	From   string `arg:"" help:"The agent that pays." predictor:"agent"`
	To     string `arg:"" help:"The agent that receives the money." predictor:"agent"`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request transfers once."`
}

func (c ledgerTransferCmd) Run(ctx context.Context, a *app) error {
	amount, err := positive(c.Amount)
	if err != nil {
		return err
	}
	id := cmp.Or(c.ID, "transfer-"+uuid.NewString())
	req := api.Transfer{ID: id, From: strings.ToLower(c.From), To: strings.ToLower(c.To), Amount: amount, Memo: "ledger transfer"}
	err = show(ctx, a, req, func(w io.Writer, v api.Posted) {
		fmt.Fprintf(w, "%s has given %s to %s (transaction %d)\n", req.From, amount, req.To, v.Seq)
	})
	return a.repeatable(err, "--id", id, "transfers once")
}

type ledgerTopUpCmd struct {
	Agent string `arg:"" help:"The agent whose wallet pays." predictor:"agent"`
	USD   int64  `arg:"" help:"Dollars: 5, 25, 100, 500, 1000 or 2500."`
	ID    string `help:"Idempotency key: a repeated request buys once."`
}

func (c ledgerTopUpCmd) Run(ctx context.Context, a *app) error {
	req := api.TopUp{ID: cmp.Or(c.ID, "operator-"+uuid.NewString()), Agent: strings.ToLower(c.Agent), USD: c.USD}
	err := show(ctx, a, req, func(w io.Writer, v api.TopUpState) {
		fmt.Fprintf(w, "%s has bought credits for $%d: %s, before %s (%s)\n", v.Agent, v.USD, v.After, v.Before, v.State)
	})
	return a.repeatable(err, "--id", req.ID, "buys once")
}
