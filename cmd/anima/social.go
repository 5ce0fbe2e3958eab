package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/loop"
)

type socialCmd struct {
	Inbox socialInboxCmd `cmd:"" help:"List the messages that an agent received, the latest first."`
	Send  socialSendCmd  `cmd:"" help:"Send a message from one agent to another."`
	Card  socialCardCmd  `cmd:"" help:"Print an agent's card, by which others find it."`
}

type socialInboxCmd struct {
	watching
	paging
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Status string `help:"Only received, in_progress, processed or failed ones." enum:"received,in_progress,processed,failed," default:""`
}

func (c socialInboxCmd) Run(ctx context.Context, a *app) error {
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent}) // social answers with an empty inbox for an unknown agent
	if err != nil {
		return err
	}
	return show(ctx, a, api.ListInbox{Agent: g.ID, Status: c.Status, After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Inbox) {
		table(w, "RECEIVED\tSTATUS\tFROM\tMESSAGE", v.Messages, v.Page, func(m api.InboxMessage) []any {
			return []any{when(m.ReceivedAt), m.Status, plain(strings.TrimSpace(m.Peer + " " + m.From)), line(m.Content, 80)}
		})
	})
}

type socialSendCmd struct {
	Agent   string   `arg:"" help:"The agent that sends." predictor:"agent"`
	To      string   `arg:"" help:"The recipient: an agent of this installation, or an address." predictor:"agent"`
	Message []string `arg:"" help:"The message; - reads standard input."`
	ReplyTo string   `help:"The message that this answers." placeholder:"ID"`
}

func (c socialSendCmd) Run(ctx context.Context, a *app) error {
	text, err := a.message(c.Message)
	if err != nil {
		return err
	}
	to := c.To
	if !strings.HasPrefix(strings.ToLower(to), "0x") {
		g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: to})
		if err != nil {
			return err
		}
		to = g.Address
	}
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	sig, err := ask[api.Signature](ctx, a, api.SignMessage{Agent: g.ID, To: to, Content: text, SignedAt: at})
	if err != nil {
		return err
	}
	req := api.Send{From: sig.From, To: to, Content: text, SignedAt: at, Signature: sig.Signature, ReplyTo: c.ReplyTo}
	return show(ctx, a, req, func(w io.Writer, sent api.Sent) { fmt.Fprintf(w, "sent to %s as %s\n", to, sent.ID) })
}

type socialCardCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

func (c socialCardCmd) Run(ctx context.Context, a *app) error {
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	return writeJSON(a.Out, loop.CardOf(g))
}
