package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type modelCmd struct {
	List  modelListCmd  `cmd:"" help:"List the models and their prices."`
	Route modelRouteCmd `cmd:"" help:"Show which model a call would use, and why."`

	Add      modelAddCmd      `cmd:"" help:"Declare a model that a provider serves, with its prices."`
	SetPrice modelSetPriceCmd `cmd:"" help:"Set the price of a model."`
	Remove   modelRemoveCmd   `cmd:"" help:"Remove a declared model, the prices set for a model, or a model that vanished."`
	Prices   modelPricesCmd   `cmd:"" help:"List the versions of the prices of a model."`
	Refresh  modelRefreshCmd  `cmd:"" help:"Read the lists of models of the providers now."`

	Matrix modelMatrixCmd `cmd:"" help:"Show or set the routing matrix: the models, limits and ceilings by tier and task."`
}

type modelRouteCmd struct {
	Agent        string `arg:"" optional:"" help:"The agent that would make the call; its tier, credits and model are used." predictor:"agent"`
	Tier         string `help:"Use this tier instead of the agent's: high, normal, low_compute, critical or dead." enum:"high,normal,low_compute,critical,dead," default:""`
	Task         string `help:"Purpose of the call: agent_turn, heartbeat_triage, safety_check, summarization or planning." enum:"agent_turn,heartbeat_triage,safety_check,summarization,planning" default:"agent_turn"`
	Model        string `help:"Use this model as the preferred one instead of the agent's."`
	PromptTokens int64  `help:"Tokens of the prompt, with its tools." default:"4000"`
	Tools        int64  `help:"Tokens of the tools in the prompt; 0 is a prompt without tools." default:"2000"`
	Images       int64  `help:"Images in the prompt; their tokens are part of it." default:"0"`
	MaxTokens    int64  `help:"Output limit of the call; 0 is that of the routing matrix." default:"0"`
	Explain      bool   `help:"Show all candidates, and why each of them is not used."`
}

func (c modelRouteCmd) Run(ctx context.Context, a *app) error {
	if c.Agent == "" && c.Tier == "" {
		return failure(api.Invalid, "neither an agent nor a tier is given", "name an agent, or a tier with --tier")
	}
	req := api.ExplainRoute{
		Agent: strings.ToLower(c.Agent), Tier: api.Tier(c.Tier), Task: api.Task(c.Task), Model: c.Model,
		PromptTokens: max(c.PromptTokens, c.Tools), ToolTokens: c.Tools, Images: c.Images, MaxTokens: c.MaxTokens,
	}
	if c.Agent != "" && c.Model == "" {
		agent, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: req.Agent})
		if err != nil {
			return err
		}
		req.Model, req.LowCompute = cmp.Or(agent.Chosen, agent.Model), agent.LowCompute && c.Tier == ""
	}
	v, err := showAnswer(ctx, a, req, func(w io.Writer, v api.Route) {
		fmt.Fprintf(w, "tier\t%s\ntask\t%s\nmodel\t%s\n", cmp.Or(string(v.Tier), "unknown"), v.Task, cmp.Or(v.Chosen, "-"))
		if c.Explain {
			explainRoute(w, v)
		}
	})
	if err == nil && v.Chosen == "" {
		err = failure(api.Unavailable, "no model can be used for this call", "see the reasons with --explain; anima model list shows all models")
	}
	return err
}

func explainRoute(w io.Writer, v api.Route) {
	fmt.Fprintf(w, "output\t%s\nceiling\t%s\navailable\t%s\ntimeout\t%d s\n\n",
		orNone(v.MaxTokens, 0, "not served"), orNone(v.Ceiling, -1, "none"), orNone(v.Available, -1, "not considered"), v.TimeoutMS/1000)
	table(w, "MODEL\tPROVIDER\tOUTPUT\tAT MOST\tUSED", v.Candidates, api.Page{}, func(m api.Candidate) []any {
		used := yesOrWhy(m.Usable, m.Why)
		switch {
		case !m.Usable:
		case m.Model != v.Chosen:
			used = "if the ones before fail"
		case m.Fewer:
			used = "yes, with a lower output limit"
		case m.WithoutTools:
			used = "yes, without tools"
		}
		return []any{m.Model, cmp.Or(m.Provider, "-"), m.MaxTokens, m.Cost, used}
	})
}

// orNone returns v as a text, or word if v is none.
func orNone[T comparable](v, none T, word string) string {
	if v == none {
		return word
	}
	return fmt.Sprint(v)
}
