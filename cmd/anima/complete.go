package main

import (
	"context"
	"maps"
	"slices"
	"time"

	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// completeWait is the maximum time that the completion of a name may take, since the
// shell blocks meanwhile.
const completeWait = 2 * time.Second

// predictors completes the names of agents, sessions, goals and contexts. It does not
// read flags of the command line: the environment and the selected context determine the
// anima that it queries. On any error it returns no completion.
func (a *app) predictors(ctx context.Context) kongcompletion.Option {
	return kongcompletion.WithPredictors(map[string]complete.Predictor{
		"agent": a.predict(ctx, func(ctx context.Context, b *bus.Bus) []string {
			v, _ := bus.Call[api.Agents](ctx, b, api.ListAgents{})
			var names []string
			for _, g := range v.Agents {
				names = append(names, g.ID)
			}
			return names
		}),
		"session": a.predict(ctx, func(ctx context.Context, b *bus.Bus) []string {
			v, _ := bus.Call[api.Sessions](ctx, b, api.ListSessions{Limit: 100})
			var names []string
			for _, s := range v.Sessions {
				names = append(names, s.ID)
			}
			return names
		}),
		"goal": a.predict(ctx, func(ctx context.Context, b *bus.Bus) []string {
			v, _ := bus.Call[api.Goals](ctx, b, api.ListGoals{Limit: 100})
			var names []string
			for _, g := range v.Goals {
				names = append(names, g.ID)
			}
			return names
		}),
		"context": complete.PredictFunc(func(complete.Args) []string {
			all, _ := a.contexts() // the command itself reports the error
			return slices.Sorted(maps.Keys(all.Contexts))
		}),
	})
}

func (a *app) predict(ctx context.Context, names func(context.Context, *bus.Bus) []string) complete.Predictor {
	return complete.PredictFunc(func(complete.Args) []string {
		b, done, err := a.bus()
		if err != nil {
			return nil
		}
		defer done()
		ctx, cancel := context.WithTimeout(ctx, completeWait)
		defer cancel()
		return names(ctx, b)
	})
}
