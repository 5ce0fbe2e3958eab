package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type paymentCmd struct {
	List  paymentListCmd  `cmd:"" help:"List the payments that agents made over HTTP, the newest first."`
	Show  paymentShowCmd  `cmd:"" help:"Show a payment with the answer of its seller."`
	Fetch paymentFetchCmd `cmd:"" help:"Make an HTTP request for an agent, and pay for it in USDC if the seller demands it."`
}

type paymentListCmd struct {
	Agent  string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	State  string `help:"Only payments in this state: intended, free, held, signed, submitted, unknown, settled, expired or failed."`
	Before int64  `help:"Only payments created before this time, in Unix microseconds."`
	Limit  int    `help:"How many." default:"50"`
}

func (c paymentListCmd) Run(ctx context.Context, a *app) error {
	req := api.ListPayments{Agent: strings.ToLower(c.Agent), State: api.PaymentState(c.State), Before: c.Before, Limit: c.Limit}
	return listOf(ctx, a, req.Agent, req, func(v api.Payments) int { return len(v.Payments) }, func(w io.Writer, v api.Payments) {
		table(w, "TIME\tAGENT\tSTATE\tAMOUNT\tURL\tID", v.Payments, api.Page{}, func(p api.Payment) []any {
			return []any{when(p.CreatedAt), p.Agent, p.State, p.Amount, p.URL, p.ID}
		})
		if n := len(v.Payments); v.More && n > 0 {
			fmt.Fprintf(w, "… more: --before %s\n", strconv.FormatInt(v.Payments[n-1].CreatedAt, 10))
		}
	})
}

type paymentShowCmd struct {
	ID string `arg:"" help:"The payment, as anima payment list shows it."`
}

func (c paymentShowCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetPayment{ID: c.ID}, writePayment)
}

func writePayment(w io.Writer, p api.Payment) {
	fmt.Fprintf(w, "%s: %s %s\n", p.State, p.Method, p.URL)
	if p.Amount > 0 {
		fmt.Fprintf(w, "amount\t%s on %s\npayer\t%s\npayee\t%s\nnonce\t%s\n", p.Amount, p.Network, p.Payer, p.Payee, p.Nonce)
	}
	if p.Transaction != "" {
		fmt.Fprintf(w, "transaction\t%s\n", p.Transaction)
	}
	if p.Reason != "" {
		fmt.Fprintf(w, "reason\t%s\n", line(p.Reason, 300))
	}
	if p.Status > 0 {
		fmt.Fprintf(w, "answer\t%d %s, %d bytes\n\n%s\n", p.Status, p.ContentType, len(p.Body), verbatim(string(p.Body)))
	}
}

type paymentFetchCmd struct {
	Agent  string `arg:"" help:"The agent that pays." predictor:"agent"`
	URL    string `arg:"" help:"The address to fetch."`
	Method string `help:"GET, POST, PUT, PATCH or DELETE." default:"GET"`
	Body   string `help:"A file with the body of the request; - for the standard input." placeholder:"FILE"`
	Max    string `help:"Dollars that may be paid at most: 1, 0.25." placeholder:"DOLLARS"`
	ID     string `help:"Idempotency key: a repeated request pays once and has the stored answer."`
}

func (c paymentFetchCmd) Run(ctx context.Context, a *app) error {
	req := api.Pay{ID: cmp.Or(c.ID, "cli-"+uuid.NewString()), Agent: strings.ToLower(c.Agent), Method: c.Method, URL: c.URL}
	var err error
	if c.Max != "" {
		if req.Max, err = positive(c.Max); err != nil {
			return err
		}
	}
	switch c.Body {
	case "":
	case "-":
		req.Body, err = io.ReadAll(a.stdin())
	default:
		req.Body, err = os.ReadFile(c.Body)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil {
		return failure(api.Invalid, "the body cannot be read: "+err.Error(), "name a readable file, or - for the standard input")
	}
	return a.repeatable(show(ctx, a, req, writePayment), "--id", req.ID, "pays once")
}
