package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
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

// Help returns the text that --help prints below the usage.
func (socialInboxCmd) Help() string {
	return `The command does not consume the messages.

Examples:
  anima social inbox lucky --status received
  anima social inbox lucky --watch`
}

func (c socialInboxCmd) Run(ctx context.Context, a *app) error {
	return c.show(ctx, a, func(ctx context.Context, a *app) error {
		b, done, err := a.bus()
		if err != nil {
			return err
		}
		defer done()
		g, err := callFor[api.Agent](ctx, b, api.GetAgent{Agent: c.Agent}) // social answers with an empty inbox for an unknown agent
		if err != nil {
			return err
		}
		v, err := callFor[api.Inbox](ctx, b, api.ListInbox{Agent: g.ID, Status: c.Status, After: c.After, Limit: c.Limit})
		if err != nil {
			return err
		}
		return a.print(v, func(w io.Writer) {
			fmt.Fprintln(w, "RECEIVED\tSTATUS\tFROM\tMESSAGE")
			for _, m := range v.Messages {
				from := m.From
				if m.Peer != "" {
					from = m.Peer + " " + from
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", when(m.ReceivedAt), m.Status, plain(from), line(m.Content, 80))
			}
			more(w, v.Page)
		})
	})
}

type socialSendCmd struct {
	Agent   string   `arg:"" help:"The agent that sends." predictor:"agent"`
	To      string   `arg:"" help:"The recipient: an agent of this installation, or an address." predictor:"agent"`
	Message []string `arg:"" help:"The message; - reads standard input."`
	ReplyTo string   `help:"The message that this answers." placeholder:"ID"`
}

// Help returns the text that --help prints below the usage.
func (socialSendCmd) Help() string {
	return `The message is signed with the agent's wallet, and its sender is the agent.

Examples:
  anima social send lucky bob "are you there?"
  anima social send lucky 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed - < letter.txt`
}

func (c socialSendCmd) Run(ctx context.Context, a *app) error {
	text, err := a.message(c.Message)
	if err != nil {
		return err
	}
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	to := c.To
	if !strings.HasPrefix(strings.ToLower(to), "0x") {
		g, err := callFor[api.Agent](ctx, b, api.GetAgent{Agent: to})
		if err != nil {
			return err
		}
		to = g.Address
	}
	g, err := callFor[api.Agent](ctx, b, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	sig, err := callFor[api.Signature](ctx, b, api.SignMessage{Agent: g.ID, To: to, Content: text, SignedAt: at})
	if err != nil {
		return err
	}
	sent, err := callFor[api.Sent](ctx, b, api.Send{From: sig.From, To: to, Content: text, SignedAt: at, Signature: sig.Signature, ReplyTo: c.ReplyTo})
	if err != nil {
		return err
	}
	return a.print(sent, func(w io.Writer) { fmt.Fprintf(w, "sent to %s as %s\n", to, sent.ID) })
}

type socialCardCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

// Help returns the text that --help prints below the usage.
func (socialCardCmd) Help() string {
	return `The card has the format of an ERC-8004 registration file and is printed as JSON with
either value of -o.

Examples:
  anima social card lucky > agent-card.json`
}

// card is the agent card (docs/reference/platform.md, Agent card), in the form that
// existing agents read.
type card struct {
	Type        string        `json:"type"`
	Name        string        `json:"name"`
	Description string        `json:"description"`
	Services    []cardService `json:"services"`
	X402        bool          `json:"x402Support"`
	Active      bool          `json:"active"`
}

type cardService struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
}

func (c socialCardCmd) Run(ctx context.Context, a *app) error {
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	v := card{
		Type: "https://eips.ethereum.org/EIPS/eip-8004#registration-v1", Name: g.Name, Description: g.Description,
		Services: []cardService{{Name: "agentWallet", Endpoint: "eip155:8453:" + g.Address}}, Active: g.State != api.StateDead,
	}
	if v.Description == "" {
		v.Description = "Autonomous agent: " + g.Name
	}
	this := *a
	this.cli.Output = outputJSON
	return this.print(v, nil)
}
