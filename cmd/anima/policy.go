package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type policyCmd struct {
	Rules     policyRulesCmd     `cmd:"" help:"List the rules in the order they are evaluated."`
	Decisions policyDecisionsCmd `cmd:"" help:"List decisions, the latest first."`
	Check     policyCheckCmd     `cmd:"" help:"Check whether a call would be allowed, and why."`
}

type policyRulesCmd struct{}

func (policyRulesCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListRules{}, func(w io.Writer, v api.Rules) {
		table(w, "version "+v.Version+"\n\nPRIORITY\tRULE\tTOOLS\tDOES", v.Rules, api.Page{}, func(r api.Rule) []any {
			return []any{r.Priority, r.ID, line(cmp.Or(strings.Join(r.Tools, " "), "all"), 40), r.Does}
		})
	})
}

type policyDecisionsCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	Turn  string `help:"Only this turn's."`
}

func (c policyDecisionsCmd) Run(ctx context.Context, a *app) error {
	req := api.ListDecisions{Agent: strings.ToLower(c.Agent), Turn: c.Turn, After: c.After, Limit: c.Limit}
	return listOf(ctx, a, req.Agent, req, func(v api.Decisions) int { return len(v.Decisions) }, func(w io.Writer, v api.Decisions) {
		table(w, "TIME\tAGENT\tTOOL\tBY\tACTION\tCODE\tWHY", v.Decisions, v.Page, func(d api.Decision) []any {
			return []any{when(d.At), d.Agent, d.Tool, d.By.Kind, d.Action, d.Code, line(d.Message, 60)}
		})
	})
}

type policyCheckCmd struct {
	Tool  string `arg:"" help:"The tool."`
	Args  string `arg:"" optional:"" help:"Its arguments, a JSON object." default:"{}"`
	Agent string `help:"The agent that would call it; needed when there are several." predictor:"agent"`
	By    string `help:"Principal of the turn: creator, self, heartbeat, peer or external." enum:"creator,self,heartbeat,peer,external" default:"creator"`
}

func (c policyCheckCmd) Run(ctx context.Context, a *app) error {
	if !json.Valid([]byte(c.Args)) {
		return failure(api.Invalid, "the arguments are not JSON", `write an object, in quotes for the shell: '{"command":"ls"}'`)
	}
	if c.Agent == "" {
		all, err := ask[api.Agents](ctx, a, api.ListAgents{Limit: 2})
		if err != nil {
			return err
		}
		if len(all.Agents) != 1 {
			return failure(api.Invalid, "no agent is named, and there is not exactly one", "name one with --agent; anima agent list lists the agents")
		}
		c.Agent = all.Agents[0].ID
	}
	req := api.CheckTool{Agent: c.Agent, Tool: c.Tool, Args: json.RawMessage(c.Args), By: api.PrincipalKind(c.By)}
	d, err := showAnswer(ctx, a, req, func(w io.Writer, d api.Decision) {
		fmt.Fprintf(w, "action\t%s\ncode\t%s\nrisk\t%s\nauthority\t%d (%s)\n", d.Action, d.Code, d.Risk, d.Authority, d.By.Kind)
		fields(w, "why", indent(d.Message))
		row(w, "rules", strings.Join(d.Evaluated, " "))
		row(w, "triggered", cmp.Or(strings.Join(d.Triggered, " "), "-"))
	})
	if err == nil && d.Action != api.Allow {
		err = failure(api.Denied, fmt.Sprintf("%s would not be allowed to call %s: %s", d.Agent, d.Tool, d.Code), "anima policy rules shows what each rule does")
	}
	return err
}

// yesOrWhy returns "yes" for what can be used, otherwise the reason.
func yesOrWhy(usable bool, why string) string {
	if usable {
		return "yes"
	}
	return "no: " + why
}
