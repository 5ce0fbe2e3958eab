package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// maxKey is the largest length of a fact's key, in bytes. The id, which consists of
// category and key, then fits into the parameter of forget in the catalogue.
const maxKey = 200

// Numbers of entries in the answers of the tools.
const (
	factsShown      = 20
	proceduresShown = 10
	episodesShown   = 10
)

// Tools returns the nine tools of memory (docs/reference/memory.md, Tools). What they
// store has the principal of their turn as its origin.
func Tools(m *Memory) []engine.Tool {
	return []engine.Tool{
		tool("remember_fact", checkKey, m.rememberFact), tool("recall_facts", nil, m.recallFacts),
		tool("set_goal", nil, m.setGoal), tool("complete_goal", nil, m.completeGoal),
		tool("save_procedure", checkSteps, m.saveProcedure), tool("recall_procedure", nil, m.recallProcedure),
		tool("note_about_agent", nil, m.noteAboutAgent), tool("review_memory", nil, m.review), tool("forget", nil, m.forget),
	}
}

// tool returns a built-in tool that answers with a text.
func tool(name string, check func(catalog.Args) error, run func(context.Context, engine.Call, catalog.Args) (string, error)) engine.Tool {
	return engine.Builtin(name, check, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		text, err := run(ctx, c, a)
		if err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: text}, nil
	})
}

func checkKey(a catalog.Args) error {
	if len(a.String("key")) > maxKey {
		return fmt.Errorf("key has %d bytes, at most %d are taken", len(a.String("key")), maxKey)
	}
	return nil
}

func (m *Memory) rememberFact(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	f := Fact{
		Category: a.String("category"), Key: a.String("key"), Value: a.String("value"), Confidence: a.Float("confidence", 1),
		Source: cmp.Or(a.String("source"), "agent"), Turn: c.Turn, By: c.By, At: c.At,
	}
	fate, err := m.Store.Remember(ctx, c.Agent.ID, f)
	about := f.Category + " / " + f.Key
	switch fate {
	case FactNew, FactSame:
	case FactCrowdedOut:
		return "", cmp.Or(err, fmt.Errorf("%s is not kept: %d facts are kept before it, which have a higher confidence or a more trusted source; give it a higher confidence, or forget one of them", about, MaxFacts))
	case FactSuperseded:
		return "remembered " + about + "; the previous value is in the history", err
	case FactRefused:
		return "stored as a claim about " + about + ": the known value comes from a more trusted source and does not change", err
	}
	return "remembered " + about, err
}

func (m *Memory) recallFacts(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	limit := factsShown
	if a.Has("category") {
		limit = MaxFacts
	}
	all, err := m.Find(ctx, c.Agent.ID, Semantic, strings.TrimSpace(a.String("query")), limit)
	all = slices.DeleteFunc(all, func(e Entry) bool { return a.Has("category") && e.Kind != a.String("category") })
	return Lines(all[:min(len(all), factsShown)], m.Now().UnixMicro(), "no facts found"), err
}

func (m *Memory) setGoal(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	err := m.Store.AddNote(ctx, c.Agent.ID, Note{
		ID: c.Key, Session: c.Session, Kind: "goal", Content: a.String("content"), Priority: a.Float("priority", 0.8),
		Turn: c.Turn, By: c.By, At: c.At,
	})
	if err != nil {
		return "", err
	}
	kept, err := m.Store.Entry(ctx, c.Agent.ID, Working, c.Key, c.At)
	if err == nil && kept == nil {
		err = fmt.Errorf("the goal is not kept: this session has %d notes of a higher priority; review_memory shows them, give the goal a higher priority or forget one", MaxWorking)
	}
	return "the goal is kept in mind as " + c.Key, err
}

func (m *Memory) completeGoal(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	goal := a.String("goal_id")
	return "goal " + goal + " is reached", m.Store.ReachGoal(ctx, c.Agent.ID, goal, a.String("outcome"), c.By, c.At)
}

func steps(a catalog.Args) (all []string, err error) {
	switch err := json.Unmarshal([]byte(a.String("steps")), &all); {
	case err != nil:
		return nil, errors.New(`steps must be a JSON array of texts, as ["first", "then"]`)
	case len(all) == 0:
		return nil, errors.New("steps is empty")
	}
	return all, nil
}

func checkSteps(a catalog.Args) error {
	_, err := steps(a)
	return err
}

func (m *Memory) saveProcedure(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	list, err := steps(a)
	if err != nil {
		return "", err
	}
	p := Procedure{Name: a.String("name"), Description: a.String("description"), Steps: list, By: c.By, At: c.At}
	return fmt.Sprintf("saved %s with %d steps", p.Name, len(list)), m.Store.SaveProcedure(ctx, c.Agent.ID, p)
}

func (m *Memory) recallProcedure(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	name, query, at := a.String("name"), strings.TrimSpace(a.String("query")), m.Now().UnixMicro()
	named, err := m.Store.Entry(ctx, c.Agent.ID, Procedural, name, at) // a search does not find every name, as one of stop words
	if err != nil {
		return "", err
	}
	if named != nil {
		return Lines([]Entry{*named}, at, ""), nil
	}
	all, err := m.Find(ctx, c.Agent.ID, Procedural, strings.TrimSpace(name+" "+query), proceduresShown)
	return Lines(all, at, "no procedure found; list them with neither a name nor a query"), err
}

func (m *Memory) noteAboutAgent(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	r := Relation{
		Address: a.String("entity_address"), Kind: a.String("relationship_type"), Name: a.String("entity_name"), Notes: a.String("notes"),
		By: c.By, At: c.At,
	}
	if a.Has("trust_score") {
		r.Trust = new(a.Float("trust_score", 0.5))
	}
	return "noted about " + r.Address, m.Store.NoteRelation(ctx, c.Agent.ID, r)
}

func (m *Memory) review(ctx context.Context, c engine.Call, _ catalog.Args) (string, error) {
	at := m.Now().UnixMicro()
	working, err := m.Store.Latest(ctx, c.Agent.ID, c.Session, Working, at, MaxWorking)
	if err != nil {
		return "", err
	}
	episodes, err := m.Store.Latest(ctx, c.Agent.ID, "", Episodic, at, episodesShown)
	return "In mind:\n" + Lines(working, at, "nothing") + "\nLately:\n" + Lines(episodes, at, "nothing"), err
}

func (m *Memory) forget(ctx context.Context, c engine.Call, a catalog.Args) (string, error) {
	tier, id := a.String("memory_type"), a.String("id")
	there, err := m.Store.Forget(ctx, c.Agent.ID, Tier(tier), id, c.By, c.At)
	if err == nil && !there && !c.Repeating {
		err = api.Errorf(api.NotFound, "there is no %s memory %s", tier, id)
	}
	return "forgotten", err
}
