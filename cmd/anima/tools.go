package main

import (
	"cmp"
	"context"
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
		table(w, "TOOL\tOWNER\tRISK\tUSABLE\tGRANTED\tDEFAULT\tDOES", v.Tools, api.Page{}, func(t api.ToolInfo) []any {
			owner, granted := t.Owner.Service(), "-"
			if t.Server != "" {
				owner = "MCP server " + t.Server
			}
			if c.Agent != "" {
				granted = yes(t.Granted)
			}
			return []any{t.Name, owner, t.Risk, yesOrWhy(t.Executable, t.Why), granted, yes(t.Default), line(t.Does, 80)}
		})
	})
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
			row(w, s.Name, yes(s.Usable), line(s.Status, 60), line(s.Origin, 40), line(s.Description, 60))
			for _, f := range s.Faults {
				row(w, "", "", line(f, 120))
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
			row(w, "fault", line(f, 200))
		}
		fmt.Fprintf(w, "\n%s\n", verbatim(strings.TrimRight(s.Instructions, "\n")))
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

func (c serverListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListServers{Agent: c.Agent, Connect: c.Connect}, func(w io.Writer, v api.Servers) {
		fmt.Fprintln(w, "SERVER\tSTATE\tTOOLS\tREACHED BY\tERROR")
		for _, s := range v.Servers {
			fault := line(s.Error, 200)
			if s.RetryAt != 0 {
				fault += " (retried at " + when(s.RetryAt) + ")"
			}
			row(w, s.Name, s.State, len(s.Tools), line(s.Program+s.Address, 60), cmp.Or(fault, "-"))
			for _, r := range s.Refused {
				row(w, "", "", "", "not used: "+line(r, 160))
			}
		}
	})
}
