package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/anima-run/anima/pkg/api"
)

// completeWait is the maximum time that the completion of a name may take, since the
// shell blocks meanwhile.
const completeWait = 2 * time.Second

// completed prints the completion that a shell asks for in COMP_LINE, and reports whether
// one does. Unlike [kongcompletion.Register] it completes the commands after help.
func completed(parser *kong.Kong, predictors kongcompletion.Option) bool {
	all, err := kongcompletion.Command(parser, predictors)
	if err != nil {
		panic(err) // an argument or a flag names a predictor that does not exist
	}
	help := all.Sub["help"]
	help.Sub = commandWords(all)
	all.Sub["help"] = help
	c := complete.New(parser.Model.Name, all)
	c.Out = parser.Stdout
	return c.Complete()
}

// commandWords returns the commands below a command, without flags and arguments.
func commandWords(c complete.Command) complete.Commands {
	words := complete.Commands{}
	for name, sub := range c.Sub {
		words[name] = complete.Command{Sub: commandWords(sub)}
	}
	return words
}

// predictors completes the names of agents, sessions, goals and contexts. It does not
// read flags of the command line: the environment and the selected context determine the
// anima that it queries. On any error it returns no completion.
func (a *app) predictors(ctx context.Context) kongcompletion.Option {
	agents := predict(ctx, a, api.ListAgents{}, agentIDs)
	sessions := predict(ctx, a, api.ListSessions{Limit: 100}, func(v api.Sessions) []string {
		return idsOf(v.Sessions, func(s api.Session) string { return s.ID })
	})
	return kongcompletion.WithPredictors(map[string]complete.Predictor{
		"agent": agents, "session": sessions, "agent or session": complete.PredictOr(agents, sessions),
		"goal": predict(ctx, a, api.ListGoals{Limit: 100}, func(v api.Goals) []string {
			return idsOf(v.Goals, func(g api.Goal) string { return g.ID })
		}),
		"context": complete.PredictFunc(func(complete.Args) []string {
			all, _ := a.contexts() // the command itself reports the error
			return slices.Sorted(maps.Keys(all.Contexts))
		}),
	})
}

func predict[Resp any](ctx context.Context, a *app, req api.Message, names func(Resp) []string) complete.Predictor {
	return complete.PredictFunc(func(complete.Args) []string {
		ctx, cancel := context.WithTimeout(ctx, completeWait)
		defer cancel()
		defer a.disconnect()
		v, _ := ask[Resp](ctx, a, req)
		return names(v)
	})
}

func agentIDs(v api.Agents) []string {
	return idsOf(v.Agents, func(g api.Agent) string { return g.ID })
}

func idsOf[E any](all []E, id func(E) string) []string {
	var ids []string
	for _, e := range all {
		ids = append(ids, id(e))
	}
	return ids
}
