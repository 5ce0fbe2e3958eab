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

// completeWait bounds what the completion of a name may take: the shell waits.
const completeWait = 2 * time.Second

// predictors complete the names of what is there. Flags of the line are not read: the
// environment and the selected context say which anima is asked. What cannot be asked
// completes nothing.
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
			all, _ := a.contexts() // the command says what is wrong with them
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
