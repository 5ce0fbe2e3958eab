package loop

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
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
		Store: h.store, Router: h.clients, Treasury: h.clients, Agent: h.store.Agent, Lease: h.leases.With, Now: h.now, Log: h.log, Wake: h.relay.Wake,
		ApprovePlan: func(ctx context.Context, m api.ApprovePlan) (api.Decision, error) {
			return bus.Call[api.Decision](ctx, h.bus, m)
		},
		CancelRun: func(ctx context.Context, c goal.Cancel) error {
			ctx, cancel := context.WithTimeout(ctx, storeTimeout)
			defer cancel()
			_, err := h.cancelRun(ctx, api.CancelRun{Run: c.Run, Session: c.Session, Reason: c.Reason})
			return err
		},
	}
	return &goalHandlers{log: h.log, orchestrator: o}
}

// routes returns all routes about goals. If a replica does not acknowledge a message
// within silent, the message is redelivered to another replica.
func (g *goalHandlers) routes(silent time.Duration) []bus.Route {
	// Deliveries are not limited: the goal would otherwise never continue.
	steps := bus.ConsumerOptions{Workers: 32, AckWait: silent, MaxDeliver: -1}
	step := func(ctx context.Context, id string) error {
		return g.orchestrator.Step(ctx, id, bus.MetaOf(ctx).Delivered)
	}
	return []bus.Route{
		bus.Reply(g.list), bus.Reply(g.get), bus.Reply(g.cancel), bus.Reply(g.review), bus.On(g.start, steps),
		bus.On(func(ctx context.Context, m api.GoalCreated) error { return step(ctx, m.Goal) }, steps),
		bus.On(func(ctx context.Context, m api.GoalChanged) error { return step(ctx, m.Goal) }, steps),
		bus.Go(func(ctx context.Context) error { return g.expire(ctx, silent) }),
	}
}

func (g *goalHandlers) start(ctx context.Context, m api.DoTask) error {
	return g.orchestrator.Start(ctx, m.Goal, m.Task, m.Attempt)
}

func (g *goalHandlers) ended(ctx context.Context, m api.LoopEnd) error {
	return g.orchestrator.Ended(ctx, m.Run, m.Session, goal.Outcome{Success: m.Success, Response: m.Response, Turns: m.Turns, Cost: m.Cost})
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
	views := []api.Goal{}
	if m.Status != "" && !slices.Contains(api.GoalStatuses(), m.Status) {
		return api.Goals{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.40q is not a status of goals", m.Status), Next: fmt.Sprintf("use one of %v", api.GoalStatuses())}
	}
	all, page, err := pageOf(m.Limit, 50, func(s goal.State) string { return cursor(s.CreatedAt, s.ID) }, func(n int) ([]goal.State, error) {
		after, err := placeOf(m.After)
		if err != nil {
			return nil, err
		}
		return g.orchestrator.Store.Goals(ctx, goal.Query{Agent: strings.ToLower(m.Agent), Status: m.Status, Limit: n, AfterAt: after.At, AfterID: after.ID})
	})
	for i := range all {
		views = append(views, viewOf(&all[i], false))
	}
	return api.Goals{Goals: views, Page: page}, err
}

func (g *goalHandlers) get(ctx context.Context, m api.GetGoal) (api.Goal, error) {
	return view(g.orchestrator.Store.Goal(ctx, m.Goal))
}

func (g *goalHandlers) cancel(ctx context.Context, m api.CancelGoal) (api.Goal, error) {
	return view(g.orchestrator.Cancel(ctx, m.Goal, m.Reason))
}

func (g *goalHandlers) review(ctx context.Context, m api.ReviewPlan) (api.Goal, error) {
	v, err := view(g.orchestrator.Review(ctx, m.Goal, m.Version, m.Approve, m.Feedback))
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
	return viewOf(&s, true), nil
}

// viewOf returns a goal as a message; whole adds its plans and tasks.
func viewOf(s *goal.State, whole bool) api.Goal {
	g := api.Goal{
		ID: s.ID, Agent: s.Agent, Title: s.Title, Description: s.Description, Strategy: s.Strategy, Status: s.Status, Phase: s.Phase(),
		Reason: s.Reason, By: s.By, Steps: s.Steps, Version: s.Version, Replans: s.Replans, Limit: s.Limit, Spent: s.Spent(), Seq: s.Seq,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, EndedAt: s.EndedAt,
	}
	if n := len(s.Plans); n > 0 {
		g.Estimate = s.Plans[n-1].Cost
	}
	if !whole {
		return g
	}
	for _, p := range s.Plans {
		g.Plans = append(g.Plans, api.GoalPlan{
			Version: p.Version, Status: p.Status, Source: p.Source, Analysis: p.Draft.Analysis, Strategy: p.Draft.Strategy,
			Risks: append([]string{}, p.Draft.Risks...), Cost: p.Cost, Minutes: p.Draft.Minutes, Decision: p.Decision, Feedback: p.Feedback, At: p.At,
		})
	}
	for _, t := range s.Tasks {
		g.Tasks = append(g.Tasks, api.GoalTask{
			ID: t.ID, Version: t.Version, Parent: t.Parent, Title: t.Title, Description: t.Description, Status: t.Status, Role: t.Role,
			Assignee: t.Assignee, Session: goal.Session(t), Priority: t.Priority, Dependencies: append([]string{}, t.Dependencies...), Attempt: t.Attempt,
			Run: t.Lease, Retries: t.Retries, MaxRetries: t.MaxRetries, Deadline: t.Deadline, TimeoutMS: t.TimeoutMS, Estimate: t.Estimate,
			Spent: s.SpentOn(t.ID), Result: t.Result, Artifacts: t.Artifacts, Error: t.Error, StartedAt: t.StartedAt, EndedAt: t.EndedAt,
		})
	}
	return g
}

func (g *goalHandlers) registerHTTP(r host.Routes) {
	r.Handle("GET /v1/goals", fromPage(func(r *http.Request, limit int) api.ListGoals {
		q := r.URL.Query()
		return api.ListGoals{Agent: q.Get("agent"), Status: api.GoalStatus(q.Get("status")), After: q.Get("after"), Limit: limit}
	}, g.list))
	r.Handle("GET /v1/goals/{id}", fromURL(func(r *http.Request) api.GetGoal { return api.GetGoal{Goal: r.PathValue("id")} }, g.get))
	r.Handle("DELETE /v1/goals/{id}", fromURL(func(r *http.Request) api.CancelGoal {
		return api.CancelGoal{Goal: r.PathValue("id"), Reason: r.URL.Query().Get("reason")}
	}, g.cancel))
	r.Handle("POST /v1/goals/{id}/review", host.Answer(readReview, g.review))
}

func readReview(w http.ResponseWriter, r *http.Request) (api.ReviewPlan, error) {
	var body struct {
		Version  int    `json:"version"`
		Approve  *bool  `json:"approve"`
		Feedback string `json:"feedback"`
	}
	if err := host.ReadJSON(w, r, 64<<10, &body); err != nil {
		return api.ReviewPlan{}, err
	}
	if body.Approve == nil || body.Version < 1 {
		return api.ReviewPlan{}, &api.Error{Code: api.Invalid, Message: "a review needs version and approve", Next: "name the version that GET /v1/goals/{id} shows as waiting, and true or false"}
	}
	return api.ReviewPlan{Goal: r.PathValue("id"), Version: body.Version, Approve: *body.Approve, Feedback: body.Feedback}, nil
}
