package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type goalCmd struct {
	List    goalListCmd    `cmd:"" help:"List goals, the latest first."`
	Show    goalShowCmd    `cmd:"" help:"Show a goal with its plans and its tasks."`
	Approve goalApproveCmd `cmd:"" help:"Approve the plan that waits for your approval."`
	Reject  goalRejectCmd  `cmd:"" help:"Reject the plan that waits for your approval; the planner makes another."`
	Cancel  goalCancelCmd  `cmd:"" help:"Cancel a goal."`
}

type goalListCmd struct {
	watching
	paging
	Agent  string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	Status string `help:"Only active, completed, failed or cancelled ones." enum:"active,completed,failed,cancelled," default:""`
}

func (c goalListCmd) Run(ctx context.Context, a *app) error {
	req := api.ListGoals{Agent: c.Agent, Status: api.GoalStatus(c.Status), After: c.After, Limit: c.Limit}
	return listOf(ctx, a, c.Agent, req, func(v api.Goals) int { return len(v.Goals) }, func(w io.Writer, v api.Goals) {
		table(w, "GOAL\tAGENT\tSINCE\tPHASE\tSPENT\tPLAN COSTS\tTITLE", v.Goals, v.Page, func(g api.Goal) []any {
			return []any{g.ID, g.Agent, when(g.CreatedAt), g.Phase, g.Spent, g.Estimate, line(g.Title, 50)}
		})
	})
}

type goalShowCmd struct {
	watching
	Goal string `arg:"" help:"The goal." predictor:"goal"`
}

func (c goalShowCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetGoal{Goal: c.Goal}, a.goalText)
}

func (a *app) goalText(w io.Writer, g api.Goal) {
	fmt.Fprintf(w, "goal\t%s\nagent\t%s\ntitle\t%s\nwants\t%s\nphase\t%s (%s)\n", g.ID, g.Agent, line(g.Title, 200), indent(g.Description), g.Phase, g.Status)
	fields(w, "why", line(g.Reason, 200))
	fmt.Fprintf(w, "by\t%s %s\nspent\t%s of %s planned; a plan above %s requires your approval\nsince\t%s\n",
		g.By.Kind, g.By.Address, g.Spent, g.Estimate, g.Limit, when(g.CreatedAt))
	if g.EndedAt != 0 {
		row(w, "ended", when(g.EndedAt))
	}
	for _, p := range g.Plans {
		fmt.Fprintf(w, "plan %d\t%s by %s, %s, %d min\n\t%s\n", p.Version, p.Status, p.Source, p.Cost, p.Minutes, indent(strings.TrimSpace(p.Analysis+"\n"+p.Strategy)))
		if p.Feedback != "" {
			row(w, "", "feedback: "+indent(p.Feedback))
		}
	}
	for _, t := range g.Tasks {
		fmt.Fprintf(w, "task %s\t%s, plan %d, attempt %d, %s of %s: %s\n", t.ID, t.Status, t.Version, t.Attempt, t.Spent, t.Estimate, line(t.Title, 100))
		fields(w, "", line(t.Error, 200), "", line(t.Result, 200))
	}
	if waiting(g) != 0 {
		row(w, "next", a.named("anima goal approve "+g.ID+", or anima goal reject "+g.ID+" \"what to change\""))
	}
}

// waiting returns the version of the plan that waits for approval, or 0.
func waiting(g api.Goal) int {
	if n := len(g.Plans); n > 0 && g.Plans[n-1].Status == api.PlanWaiting {
		return g.Plans[n-1].Version
	}
	return 0
}

type goalApproveCmd struct {
	Goal    string `arg:"" help:"The goal." predictor:"goal"`
	Version int    `help:"The version of the plan that you have read; default is the one that waits." placeholder:"N"`
}

func (c goalApproveCmd) Run(ctx context.Context, a *app) error {
	return review(ctx, a, api.ReviewPlan{Goal: c.Goal, Version: c.Version, Approve: true})
}

type goalRejectCmd struct {
	Goal     string   `arg:"" help:"The goal." predictor:"goal"`
	Feedback []string `arg:"" optional:"" help:"Feedback for the planner."`
	Version  int      `help:"The version of the plan that you have read; default is the one that waits." placeholder:"N"`
}

func (c goalRejectCmd) Run(ctx context.Context, a *app) error {
	return review(ctx, a, api.ReviewPlan{Goal: c.Goal, Version: c.Version, Feedback: strings.Join(c.Feedback, " ")})
}

// review sends the creator's decision on a plan: the one of m.Version, or the waiting one
// if that is 0.
func review(ctx context.Context, a *app, m api.ReviewPlan) error {
	if m.Version == 0 {
		g, err := ask[api.Goal](ctx, a, api.GetGoal{Goal: m.Goal})
		if err != nil {
			return err
		}
		if m.Version = waiting(g); m.Version == 0 {
			return failure(api.Conflict, fmt.Sprintf("no plan of %s waits for your approval: the goal is in phase %s", g.ID, g.Phase),
				"anima goal show "+g.ID+" shows its plans")
		}
	}
	return show(ctx, a, m, func(w io.Writer, g api.Goal) {
		done := "rejected"
		if m.Approve {
			done = "approved"
		}
		fmt.Fprintf(w, "plan %d of %s is %s; the goal is in phase %s\n", m.Version, g.ID, done, g.Phase)
	})
}

type goalCancelCmd struct {
	Goal   string `arg:"" help:"The goal." predictor:"goal"`
	Reason string `help:"The reason." default:"your creator gave it up"`
}

func (c goalCancelCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.CancelGoal{Goal: c.Goal, Reason: c.Reason}, func(w io.Writer, g api.Goal) {
		fmt.Fprintf(w, "goal %s is %s\n", g.ID, g.Status)
	})
}
