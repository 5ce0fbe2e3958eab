package e2e

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Scenes with goals that do not go as planned.

// detour plays this scene: a plan waits for approval and the creator approves it. One of
// its tasks fails finally while another is in progress and a third depends on it. The
// next version of the plan is executed to the end.
func (w *crashWorld) detour(ctx context.Context, s *scene) error {
	g, err := w.held(ctx, s)
	if err != nil {
		return err
	}
	s.approved = time.Now().UnixMicro()
	if err := w.review(ctx, api.ReviewPlan{Goal: g.ID, Version: 1, Approve: true}); err != nil {
		return err
	}
	g, err = w.reaches(ctx, s, 0, func(g api.Goal) bool { return len(g.Tasks) == 3 && g.Tasks[0].Run != "" && g.Tasks[1].Run != "" })
	if err != nil {
		return err
	}
	for _, t := range g.Tasks[:2] {
		w.acting(ctx, t.Session, t.Run)
	}
	_, err = asked[api.RunState](ctx, w.world, api.CancelRun{Run: g.Tasks[0].Run, Session: g.Tasks[0].Session})
	if err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	return nil
}

// setback plays this scene: a plan waits for approval and the creator rejects it. The
// deadline of the next plan's task passes during its first attempt, and a later attempt
// completes it.
func (w *crashWorld) setback(ctx context.Context, s *scene) error {
	g, err := w.held(ctx, s)
	if err != nil {
		return err
	}
	s.from = w.passed() // until here the scene is the same as detour
	if err := w.review(ctx, api.ReviewPlan{Goal: g.ID, Version: 1, Feedback: tooDear}); err != nil {
		return err
	}
	_, err = w.reaches(ctx, s, 0, func(g api.Goal) bool { return g.Status != api.GoalActive })
	s.to = w.passed() // from here on it is the same as detour again
	return err
}

const tooDear = "that is too dear" // the planner's next answer depends on this text

// held creates a goal and waits until its first plan waits for approval.
func (w *crashWorld) held(ctx context.Context, s *scene) (api.Goal, error) {
	if err := w.say(ctx, s, "crash "+s.kind, api.ModeQueue); err != nil {
		return api.Goal{}, err
	}
	return w.reaches(ctx, s, 0, func(g api.Goal) bool { return len(g.Plans) == 1 && g.Plans[0].Status != api.PlanProposed })
}

// review sends the creator's decision on a plan.
func (w *crashWorld) review(ctx context.Context, word api.ReviewPlan) error {
	_, err := asked[api.Goal](ctx, w.world, word)
	if err != nil && api.CodeOf(err) != api.Conflict { // a conflict means that the decision was accepted and its answer lost
		return fmt.Errorf("review: %w", err)
	}
	return nil
}

// retreat plays this scene: a goal is cancelled during its planner's model call, and the
// next goal while one of its tasks is in progress and another depends on that.
func (w *crashWorld) retreat(ctx context.Context, s *scene) error {
	for i, there := range []func(api.Goal) bool{
		func(g api.Goal) bool {
			return g.Phase != api.PhaseClassifying && w.reserved(ctx, g.Agent, g.ID+".plan.1")
		},
		func(g api.Goal) bool { return len(g.Tasks) == 2 && g.Tasks[0].Run != "" },
	} {
		if err := w.say(ctx, s, fmt.Sprintf("crash retreat %d", i+1), api.ModeQueue); err != nil {
			return err
		}
		g, err := w.reaches(ctx, s, i, there)
		if err != nil {
			return err
		}
		if i == 1 {
			w.acting(ctx, g.Tasks[0].Session, g.Tasks[0].Run)
		}
		g, err = asked[api.Goal](ctx, w.world, api.CancelGoal{Goal: g.ID, Reason: "enough"})
		if err != nil || g.Status != api.GoalCancelled {
			return fmt.Errorf("cancel the goal: it is %s: %w", g.Status, err)
		}
	}
	return nil
}

// reaches waits until the agent's i-th goal satisfies the condition.
func (w *crashWorld) reaches(ctx context.Context, s *scene, i int, there func(api.Goal) bool) (g api.Goal, err error) {
	if !until(ctx, time.Minute, func() bool {
		var all []api.Goal
		if all, err = w.goals(ctx, s.agents[0].ID); err != nil || len(all) <= i {
			return false
		}
		g = all[i]
		return there(g)
	}) {
		return g, fmt.Errorf("goal %d does not come so far: %+v: %w", i+1, g, err)
	}
	return g, nil
}

// reserved reports whether a hold was made for a turn or for a model call of a goal.
func (w *crashWorld) reserved(ctx context.Context, agent, turn string) bool {
	page, err := asked[api.Entries](ctx, w.world, api.ListEntries{Agent: agent, Limit: 200})
	return err == nil && slices.ContainsFunc(page.Entries, func(e api.Posted) bool { return e.Turn == turn && strings.HasSuffix(e.ID, "/hold") })
}

