package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/anima-run/anima/pkg/api"
)

type agentModelCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Model string `arg:"" optional:"" help:"The model to prefer; by default that of the definition."`
	Low   bool   `help:"Low compute: at most the tier low_compute, and prompts of at most 32,000 tokens."`
}

func (c agentModelCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ChooseModel{Agent: c.Agent, Model: c.Model, LowCompute: c.Low}, func(w io.Writer, v api.Agent) {
		fmt.Fprintf(w, "%s prefers %s from its next model call on%s\n", v.ID, cmp.Or(v.Chosen, v.Model, "the model that the router chooses"), lowCompute(v))
	})
}

// lowCompute names low compute if the agent is in it.
func lowCompute(v api.Agent) string {
	if v.LowCompute {
		return ", in low compute"
	}
	return ""
}
