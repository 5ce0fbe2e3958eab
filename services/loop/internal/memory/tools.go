package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
		rememberFact(m), recallFacts(m), setGoal(m), completeGoal(m), saveProcedure(m), recallProcedure(m),
		noteAboutAgent(m), reviewMemory(m), forget(m),
	}
}

// said returns the answer of a tool, or its error.
func said(text string, err error) (engine.Output, error) {
	if err != nil {
		return engine.Output{}, err
	}
	return engine.Output{Text: text}, nil
}

func rememberFact(m *Memory) engine.Tool {
	return engine.Builtin("remember_fact", func(a catalog.Args) error {
		if len(a.String("key")) > maxKey {
			return fmt.Errorf("key has %d bytes, at most %d are taken", len(a.String("key")), maxKey)
		}
		return nil
	}, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		f := Fact{
			Category: a.String("category"), Key: a.String("key"), Value: a.String("value"), Confidence: a.Float("confidence", 1),
			Source: a.String("source"), Turn: c.Turn, By: c.By, At: c.At,
		}
		if f.Source == "" {
			f.Source = "agent"
		}
		fate, err := m.Store.Remember(ctx, c.Agent.ID, f)
		if err != nil {
			return engine.Output{}, err
		}
		text := "remembered " + f.Category + " / " + f.Key
		switch fate {
		case FactNew, FactSame:
		case FactSuperseded:
			text += "; the value before is kept as history"
		case FactRefused:
			text = "kept as a claim about " + f.Category + " / " + f.Key + ": what you know already comes from somebody you trust more, and stands"
		}
		return engine.Output{Text: text}, nil
	})
}

func recallFacts(m *Memory) engine.Tool {
	return engine.Builtin("recall_facts", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		limit := factsShown
		if a.Has("category") {
			limit = MaxFacts
		}
		all, err := m.Find(ctx, c.Agent.ID, Semantic, strings.TrimSpace(a.String("query")), limit)
		if err != nil {
			return engine.Output{}, err
		}
		var kept []Entry
		for _, e := range all {
			if (!a.Has("category") || e.Kind == a.String("category")) && len(kept) < factsShown {
				kept = append(kept, e)
			}
		}
		return engine.Output{Text: Lines(kept, m.Now().UnixMicro(), "no facts found")}, nil
	})
}

func setGoal(m *Memory) engine.Tool {
	return engine.Builtin("set_goal", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		n := Note{
			ID: c.Key, Session: c.Session, Kind: "goal", Content: a.String("content"), Priority: a.Float("priority", 0.8),
			Turn: c.Turn, By: c.By, At: c.At,
		}
		if err := m.Store.AddNote(ctx, c.Agent.ID, n); err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: "the goal is kept in mind as " + n.ID}, nil
	})
}

func completeGoal(m *Memory) engine.Tool {
	return engine.Builtin("complete_goal", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		err := m.Store.ReachGoal(ctx, c.Agent.ID, a.String("goal_id"), a.String("outcome"), c.By, c.At)
		return said("goal "+a.String("goal_id")+" is reached", err)
	})
}

func saveProcedure(m *Memory) engine.Tool {
	steps := func(a catalog.Args) (out []string, err error) {
		if err := json.Unmarshal([]byte(a.String("steps")), &out); err != nil {
			return nil, errors.New(`steps must be a JSON array of texts, as ["first", "then"]`)
		}
		if len(out) == 0 {
			return nil, errors.New("steps is empty")
		}
		return out, nil
	}
	return engine.Builtin("save_procedure", func(a catalog.Args) error { _, err := steps(a); return err },
		func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
			list, err := steps(a)
			if err != nil {
				return engine.Output{}, err
			}
			p := Procedure{Name: a.String("name"), Description: a.String("description"), Steps: list, By: c.By, At: c.At}
			return said(fmt.Sprintf("saved %s with %d steps", p.Name, len(list)), m.Store.SaveProcedure(ctx, c.Agent.ID, p))
		})
}

func recallProcedure(m *Memory) engine.Tool {
	return engine.Builtin("recall_procedure", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		name, query := a.String("name"), strings.TrimSpace(a.String("query"))
		all, err := m.Find(ctx, c.Agent.ID, Procedural, strings.TrimSpace(name+" "+query), proceduresShown)
		if err != nil {
			return engine.Output{}, err
		}
		for _, e := range all {
			if e.ID == name {
				all = []Entry{e}
				break
			}
		}
		return engine.Output{Text: Lines(all, m.Now().UnixMicro(), "no procedure found; list them with neither a name nor a query")}, nil
	})
}

func noteAboutAgent(m *Memory) engine.Tool {
	return engine.Builtin("note_about_agent", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		r := Relation{
			Address: a.String("entity_address"), Kind: a.String("relationship_type"), Name: a.String("entity_name"), Notes: a.String("notes"),
			By: c.By, At: c.At,
		}
		if a.Has("trust_score") {
			trust := a.Float("trust_score", 0.5)
			r.Trust = &trust
		}
		return said("noted about "+r.Address, m.Store.NoteRelation(ctx, c.Agent.ID, r))
	})
}

func reviewMemory(m *Memory) engine.Tool {
	return engine.Builtin("review_memory", nil, func(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
		at := m.Now().UnixMicro()
		working, err := m.Store.Latest(ctx, c.Agent.ID, c.Session, Working, at, MaxWorking)
		if err != nil {
			return engine.Output{}, err
		}
		episodes, err := m.Store.Latest(ctx, c.Agent.ID, "", Episodic, at, episodesShown)
		if err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: "In mind:\n" + Lines(working, at, "nothing") + "\nLately:\n" + Lines(episodes, at, "nothing")}, nil
	})
}

func forget(m *Memory) engine.Tool {
	return engine.Builtin("forget", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		there, err := m.Store.Forget(ctx, c.Agent.ID, Tier(a.String("memory_type")), a.String("id"), c.At)
		if err != nil {
			return engine.Output{}, err
		}
		if !there && !c.Repeating {
			return engine.Output{}, api.Errorf(api.NotFound, "there is no %s memory %s", a.String("memory_type"), a.String("id"))
		}
		return engine.Output{Text: "forgotten"}, nil
	})
}
