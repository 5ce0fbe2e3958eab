package loop

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// memoryHandlers serves the requests about memories and souls.
type memoryHandlers struct {
	store  sqlstore.Memory
	memory *memory.Memory
}

func newMemories(store *sqlstore.Store, now func() time.Time) memoryHandlers {
	m := sqlstore.Memory{Store: store}
	return memoryHandlers{store: m, memory: &memory.Memory{Store: m, Now: now}}
}

func (r memoryHandlers) routes() []bus.Route {
	return []bus.Route{bus.Reply(r.list), bus.Reply(r.recall), bus.Reply(r.forget), bus.Reply(r.souls)}
}

func (r memoryHandlers) list(ctx context.Context, m api.ListMemory) (api.Memories, error) {
	out := api.Memories{Memories: []api.Memory{}}
	limit, err := api.PageLimit(m.Limit, 20)
	if err != nil {
		return out, err
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return out, err
	}
	var all []memory.Entry
	var more bool
	if m.History {
		all, err = r.store.FactHistory(ctx, agent.ID, limit+1)
		all, more = all[:min(len(all), limit)], len(all) > limit
	} else {
		all, more, err = r.entries(ctx, agent.ID, m, limit)
	}
	for _, e := range all {
		out.Memories = append(out.Memories, api.Memory{
			Tier: api.MemoryTier(e.Tier), ID: e.ID, Session: e.Session, Kind: e.Kind, Title: e.Title, Text: e.Text, Extra: e.Extra,
			Weight: int64(math.Round(e.Weight * 1000)), Count: e.Count, Shown: e.Accessed, By: e.By, At: e.At, Ended: e.Ended, Outcome: e.Outcome,
		})
	}
	out.Memories, out.Page = api.CutPage(out.Memories, len(out.Memories), nil)
	out.More = out.More || more
	return out, err
}

// entries returns the memories of a tier, or of all tiers, at most limit of each. more
// reports whether a tier has others.
func (r memoryHandlers) entries(ctx context.Context, agent string, m api.ListMemory, limit int) (out []memory.Entry, more bool, err error) {
	tiers := memory.Tiers()
	if m.Tier != "" {
		tiers = []memory.Tier{memory.Tier(m.Tier)}
	}
	for _, tier := range tiers {
		all, err := r.memory.Find(ctx, agent, tier, strings.TrimSpace(m.Query), limit+1)
		if err != nil {
			return nil, false, err
		}
		out, more = append(out, all[:min(len(all), limit)]...), more || len(all) > limit
	}
	return out, more, nil
}

// forget removes one memory, for the creator. A request that [bus.Call] repeats, because
// its answer was lost or late, has the answer of the first one.
func (r memoryHandlers) forget(ctx context.Context, m api.ForgetMemory) (api.Forgotten, error) {
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Forgotten{}, err
	}
	there, err := r.store.ForgetOnce(ctx, newID(ctx), agent.ID, memory.Tier(m.Tier), m.ID, api.Principal{Kind: api.Creator}, r.memory.Now().UnixMicro())
	return api.Forgotten{Agent: agent.ID, Tier: m.Tier, ID: m.ID, There: there}, err
}

// defaultRecall is the sum of the budgets of the tiers, in tokens
// (docs/reference/memory.md, Budget).
const defaultRecall = 10_000

func (r memoryHandlers) recall(ctx context.Context, m api.RecallMemory) (api.Recalled, error) {
	if m.Budget < 0 || m.Budget > 10*defaultRecall {
		return api.Recalled{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the budget of %d tokens is out of range", m.Budget), Next: "ask for 1 to 100000"}
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Recalled{}, err
	}
	text, err := r.memory.Preview(ctx, agent.ID, cmp.Or(m.Session, agent.Session), m.Query, cmp.Or(m.Budget, defaultRecall))
	return api.Recalled{Text: text, Tokens: memory.Tokens(text)}, err
}

func (r memoryHandlers) souls(ctx context.Context, m api.ListSouls) (api.Souls, error) {
	out := api.Souls{Souls: []api.SoulVersion{}}
	limit, err := api.PageLimit(m.Limit, 10)
	if err != nil {
		return out, err
	}
	var before int64
	if m.After != "" {
		if before, err = strconv.ParseInt(m.After, 10, 64); err != nil || before < 1 {
			return out, api.NotInList(m.After)
		}
	}
	agent, err := r.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return out, err
	}
	all, err := r.store.SoulsBefore(ctx, agent.ID, before, limit+1)
	for _, v := range all {
		out.Souls = append(out.Souls, api.SoulVersion{Version: v.Number, Content: v.Content, Hash: v.Hash, Source: v.Source, Reason: v.Reason, At: v.At})
	}
	out.Souls, out.Page = api.CutPage(out.Souls, limit, func(v api.SoulVersion) string { return strconv.FormatInt(v.Version, 10) })
	return out, err
}

func (r memoryHandlers) registerHTTP(routes host.Routes) {
	routes.Handle("GET /v1/agents/{id}/memories", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListMemory, error) {
		q := r.URL.Query()
		m := api.ListMemory{Agent: r.PathValue("id"), Tier: api.MemoryTier(q.Get("tier")), Query: q.Get("query")}
		var err error
		if m.Limit, err = host.Limit(r); err != nil {
			return m, err
		}
		m.History, err = host.Flag(r, "history")
		return m, err
	}, r.list))
	routes.Handle("DELETE /v1/agents/{id}/memories/{tier}/{memory...}", fromURL(func(r *http.Request) api.ForgetMemory {
		return api.ForgetMemory{Agent: r.PathValue("id"), Tier: api.MemoryTier(r.PathValue("tier")), ID: r.PathValue("memory")}
	}, r.forget))
	routes.Handle("GET /v1/agents/{id}/souls", fromPage(func(r *http.Request, limit int) api.ListSouls {
		return api.ListSouls{Agent: r.PathValue("id"), After: r.URL.Query().Get("after"), Limit: limit}
	}, r.souls))
}
