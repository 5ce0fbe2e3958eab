package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type ledgerTransferCmd struct {
	From   string `arg:"" help:"The agent that pays."`
	To     string `arg:"" help:"The agent that receives the money."`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request transfers once."`
}

// Help returns the text that --help prints below the usage.
func (ledgerTransferCmd) Help() string {
	return `Money that is held for a turn under way cannot be moved.

Examples:
  anima ledger transfer rich lucky 5
  anima ledger transfer rich lucky 0.25 --id monday`
}

func (c ledgerTransferCmd) Run(ctx context.Context, a *app) error {
	amount, err := api.ParseMicros(c.Amount)
	if err != nil {
		return err
	}
	if amount == 0 {
		return &api.Error{Code: api.Invalid, Message: "the amount is zero", Next: "name an amount above zero"}
	}
	if c.ID == "" {
		c.ID = "transfer-" + uuid.NewString()
	}
	req := api.Transfer{ID: c.ID, From: strings.ToLower(c.From), To: strings.ToLower(c.To), Amount: amount, Memo: "ledger transfer"}
	return show(ctx, a, req, func(w io.Writer, v api.Posted) {
		fmt.Fprintf(w, "%s has given %s to %s (transaction %d)\n", req.From, amount, req.To, v.Seq)
	})
}
