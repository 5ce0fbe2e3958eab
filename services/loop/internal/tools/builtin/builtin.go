// Package builtin implements the tools of the catalogue that loop executes itself and
// that belong to no other package: files, commands, sleep, and the agent's own state. It
// must not decide whether a call is allowed: policy decides that before.
package builtin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
)

// Store is the storage that the tools read and write.
type Store interface {
	// Agent returns an agent. Errors: NotFound.
	Agent(ctx context.Context, id string) (api.Agent, error)
	// SetGenesis replaces the agent's genesis prompt and keeps the old one. A repeated
	// call with the same key changes nothing.
	SetGenesis(ctx context.Context, agent, prompt, reason, key string, at int64) error
}

// Services are the calls of other services that the tools need.
type Services interface {
	SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error)
	Balance(ctx context.Context, agent string) (api.Balance, error)
}

// Basic returns the tools of an agent whose definition names none, in the order of the
// prompt. Every installation can execute them. docs/agent.md lists them.
func Basic() []string {
	return []string{
		"read_file", "write_file", "exec", "sleep", "check_credits", "remember_fact", "recall_facts", "send_message",
		"system_synopsis", "list_models", "check_inference_spending", "git_status", "git_diff", "git_log",
		"create_goal", "list_goals", "get_plan", "complete_task", "cancel_goal",
	}
}

// All returns the tools that this package and package git implement, by name.
func All(cfg tools.Config, store Store, svc Services) map[string]engine.Tool {
	all := map[string]engine.Tool{}
	for _, t := range slices.Concat(
		[]engine.Tool{readFile(), writeFile(), execTool(cfg), sleepTool(svc), systemSynopsis(store, svc), updateGenesis(store), installNPM(cfg)},
		git.Tools(cfg),
	) {
		all[t.Name] = t
	}
	return all
}

func sleepTool(svc Services) engine.Tool {
	return engine.Builtin("sleep", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		// The alarm of the agent would be replaced by that of a task beside it, or by one that
		// another agent asked for.
		if goal.Worked(c.Session) || c.By.Kind.Authority() < api.HeartbeatKind.Authority() {
			return engine.Output{Text: "this run ends; it does not change when you wake", Ends: true}, nil
		}
		// Relative to the time of the completion, so that a repeated call sets the same
		// alarm.
		until := c.At + a.Int("duration_seconds", 0)*1_000_000
		reason := a.String("reason")
		if reason == "" {
			reason = "slept enough"
		}
		if _, err := svc.SetAlarm(ctx, api.SetAlarm{ID: c.Key, Agent: c.Agent.ID, At: until, Reason: reason}); err != nil {
			return engine.Output{}, err
		}
		at := time.UnixMicro(until).UTC().Format(time.RFC3339)
		return engine.Output{Text: "sleeping until " + at, Sleep: &engine.Sleep{Until: until, Reason: reason}}, nil
	})
}

func systemSynopsis(store Store, svc Services) engine.Tool {
	return engine.Builtin("system_synopsis", nil, func(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
		a, err := store.Agent(ctx, c.Agent.ID)
		if err != nil {
			return engine.Output{}, err
		}
		text := fmt.Sprintf("%s (%s) is %s: %s\nwallet %s, definition version %d, session %s, %d turns so far",
			a.Name, a.ID, a.State, a.Reason, a.Address, a.Version, c.Session, a.Turns)
		if a.Model != "" {
			text += "\nprefers the model " + a.Model
		}
		if b, err := svc.Balance(ctx, c.Agent.ID); err == nil {
			text += fmt.Sprintf("\navailable %s, held %s, tier %s", b.Available, b.Held, b.Tier)
		} else {
			text += "\nthe balance is unknown: treasury does not answer" // unknown is not zero (docs/reference/loop.md, unknown tier)
		}
		return engine.Output{Text: text}, nil
	})
}
