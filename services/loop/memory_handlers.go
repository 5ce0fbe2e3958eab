package loop

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// remembered answers people what an agent remembers.
type remembered struct {
	store  sqlstore.Memory
	memory *memory.Memory
}

func newRemembered(store *sqlstore.Store, now func() time.Time) remembered {
	m := sqlstore.Memory{Store: store}
	return remembered{store: m, memory: &memory.Memory{Store: m, Tokens: memory.Quarter{}, Now: now}}
}

func (r remembered) list(ctx context.Context, m api.ListMemory) (api.Memories, error) {
	out := api.Memories{Memories: []api.Memory{}}
	limit, err := bounded(m.Limit, 20)
	if err != nil {
		return out, err
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return out, err
	}
	var all []memory.Entry
	if m.History {
		all, err = r.store.FactHistory(ctx, agent.ID, limit)
	} else {
		all, err = r.entries(ctx, agent.ID, m, limit)
	}
	for _, e := range all {
		out.Memories = append(out.Memories, api.Memory{
			Tier: api.MemoryTier(e.Tier), ID: e.ID, Session: e.Session, Kind: e.Kind, Title: e.Title, Text: e.Text, Extra: e.Extra,
			Weight: int64(math.Round(e.Weight * 1000)), Count: e.Count, Shown: e.Accessed, By: e.By, At: e.At, Ended: e.Ended, Fate: e.Fate,
		})
	}
	return out, err
}

func (r remembered) entries(ctx context.Context, agent string, m api.ListMemory, limit int) ([]memory.Entry, error) {
	tiers := memory.Tiers()
	if m.Tier != "" {
		tiers = []memory.Tier{memory.Tier(m.Tier)}
	}
	var out []memory.Entry
	for _, tier := range tiers {
		all, err := r.memory.Find(ctx, agent, tier, strings.TrimSpace(m.Query), limit)
		if err != nil {
			return nil, err
		}
		out = append(out, all...)
	}
	return out, nil
}

// defaultRecall is all of spec-core-1 §2.4, in tokens.
const defaultRecall = 10_000

func (r remembered) recall(ctx context.Context, m api.RecallMemory) (api.Recalled, error) {
	if m.Budget < 0 || m.Budget > 10*defaultRecall {
		return api.Recalled{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("a budget of %d tokens", m.Budget), Next: "ask for 1 to 100000"}
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Recalled{}, err
	}
	if m.Session == "" {
		m.Session = agent.Session
	}
	if m.Budget == 0 {
		m.Budget = defaultRecall
	}
	text, err := r.memory.Preview(ctx, agent.ID, m.Session, m.Query, m.Budget)
	return api.Recalled{Text: text, Tokens: r.memory.Tokens.Count(text)}, err
}

func (r remembered) souls(ctx context.Context, m api.ListSouls) (api.Souls, error) {
	out := api.Souls{Souls: []api.SoulVersion{}}
	limit, err := bounded(m.Limit, 10)
	if err != nil {
		return out, err
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return out, err
	}
	all, err := r.store.Souls(ctx, agent.ID, limit)
	for _, v := range all {
		out.Souls = append(out.Souls, api.SoulVersion{Version: v.Number, Content: v.Content, Hash: v.Hash, Source: v.Source, Reason: v.Reason, At: v.At})
	}
	return out, err
}
