package goal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Tools returns the tools with which an agent manages its goals.
func Tools(o *Orchestrator) []engine.Tool {
	t := tools{o}
	return []engine.Tool{
		engine.Builtin("create_goal", worded("title", "description"), t.create),
		engine.Builtin("list_goals", nil, t.list),
		engine.Builtin("cancel_goal", nil, t.cancel),
		engine.Builtin("get_plan", nil, t.plan),
		engine.Builtin("complete_task", worded("output"), t.complete),
		engine.Builtin("orchestrator_status", nil, t.status),
	}
}

type tools struct{ o *Orchestrator }

// worded returns a check that refuses texts of more than 32 KiB, because prompts repeat
// them.
func worded(names ...string) func(catalog.Args) error {
	return func(a catalog.Args) error {
		for _, n := range names {
			if len(a.String(n)) > 32<<10 {
				return fmt.Errorf("%s has %d bytes, at most %d are taken; put the long part into a file and name it", n, len(a.String(n)), 32<<10)
			}
		}
		return nil
	}
}

func (t tools) create(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	g, refused, err := t.o.Store.CreateGoal(ctx, New{
		ID: NewID(c.Key), Agent: c.Agent.ID, Title: strings.TrimSpace(a.String("title")), Description: strings.TrimSpace(a.String("description")),
		Strategy: strings.TrimSpace(a.String("strategy")), By: c.By, Limit: DefaultLimit,
	}, c.At)
	if err != nil {
		return engine.Output{}, err
	}
	switch refused {
	case Duplicate:
		return engine.Output{Text: "Duplicate rejected: this goal is active already. " + Status(&g)}, nil
	case Blocked:
		return engine.Output{Blocked: true, Text: "BLOCKED: another goal is active, and it is worked on without you. Sleep until it is over, or give it up with cancel_goal. " + Status(&g)}, nil
	}
	t.o.Wake()
	return engine.Output{Text: fmt.Sprintf("Goal %s was created. It is planned and worked on beside you, also while you sleep; orchestrator_status shows how it stands.", g.ID)}, nil
}

func (t tools) list(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
	goals, err := t.o.Store.Goals(ctx, Query{Agent: c.Agent.ID, Limit: 20})
	if err != nil {
		return engine.Output{}, err
	}
	if len(goals) == 0 {
		return engine.Output{Text: "You have no goals."}, nil
	}
	var lines []string
	for i := range goals {
		lines = append(lines, Status(&goals[i]))
	}
	return engine.Output{Text: strings.Join(lines, "\n")}, nil
}

// find returns the agent's goal with an id, or the latest with a title; an active goal
// takes precedence.
func (t tools) find(ctx context.Context, agent, name string) (State, error) {
	goals, err := t.o.Store.Goals(ctx, Query{Agent: agent, Limit: 100})
	if err != nil {
		return State{}, err
	}
	name = strings.TrimSpace(name)
	var found *State
	for i := range goals {
		g := &goals[i]
		if g.ID == name {
			return *g, nil
		}
		if strings.EqualFold(g.Title, name) && (found == nil || g.Status == api.GoalActive) {
			found = g
		}
	}
	if found == nil {
		return State{}, &api.Error{Code: api.NotFound, Message: fmt.Sprintf("you have no goal %q", line(name, 80)), Next: "list_goals shows the ones there are"}
	}
	return *found, nil
}

func (t tools) cancel(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	g, err := t.find(ctx, c.Agent.ID, a.String("goal_id"))
	if err != nil {
		return engine.Output{}, err
	}
	if g, err = t.o.Cancel(ctx, g.ID, a.String("reason")); err != nil {
		return engine.Output{}, err
	}
	return engine.Output{Text: Status(&g)}, nil
}

func (t tools) plan(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	g, err := t.find(ctx, c.Agent.ID, a.String("goal_id"))
	if err != nil {
		return engine.Output{}, err
	}
	p := g.plan()
	if p == nil {
		return engine.Output{Text: Status(&g) + "\nThere is no plan yet."}, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nPlan %d (%s, by %s), estimated at %s\nanalysis: %s\nstrategy: %s\n", Status(&g), p.Version, p.Status, p.Source, p.Cost, p.Draft.Analysis, p.Draft.Strategy)
	for _, r := range p.Draft.Risks {
		fmt.Fprintf(&b, "risk: %s\n", line(r, 300))
	}
	for _, x := range g.current() {
		fmt.Fprintf(&b, "- %s %q: %s", x.ID, x.Title, x.Status)
		if len(x.Dependencies) > 0 {
			fmt.Fprintf(&b, ", after %s", strings.Join(x.Dependencies, ", "))
		}
		if x.Result != "" {
			fmt.Fprintf(&b, ", result: %s", line(x.Result, 300))
		}
		if x.Error != "" {
			fmt.Fprintf(&b, ", %s", line(x.Error, 300))
		}
		b.WriteString("\n")
	}
	return engine.Output{Text: b.String()}, nil
}

// complete completes the task of the calling run and ends the run. Only the run that
// holds a task may complete it (docs/reference/goals.md, foreign result).
func (t tools) complete(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	run := c.Turn
	if i := strings.LastIndexByte(run, '.'); i > 0 {
		run = run[:i]
	}
	id, err := t.o.Store.GoalOfRun(ctx, run)
	if api.CodeOf(err) == api.NotFound {
		return engine.Output{}, errors.New("this conversation works on no task: tasks are completed by the runs that work on them")
	}
	if err != nil {
		return engine.Output{}, err
	}
	name, done := strings.TrimSpace(a.String("task_id")), false
	s, err := t.o.Change(ctx, id, func(s *State) error {
		done = false
		at := s.attempt(run)
		x := s.task(at.Task)
		if x.ID != name && !strings.EqualFold(x.Title, name) {
			return api.Errorf(api.Invalid, "this run works on task %s, not on %q", x.ID, line(name, 80))
		}
		if x.Status == api.TaskCompleted && x.Lease == run { // a repeated call whose answer was lost
			done = true
			return nil
		}
		return s.Complete(run, a.String("output"), a.String("artifacts"), c.At)
	})
	switch {
	case api.CodeOf(err) == api.Conflict:
		return engine.Output{Text: "Nobody waits for this result any more: the task was given up, or given to another run.", Ends: true}, nil
	case err != nil:
		return engine.Output{}, err
	case done:
		return engine.Output{Text: "The task is completed already.", Ends: true}, nil
	}
	return engine.Output{Text: "The task is completed. " + Status(&s), Ends: true}, nil
}

func (t tools) status(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
	goals, err := t.o.Store.Goals(ctx, Query{Agent: c.Agent.ID, Limit: 5})
	if err != nil {
		return engine.Output{}, err
	}
	if len(goals) == 0 || goals[0].Status != api.GoalActive {
		text := "No goal is active."
		if len(goals) > 0 {
			text += " The last one: " + Status(&goals[0])
		}
		return engine.Output{Text: text}, nil
	}
	w := Worker{Seen: c.At}
	for i := range goals {
		w.Tasks = append(w.Tasks, goals[i].Tasks...)
	}
	balance, err := t.o.Treasury.Balance(ctx, c.Agent.ID)
	w.Balance, w.Unknown = balance.Available+balance.Held, err != nil
	text := Status(&goals[0])
	signals := Diagnose(w, c.At)
	remedies, fund := Heal(w, signals)
	for _, s := range signals {
		text += "\nhealth: " + string(s)
	}
	for _, r := range remedies {
		text += "\nwhat helps: " + string(r)
		if r == Fund {
			text += " " + fund.String()
		}
	}
	return engine.Output{Text: text}, nil
}
