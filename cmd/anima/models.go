package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

type modelListCmd struct{}

func (modelListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListModels{}, writeModels)
}

func writeModels(w io.Writer, v api.Models) {
	table(w, "MODEL\tPROVIDER\tFROM\tIN/M\tOUT/M\tPRICE\tCONTEXT\tUSABLE", v.Models, api.Page{}, func(m api.Model) []any {
		in, out, version := m.InputPrice.String(), m.OutputPrice.String(), "-"
		if m.PriceUnknown {
			in, out = "?", "?"
		}
		if m.PriceVersion > 0 {
			version = fmt.Sprintf("v%d", m.PriceVersion)
		}
		return []any{m.ID, m.Provider, cmp.Or(m.Lifecycle, "-"), in, out, version, m.ContextWindow, modelUse(m)}
	})
	for _, f := range v.Faults {
		fmt.Fprintf(w, "\nno list of models from %s\n", f)
	}
}

// modelUse says whether a model is called, and why not. A model whose breaker is open is
// usable, but not called for a time.
func modelUse(m api.Model) string {
	if !m.Usable || m.Breaker == "" {
		return yesOrWhy(m.Usable, m.Why)
	}
	text := "breaker " + m.Breaker
	if m.Breaker == "open" {
		text += " until " + clockTime(m.BreakerUntil)
	}
	if m.BreakerReason != "" {
		text += ": " + m.BreakerReason
	}
	return text
}

type modelRefreshCmd struct{}

func (modelRefreshCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.RefreshModels{}, writeModels)
}

// priceFlags are the prices of a model in dollars for a million tokens.
type priceFlags struct {
	In        dollars `help:"Price of a million tokens of the prompt, in dollars; 0 is free." placeholder:"DOLLARS" required:""`
	Out       dollars `help:"Price of a million tokens of the answer, in dollars; 0 is free." placeholder:"DOLLARS" required:""`
	Cached    dollars `help:"Price of a million tokens of the prompt that are read from the provider's cache; 0 is that of --in." placeholder:"DOLLARS" default:"0"`
	Write     dollars `help:"Price of a million tokens of the prompt that are written to the provider's cache; 0 is that of --in." placeholder:"DOLLARS" default:"0"`
	Reasoning dollars `help:"Price of a million tokens of the answer that are not part of its text; 0 is that of --out." placeholder:"DOLLARS" default:"0"`
}

func (f priceFlags) prices() api.Prices {
	return api.Prices{Input: api.Micros(f.In), Output: api.Micros(f.Out), Cached: api.Micros(f.Cached), Write: api.Micros(f.Write), Reasoning: api.Micros(f.Reasoning)}
}

// dollars is a flag with an amount of dollars.
type dollars api.Micros

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *dollars) UnmarshalText(text []byte) error {
	v, err := api.ParseMicros(string(text))
	*d = dollars(v)
	return err
}

type modelAddCmd struct {
	priceFlags

	Model     string `arg:"" help:"Id of the model, as its provider names it."`
	Provider  string `help:"The provider; empty is the first configured one." default:""`
	Window    int64  `help:"Context window in tokens; 0 is unknown." default:"0"`
	MaxOutput int64  `help:"Output limit in tokens; 0 is 4096, at most a quarter of the window." default:"0"`
	Tier      string `help:"Lowest tier that may choose it outside the matrix." enum:"high,normal,low_compute,critical,dead" default:"critical"`
	NoTools   bool   `help:"It takes no tool definitions."`
	Vision    bool   `help:"It sees images."`
	Fallback  bool   `help:"It may be chosen without being named by an agent or in the matrix."`
}

func (c modelAddCmd) Run(ctx context.Context, a *app) error {
	req := api.AddModel{
		Model: c.Model, Provider: c.Provider, Prices: c.prices(), ContextWindow: c.Window, MaxOutput: c.MaxOutput,
		TierMinimum: api.Tier(c.Tier), NoTools: c.NoTools, Vision: c.Vision, Fallback: c.Fallback,
	}
	return show(ctx, a, req, func(w io.Writer, v api.Model) {
		fmt.Fprintf(w, "model %s of %s added, price version %d, usable: %s\n", v.ID, v.Provider, v.PriceVersion, yesOrWhy(v.Usable, v.Why))
	})
}

type modelSetPriceCmd struct {
	priceFlags

	Model    string    `arg:"" help:"Id of the model."`
	Provider string    `help:"The provider, if several have the model." default:""`
	From     time.Time `help:"Time from which the price applies, as 2026-12-01T00:00:00Z; by default now." optional:""`
}

func (c modelSetPriceCmd) Run(ctx context.Context, a *app) error {
	req := api.SetModelPrice{Model: c.Model, Provider: c.Provider, Prices: c.prices()}
	if !c.From.IsZero() {
		req.From = c.From.UnixMicro()
	}
	return show(ctx, a, req, func(w io.Writer, v api.Model) {
		if req.From > 0 {
			fmt.Fprintf(w, "price of %s set from %s; until then version %d applies\n", v.ID, when(req.From), v.PriceVersion)
			return
		}
		fmt.Fprintf(w, "price of %s set, version %d, usable: %s\n", v.ID, v.PriceVersion, yesOrWhy(v.Usable, v.Why))
	})
}

type modelRemoveCmd struct {
	Model    string `arg:"" help:"Id of the model."`
	Provider string `help:"The provider, if several have the model." default:""`
}

func (c modelRemoveCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.RemoveModel{Model: c.Model, Provider: c.Provider}, func(w io.Writer, v api.Model) {
		fmt.Fprintf(w, "removed what was set for %s of %s\n", v.ID, v.Provider)
	})
}

type modelPricesCmd struct {
	Model    string `arg:"" optional:"" help:"Id of the model; by default all models."`
	Provider string `help:"Only of this provider." default:""`
}

func (c modelPricesCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListModelPrices{Model: c.Model, Provider: c.Provider}, func(w io.Writer, v api.ModelPrices) {
		table(w, "MODEL\tPROVIDER\tVERSION\tSET BY\tIN/M\tOUT/M\tCACHED/M\tWRITE/M\tREASONING/M\tFROM\tSTATE", v.Prices, api.Page{}, func(p api.ModelPrice) []any {
			state := "-"
			switch {
			case p.InUse:
				state = "in use"
			case p.Withdrawn != 0:
				state = "withdrawn"
			}
			return []any{
				p.Model, p.Provider, p.Version, p.Lifecycle, p.Prices.Input, p.Prices.Output, orNone(p.Prices.Cached, 0, "-"), orNone(p.Prices.Write, 0, "-"),
				orNone(p.Prices.Reasoning, 0, "-"), when(p.From), state,
			}
		})
	})
}