// detoured checks that the plan that needed approval began after the creator's decision,
// that its remaining tasks were given up, and that the second plan was executed.
func (o *oracle) detoured(s *scene, l life) {
	if len(l.goals) != 1 {
		o.fault("%s: it has %d goals", l.agent.ID, len(l.goals))
		return
	}
	g := l.goals[0]
	var plans, tasks []string
	for _, p := range g.Plans {
		plans = append(plans, p.Source+" "+string(p.Status))
	}
	for _, t := range g.Tasks {
		tasks = append(tasks, fmt.Sprintf("%d %s %.9s", t.Version, t.Status, t.Error+t.Result))
	}
	if want := []string{"planner approved", "planner approved"}; g.Status != api.GoalCompleted || !slices.Equal(plans, want) {
		o.fault("%s: it is %s with the plans %q, want %q", g.ID, g.Status, plans, want)
	}
	if want := []string{"1 failed CANCELLED", "1 cancelled REPLANNED", "1 cancelled REPLANNED", "2 completed It is men"}; !slices.Equal(tasks, want) {
		o.fault("%s: its tasks are %q, want %q", g.ID, tasks, want)
	}
	for _, e := range o.tasks(l) {
		if e.At < s.approved {
			o.fault("%s: it is %s %d µs before the creator approved its plan", e.Task, e.Status, s.approved-e.At)
		}
	}
	for _, t := range g.Tasks[:min(2, len(g.Tasks))] {
		if st := found(asked[api.RunState](o.ctx, o.w.world, api.GetRun{Run: t.Run}))(o); !st.Cancelled || st.Success {
			o.fault("%s: the run of a task that was given up is %+v", t.ID, st)
		}
	}
	held := slices.ContainsFunc(l.decisions, func(d api.Decision) bool {
		return d.Turn == g.ID && d.Index == 1 && d.Tool == api.PlanTool && d.Action == api.Quarantine
	})
	if !held {
		o.fault("%s: its first plan was not held: %+v", g.ID, l.decisions)
	}
	if causes, _, _ := o.woken(l); causes["goal-"+g.ID] != 1 || len(causes) != 1 {
		o.fault("%s: it was woken by %v, want the end of goal %s", l.agent.ID, causes, g.ID)
	}
}

// tasks returns the changes of an agent's tasks in their order.
func (o *oracle) tasks(l life) (changes []api.TaskChanged) {
	for _, m := range found(o.w.read(o.ctx, "LOOP_EVT", "anima.loop.evt.task_changed.v1."+l.agent.ID))(o) {
		var e api.TaskChanged
		o.decode(m, &e)
		changes = append(changes, e)
	}
	slices.SortStableFunc(changes, func(a, b api.TaskChanged) int { return cmp.Compare(a.Seq, b.Seq) })
	return changes
}

// setBack checks that the rejected plan was never begun, that the next plan was made with
// the creator's feedback, and that its task was retried until an attempt had a result
// before its deadline. After a crash that may be a later attempt than the second.
func (o *oracle) setBack(l life) {
	if len(l.goals) != 1 {
		o.fault("%s: it has %d goals", l.agent.ID, len(l.goals))
		return
	}
	g := l.goals[0]
	var plans []string
	for _, p := range g.Plans {
		plans = append(plans, p.Source+" "+string(p.Status)+" "+p.Feedback)
	}
	if want := []string{"planner rejected " + tooDear, "planner approved "}; g.Status != api.GoalCompleted || !slices.Equal(plans, want) {
		o.fault("%s: it is %s with the plans %q, want %q", g.ID, g.Status, plans, want)
		return
	}
	var late []string // runs whose deadline passed
	for _, e := range o.tasks(l) {
		if strings.HasPrefix(e.Error, "TIMEOUT: ") && e.Previous == api.TaskRunning {
			late = append(late, e.Run)
		}
	}
	if len(g.Tasks) != 1 || g.Tasks[0].Version != 2 || g.Tasks[0].Result != "It is done." || len(late) == 0 || g.Tasks[0].Retries != len(late) {
		o.fault("%s: after the deadlines of %d attempts its tasks are %+v, want one of version 2 that was tried again and is done", g.ID, len(late), g.Tasks)
		return
	}
	// Only the first late run is checked: a later attempt may have stored its result when
	// its owner crashed, before the task was updated.
	if st := found(asked[api.RunState](o.ctx, o.w.world, api.GetRun{Run: late[0]}))(o); !st.Cancelled || st.Success {
		o.fault("%s: the run whose deadline passed is %+v", g.ID, st)
	}
	if causes, _, _ := o.woken(l); causes["goal-"+g.ID] != 1 || len(causes) != 1 {
		o.fault("%s: it was woken by %v, want the end of goal %s", l.agent.ID, causes, g.ID)
	}
}

// retreated checks that both goals are cancelled with the given reason and cause no wake.
func (o *oracle) retreated(l life) {
	if len(l.goals) != 2 {
		o.fault("%s: it has %d goals", l.agent.ID, len(l.goals))
		return
	}
	for _, g := range l.goals {
		if g.Status != api.GoalCancelled || g.Phase != api.PhaseCancelled || g.Reason != "enough" {
			o.fault("%s: it is %s, %s: %q", g.ID, g.Status, g.Phase, g.Reason)
		}
		for _, t := range g.Tasks {
			if t.Status != api.TaskCancelled {
				o.fault("%s: it is %s in a goal that was cancelled", t.ID, t.Status)
			}
			if t.Run == "" {
				continue
			}
			if st := found(asked[api.RunState](o.ctx, o.w.world, api.GetRun{Run: t.Run}))(o); !st.Cancelled || st.Success {
				o.fault("%s: its run is %+v in a goal that was cancelled", t.ID, st)
			}
		}
	}
	if causes, _, _ := o.woken(l); len(causes) != 0 {
		o.fault("%s: goals that were cancelled woke it: %v", l.agent.ID, causes)
	}
}
