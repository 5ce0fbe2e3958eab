package loop

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/goal"
)

// goalHandlers executes the steps of goals and serves the requests about them.
type goalHandlers struct {
	orchestrator *goal.Orchestrator
	log          *slog.Logger
}

// newGoals returns handlers whose orchestrator uses the store and the clients of h.
func newGoals(h *handlers) *goalHandlers {
	o := &goal.Orchestrator{
		Store: h.store, Router: h.clients, Treasury: h.clients, Policy: h.clients, Runs: runs{h}, Agents: h.store,
		Leases: h.leases, Now: h.now, Log: h.log, Kick: h.relay.Wake,
	}
	return &goalHandlers{log: h.log, orchestrator: o}
}

// routes returns all routes about goals. If a replica does not acknowledge a message
// within silent, the message is redelivered to another replica.
func (g *goalHandlers) routes(silent time.Duration) []bus.Route {
	// Deliveries are not limited: the goal would otherwise never continue.
	steps := bus.Consuming{Workers: 32, AckWait: silent, MaxDeliver: -1}
	return []bus.Route{
		bus.Reply(g.list), bus.Reply(g.get), bus.Reply(g.cancel), bus.Reply(g.review),
		bus.On(g.created, steps), bus.On(g.changed, steps), bus.On(g.start, steps),
		bus.Go(func(ctx context.Context) error { return g.expire(ctx, silent) }),
	}
}

func (g *goalHandlers) created(ctx context.Context, m api.GoalCreated) error {
	return g.orchestrator.Step(ctx, m.Goal, bus.MetaOf(ctx).Delivered)
}

func (g *goalHandlers) changed(ctx context.Context, m api.GoalChanged) error {
	return g.orchestrator.Step(ctx, m.Goal, bus.MetaOf(ctx).Delivered)
}

func (g *goalHandlers) start(ctx context.Context, m api.DoTask) error {
	return g.orchestrator.Start(ctx, m)
}

func (g *goalHandlers) ended(ctx context.Context, m api.LoopEnd) error {
	return g.orchestrator.Ended(ctx, m)
}

// expire ends attempts that exceed their deadline, every interval and on every replica.
// No message announces that a deadline has passed.
func (g *goalHandlers) expire(ctx context.Context, every time.Duration) error {
	wait.Every(ctx, every, func() {
		if err := g.orchestrator.Expire(ctx); err != nil && ctx.Err() == nil {
			g.log.WarnContext(ctx, "check of task deadlines failed, retrying", "err", err)
		}
	})
	return nil
}

func (g *goalHandlers) list(ctx context.Context, m api.ListGoals) (api.Goals, error) {
	limit, err := api.PageLimit(m.Limit, 50)
	if err != nil {
		return api.Goals{}, err
	}
	after, err := placeOf(m.After)
	if err != nil {
		return api.Goals{}, err
	}
	all, err := g.orchestrator.Store.Goals(ctx, goal.Query{
		Agent: strings.ToLower(m.Agent), Status: m.Status, Limit: limit + 1, AfterAt: after.At, AfterID: after.ID,
	})
	views := []api.Goal{}
	for i := range all {
		views = append(views, all[i].View(false))
	}
	views, page := api.CutPage(views, limit, func(v api.Goal) string { return cursor(v.CreatedAt, v.ID) })
	return api.Goals{Goals: views, Page: page}, err
}

func (g *goalHandlers) get(ctx context.Context, m api.GetGoal) (api.Goal, error) {
	return view(g.orchestrator.Store.Goal(ctx, m.Goal))
}

func (g *goalHandlers) cancel(ctx context.Context, m api.CancelGoal) (api.Goal, error) {
	return view(g.orchestrator.Cancel(ctx, m.Goal, m.Reason))
}

func (g *goalHandlers) review(ctx context.Context, m api.ReviewPlan) (api.Goal, error) {
	v, err := view(g.orchestrator.Review(ctx, m))
	if api.CodeOf(err) == api.Conflict {
		e := *api.Wire(err)
		e.Next = "anima goal show " + m.Goal + " shows its plans and what it waits for"
		return v, &e
	}
	return v, err
}

// cancelOf cancels the active goals of an agent.
func (g *goalHandlers) cancelOf(ctx context.Context, agent, why string) error {
	active, err := g.orchestrator.Store.Goals(ctx, goal.Query{Agent: agent, Status: api.GoalActive})
	if err != nil {
		return err
	}
	for _, s := range active {
		if _, err := g.orchestrator.Cancel(ctx, s.ID, why); err != nil {
			return err
		}
	}
	return nil
}

func view(s goal.State, err error) (api.Goal, error) {
	if api.CodeOf(err) == api.NotFound {
		return api.Goal{}, &api.Error{Code: api.NotFound, Message: "there is no such goal", Next: "anima goal list shows the ones there are"}
	}
	if err != nil {
		return api.Goal{}, err
	}
	return s.View(true), nil
}

// ApprovePlan implements goal.Policy.
func (s clients) ApprovePlan(ctx context.Context, m api.ApprovePlan) (api.Decision, error) {
	return bus.Call[api.Decision](ctx, s.bus, m)
}

// runs implements goal.Runs.
type runs struct{ h *handlers }

// CancelRun cancels an attempt at a task.
func (r runs) CancelRun(ctx context.Context, m api.CancelRun) (api.RunState, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return r.h.cancelRun(ctx, m)
}
