package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type toolCmd struct {
	List toolListCmd `cmd:"" help:"List the tools, the service that executes each, and why a tool cannot be used."`
}

type toolListCmd struct {
	Agent  string `arg:"" optional:"" help:"Only tools of this agent, including those of its MCP servers." predictor:"agent"`
	All    bool   `help:"With an agent: also the tools that its AGENT.md does not grant."`
	Usable bool   `help:"Only tools that can be used."`
}

// Help returns the text that --help prints below the usage.
func (toolListCmd) Help() string {
	return `DEFAULT marks the tools of an AGENT.md that names none.

Examples:
  anima tool list --usable
  anima tool list lucky
  anima tool list lucky --all -o json`
}

func (c toolListCmd) Run(ctx context.Context, a *app) error {
	v, err := ask[api.Tools](ctx, a, api.ListTools{Agent: c.Agent})
	if err != nil {
		return err
	}
	shown := []api.ToolInfo{}
	for _, t := range v.Tools {
		if (c.Agent == "" || c.All || t.Granted) && (t.Executable || !c.Usable) {
			shown = append(shown, t)
		}
	}
	v.Tools = shown
	return a.print(v, func(w io.Writer) {
		fmt.Fprintln(w, "TOOL\tOWNER\tRISK\tUSABLE\tGRANTED\tDEFAULT\tDOES")
		for _, t := range v.Tools {
			owner := t.Owner.Service()
			if t.Server != "" {
				owner = "MCP server " + t.Server
			}
			usable, granted := "yes", "-"
			if !t.Executable {
				usable = "no: " + t.Why
			}
			if c.Agent != "" {
				granted = yes(t.Granted)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, owner, t.Risk, usable, granted, yes(t.Default), line(t.Does, 80))
		}
	})
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

type skillCmd struct {
	List skillListCmd `cmd:"" help:"List an agent's skills, and whether each is shown to it."`
	Show skillShowCmd `cmd:"" help:"Print a skill's instructions."`
}

type skillListCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

func (c skillListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListSkills{Agent: c.Agent}, func(w io.Writer, v api.Skills) {
		fmt.Fprintln(w, "SKILL\tUSABLE\tSTATUS\tFROM\tDESCRIPTION")
		for _, s := range v.Skills {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, yes(s.Usable), line(s.Status, 60), line(s.Origin, 40), line(s.Description, 60))
			for _, f := range s.Faults {
				fmt.Fprintf(w, "\t\t%s\n", line(f, 120))
			}
		}
	})
}

type skillShowCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Skill string `arg:"" help:"The skill."`
}

func (c skillShowCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetSkill{Agent: c.Agent, Skill: c.Skill}, func(w io.Writer, s api.Skill) {
		fmt.Fprintf(w, "skill\t%s\nstatus\t%s\nfrom\t%s\ndescription\t%s\n", s.Name, line(s.Status, 200), line(s.Origin, 200), line(s.Description, 500))
		for _, f := range s.Faults {
			fmt.Fprintf(w, "fault\t%s\n", line(f, 200))
		}
		fmt.Fprintf(w, "\n%s\n", strings.TrimRight(plain(s.Instructions), "\n"))
	})
}

type serverCmd struct {
	List serverListCmd `cmd:"" help:"List an agent's MCP servers, their tools and their errors."`
}

type serverListCmd struct {
	watching
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Connect bool   `help:"Connect to all of them first, so that their errors are shown."`
}

// Help returns the text that --help prints below the usage.
func (serverListCmd) Help() string {
	return `A server is idle until its tools are needed. Credentials are not shown.

Examples:
  anima server list lucky --connect`
}

func (c serverListCmd) Run(ctx context.Context, a *app) error {
	return c.show(ctx, a, func(ctx context.Context, a *app) error {
		return show(ctx, a, api.ListServers{Agent: c.Agent, Connect: c.Connect}, func(w io.Writer, v api.Servers) {
			fmt.Fprintln(w, "SERVER\tSTATE\tTOOLS\tREACHED BY\tERROR")
			for _, s := range v.Servers {
				retry := ""
				if s.RetryAt != 0 {
					retry = " (retried at " + when(s.RetryAt) + ")"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", s.Name, s.State, len(s.Tools), line(s.Program+s.Address, 60), or(line(s.Error, 200)+retry))
				for _, r := range s.Refused {
					fmt.Fprintf(w, "\t\t\tnot used: %s\n", line(r, 160))
				}
			}
		})
	})
}

type policyCheckCmd struct {
	Tool  string `arg:"" help:"The tool."`
	Args  string `arg:"" optional:"" help:"Its arguments, a JSON object." default:"{}"`
	Agent string `help:"The agent that would call it; needed when there are several." predictor:"agent"`
	By    string `help:"Principal of the turn: creator, self, heartbeat, peer or external." enum:"creator,self,heartbeat,peer,external" default:"creator"`
}

// Help returns the text that --help prints below the usage.
func (policyCheckCmd) Help() string {
	return `Nothing is executed and nothing is recorded. The command fails when the call is
not allowed.

Examples:
  anima policy check exec '{"command":"rm -rf /"}' --agent lucky
  anima policy check transfer_credits '{"to_address":"0x…","amount_cents":5}' --by peer`
}

func (c policyCheckCmd) Run(ctx context.Context, a *app) error {
	if !json.Valid([]byte(c.Args)) {
		return &api.Error{Code: api.Invalid, Message: "the arguments are not JSON", Next: `write an object, in quotes for the shell: '{"command":"ls"}'`}
	}
	if c.Agent == "" {
		all, err := ask[api.Agents](ctx, a, api.ListAgents{Limit: 2})
		if err != nil {
			return err
		}
		if len(all.Agents) != 1 {
			return &api.Error{Code: api.Invalid, Message: "no agent is named, and there is not exactly one", Next: "name one with --agent; anima agent list lists the agents"}
		}
		c.Agent = all.Agents[0].ID
	}
	d, err := ask[api.Decision](ctx, a, api.CheckTool{Agent: c.Agent, Tool: c.Tool, Args: json.RawMessage(c.Args), By: api.PrincipalKind(c.By)})
	if err != nil {
		return err
	}
	if err := a.print(d, func(w io.Writer) {
		fmt.Fprintf(w, "action\t%s\ncode\t%s\nrisk\t%s\nauthority\t%d (%s)\n", d.Action, d.Code, d.Risk, d.Authority, d.By.Kind)
		if d.Message != "" {
			fmt.Fprintf(w, "why\t%s\n", indent(d.Message))
		}
		fmt.Fprintf(w, "rules\t%s\ntriggered\t%s\n", strings.Join(d.Evaluated, " "), or(strings.Join(d.Triggered, " ")))
	}); err != nil {
		return err
	}
	if d.Action != api.Allow {
		return &api.Error{Code: api.Denied, Message: fmt.Sprintf("%s would not be allowed to call %s: %s", d.Agent, d.Tool, d.Code), Next: "anima policy rules shows what each rule does"}
	}
	return nil
}
