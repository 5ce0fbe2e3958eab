package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type memoryCmd struct {
	List   memoryListCmd   `cmd:"" help:"List the memories of an agent."`
	Search memorySearchCmd `cmd:"" help:"Search the memories of an agent."`
	Forget memoryForgetCmd `cmd:"" help:"Remove one memory."`
}

type memoryListCmd struct {
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Tier    string `help:"Only working, episodic, semantic, procedural or relationship." enum:"working,episodic,semantic,procedural,relationship," default:""`
	History bool   `help:"Include earlier values of facts, and refused changes."`
	Limit   int    `help:"How many of each tier, at most 1000." default:"20"`
}

func (c memoryListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListMemory{Agent: c.Agent, Tier: api.MemoryTier(c.Tier), History: c.History, Limit: c.Limit}, memoryText)
}

type memorySearchCmd struct {
	Agent string   `arg:"" help:"The agent." predictor:"agent"`
	Query []string `arg:"" help:"Words to search for."`
	Tier  string   `help:"Only episodic, semantic, procedural or relationship." enum:"episodic,semantic,procedural,relationship," default:""`
	Limit int      `help:"How many of each tier, at most 1000." default:"20"`
}

func (c memorySearchCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListMemory{Agent: c.Agent, Tier: api.MemoryTier(c.Tier), Query: strings.Join(c.Query, " "), Limit: c.Limit}, memoryText)
}

func memoryText(w io.Writer, v api.Memories) {
	table(w, "TIER\tMEMORY\tWEIGHT\tBY\tAT\tTEXT", v.Memories, v.Page, func(m api.Memory) []any {
		text := m.Text
		if m.Title != "" {
			text = m.Title + ": " + text
		}
		if m.Outcome != "" {
			text = "(" + m.Outcome + ") " + text
		}
		return []any{m.Tier, plain(m.ID), fmt.Sprintf("%.2f", float64(m.Weight)/1000), m.By.Kind, when(m.At), line(text, 80)}
	})
}

type memoryForgetCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Tier   string `arg:"" help:"The tier, as anima memory list shows it." enum:"working,episodic,semantic,procedural,relationship"`
	Memory string `arg:"" help:"The memory, as anima memory list shows it."`
}

func (c memoryForgetCmd) Run(ctx context.Context, a *app) error {
	v, err := ask[api.Forgotten](ctx, a, api.ForgetMemory{Agent: c.Agent, Tier: api.MemoryTier(c.Tier), ID: c.Memory})
	if err != nil {
		return err
	}
	if !v.There {
		return failure(api.NotFound, v.Agent+" has no "+c.Tier+" memory "+c.Memory, "anima memory list "+v.Agent+" --tier "+c.Tier+" lists its memories")
	}
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "%s has forgotten %s\n", v.Agent, plain(v.ID)) })
}

type soulCmd struct {
	Show    soulShowCmd    `cmd:"" help:"Print an agent's SOUL.md."`
	History soulHistoryCmd `cmd:"" help:"List the versions of an agent's soul, the latest first."`
}

type soulShowCmd struct {
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Version int64  `help:"This version; default is the latest." placeholder:"N"`
}

func (c soulShowCmd) Run(ctx context.Context, a *app) error {
	req := api.ListSouls{Agent: c.Agent, Limit: 1}
	if c.Version > 0 {
		req.After = fmt.Sprint(c.Version + 1)
	}
	v, err := ask[api.Souls](ctx, a, req)
	if err != nil {
		return err
	}
	switch {
	case len(v.Souls) == 0 && c.Version == 0:
		return failure(api.NotFound, c.Agent+" has no soul yet", "the first run creates one: anima session send "+c.Agent+" hello")
	case len(v.Souls) == 0 || c.Version > 0 && v.Souls[0].Version != c.Version:
		return failure(api.NotFound, fmt.Sprintf("%s has no version %d of its soul", c.Agent, c.Version), "anima soul history "+c.Agent+" lists the versions")
	}
	return a.print(v.Souls[0], func(w io.Writer) { fmt.Fprintln(w, verbatim(strings.TrimRight(v.Souls[0].Content, "\n"))) })
}

type soulHistoryCmd struct {
	paging
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

func (c soulHistoryCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListSouls{Agent: c.Agent, After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Souls) {
		table(w, "VERSION\tTIME\tSOURCE\tHASH\tWHY", v.Souls, v.Page, func(s api.SoulVersion) []any {
			return []any{s.Version, when(s.At), s.Source, fmt.Sprintf("%.12s", s.Hash), line(s.Reason, 80)}
		})
	})
}
