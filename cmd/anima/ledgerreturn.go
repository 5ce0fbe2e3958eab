package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type ledgerReturnCmd struct {
	Child  string `arg:"" help:"The agent that returns credits." predictor:"agent"`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request returns once."`
}

// Run has the child sign and presents what it has signed. Between the two nothing is
// stored, so an interrupted command can be repeated with its id.
func (c ledgerReturnCmd) Run(ctx context.Context, a *app) error {
	amount, err := positive(c.Amount)
	if err != nil {
		return err
	}
	id := cmp.Or(c.ID, "return-"+uuid.NewString())
	signed, err := ask[api.ReturnCredits](ctx, a, api.SignReturn{ID: id, Child: strings.ToLower(c.Child), Amount: amount})
	if err != nil {
		return err
	}
	err = show(ctx, a, signed, func(w io.Writer, v api.CreditsReturned) {
		fmt.Fprintf(w, "%s has returned %s to %s; %s are left\n", v.Child, v.Amount, v.Parent, v.Left)
	})
	return a.repeatable(err, "--id", id, "returns once")
}
