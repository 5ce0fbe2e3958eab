package main

import (
	"context"
	"fmt"
	"io"

	"github.com/anima-run/anima/pkg/api"
)

type agentDeleteCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Force  bool   `help:"Delete the agent although its account holds money, which stays on the account."`
	Forget bool   `help:"Erase its memories, its soul, its skills, its MCP servers and its folder. This cannot be undone."`
	Reason string `help:"The reason." default:"its creator does not need it any more"`
}

// Help returns the text that --help prints below the usage.
func (agentDeleteCmd) Help() string {
	return `The runs of the agent are cancelled, its sessions accept no messages, its goal is
cancelled and its schedule is cleared. Transcripts, decisions and the ledger stay. An
agent whose account holds money is not deleted: transfer the money first, or use
--force. Applying an AGENT.md of the same name restores the agent, with its account,
its main session and, without --forget, its memories.

Examples:
  anima agent delete lucky
  anima ledger transfer lucky bob 4.20 && anima agent delete lucky --forget`
}

func (c agentDeleteCmd) Run(ctx context.Context, a *app) error {
	req := api.DeleteAgent{Agent: c.Agent, Force: c.Force, Forget: c.Forget, Reason: c.Reason}
	return show(ctx, a, req, func(w io.Writer, v api.Deleted) {
		fmt.Fprintf(w, "%s is deleted since %s\n", v.Agent, when(v.At))
		if v.Left > 0 {
			fmt.Fprintf(w, "%s stays on its account %s\n", v.Left, v.Address)
		}
		if v.Forgotten {
			fmt.Fprintln(w, "its memories and its folder are erased")
		}
	})
}

type sessionCreateCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	ID    string `help:"Idempotency key: a repeated request creates one session."`
}

// Help returns the text that --help prints below the usage.
func (sessionCreateCmd) Help() string {
	return `Examples:
  anima session create lucky --id billing
  anima session send lucky "hello" --session $(anima session create lucky --id billing -o json | jq -r .id)`
}

func (c sessionCreateCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.CreateSession{Agent: c.Agent, ID: c.ID}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s\nanima session send %s \"…\" --session %s\n", v.ID, v.Agent, v.Agent, v.ID)
	})
}
