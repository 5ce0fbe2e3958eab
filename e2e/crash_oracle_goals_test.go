package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Checks of the oracle for work beside and after runs: goals, memories, and stored
// outputs.

// goals returns the goals of an agent with all details, oldest first.
func (w *crashWorld) goals(ctx context.Context, agent string) ([]api.Goal, error) {
	list, err := asked[api.Goals](ctx, w.world, api.ListGoals{Agent: agent})
	slices.Reverse(list.Goals)
	for i, g := range list.Goals {
		if err == nil {
			list.Goals[i], err = asked[api.Goal](ctx, w.world, api.GetGoal{Goal: g.ID})
		}
	}
	return list.Goals, err
}

// sessionsOf returns the ids of an agent's sessions, including those of its goals' tasks.
// A task that no run began has none.
func sessionsOf(a api.Agent, goals []api.Goal) []string {
	all := []string{a.Session}
	for _, g := range goals {
		for _, t := range g.Tasks {
			if t.Run != "" {
				all = append(all, t.Session)
			}
		}
	}
	return all
}

// asking returns the ids of a goal's model calls: one that classifies it, and one for
// each plan of the planner.
func asking(g api.Goal) (ids []string) {
	if g.Steps > 0 {
		ids = append(ids, g.ID+".classify")
	}
	for _, p := range g.Plans {
		if p.Source == "planner" {
			ids = append(ids, fmt.Sprintf("%s.plan.%d", g.ID, p.Version))
		}
	}
	return ids
}

// abandoned counts the holds that remain of model calls for cancelled goals and of turns
// of cancelled runs, and their sum. These calls are not repeated, so a hold that was
// active when the router crashed is released at its expiry.
func abandoned(l life) (questions int, left api.Micros) {
	held := map[string]api.Micros{}
	for _, e := range l.entries {
		base := e.ID[:strings.LastIndexByte(e.ID, '/')+1]
		switch {
		case strings.HasSuffix(e.ID, "/settle"), strings.HasSuffix(e.ID, "/release"):
			delete(held, base)
		case strings.HasSuffix(e.ID, "/hold") && (slices.ContainsFunc(l.goals, func(g api.Goal) bool {
			return g.Status == api.GoalCancelled && (e.Turn == g.ID+".classify" || strings.HasPrefix(e.Turn, g.ID+".plan."))
		}) || slices.ContainsFunc(l.turns, func(t api.Turn) bool { return t.ID == e.Turn && t.Model == "" })):
			for _, p := range e.Postings {
				held[base] = max(held[base], p.Amount)
			}
		}
	}
	for _, amount := range held {
		left += amount
	}
	return len(held), left
}

// pursued checks the history of the agent's goals: each change of a goal or task follows
// from the previous one and is announced once; a goal and a task end once; a plan has one
// version more than the plans that were given up, each decided once, and no work is done
// for two versions at a time; an attempt is one run, whose output is the result; no work
// begins after the end.
func (o *oracle) pursued(l life) {
	born := map[string]int{}
	goals, tasks := map[string][]api.GoalChanged{}, map[string][]api.TaskChanged{}
	ids := map[string]bool{}
	for _, m := range found(o.w.read(o.ctx, "LOOP_EVT", "anima.loop.evt.*.v1."+l.agent.ID))(o) {
		switch m.name {
		case "goal_created":
			var e api.GoalCreated
			o.decode(m, &e)
			born[e.Goal]++
		case "goal_changed":
			var e api.GoalChanged
			o.decode(m, &e)
			goals[e.Goal] = append(goals[e.Goal], e)
		case "task_changed":
			var e api.TaskChanged
			o.decode(m, &e)
			tasks[e.Task] = append(tasks[e.Task], e)
		default:
			continue
		}
		if ids[m.id] || m.id == "" {
			o.fault("%s: %s is announced twice as %q", l.agent.ID, m.name, m.id)
		}
		ids[m.id] = true
	}
	for _, g := range l.goals {
		if born[g.ID] != 1 {
			o.fault("%s: its beginning is announced %d times", g.ID, born[g.ID])
		}
		o.phases(g, goals[g.ID])
		o.planned(l, g)
		o.versions(g, goals[g.ID], tasks)
		for _, t := range g.Tasks {
			o.worked(l, t, tasks[t.ID])
			delete(tasks, t.ID)
		}
		delete(born, g.ID)
	}
	if len(born) > 0 || len(tasks) > 0 {
		o.fault("%s: announced goals %v and tasks %v are not there", l.agent.ID, born, tasks)
	}
}

func (o *oracle) phases(g api.Goal, said []api.GoalChanged) {
	slices.SortStableFunc(said, func(a, b api.GoalChanged) int { return cmp.Compare(a.Seq, b.Seq) })
	phase, ends := api.PhaseClassifying, 0
	var last api.GoalChanged
	for _, e := range said {
		if e.Seq <= last.Seq || e.Seq > g.Seq || e.Version < last.Version {
			o.fault("%s: change %d to version %d is announced after %d to %d; it had %d changes", g.ID, e.Seq, e.Version, last.Seq, last.Version, g.Seq)
		}
		if e.Status != api.GoalActive != (e.Phase == api.PhaseComplete || e.Phase == api.PhaseFailed || e.Phase == api.PhaseCancelled) {
			o.fault("%s: change %d says %s and %s", g.ID, e.Seq, e.Status, e.Phase)
		}
		last = e
		if e.Previous != phase {
			o.fault("%s: change %d leads from %s to %s, after %s", g.ID, e.Seq, e.Previous, e.Phase, phase)
		}
		if e.Status != api.GoalActive && e.Phase != phase {
			ends++
		}
		phase = e.Phase
	}
	if phase != g.Phase || last.Status != g.Status || last.Reason != g.Reason || ends != 1 && g.Status != api.GoalActive {
		o.fault("%s: it is announced as %s, %q, and has %d ends; it is %s, %q", g.ID, phase, last.Reason, ends, g.Phase, g.Reason)
	}
}

// versions checks that the tasks of a plan version change only between the proposal of
// that version and the proposal of the next.
func (o *oracle) versions(g api.Goal, said []api.GoalChanged, tasks map[string][]api.TaskChanged) {
	proposed := map[int]int64{} // sequence of the change that proposed a version
	for _, e := range said {
		if _, known := proposed[e.Version]; !known {
			proposed[e.Version] = e.Seq
		}
	}
	for _, t := range g.Tasks {
		from, to := proposed[t.Version], cmp.Or(proposed[t.Version+1], math.MaxInt64)
		for _, e := range tasks[t.ID] {
			if e.Seq <= from || e.Seq > to {
				o.fault("%s: it is %s with change %d, and version %d stands from %d to %d", t.ID, e.Status, e.Seq, t.Version, from, to)
			}
		}
	}
}

func (o *oracle) planned(l life, g api.Goal) {
	if len(g.Plans) != g.Version || g.Version > 0 && g.Replans != g.Version-1 {
		o.fault("%s: %d plans in %d versions, %d were given up", g.ID, len(g.Plans), g.Version, g.Replans)
	}
	for i, p := range g.Plans {
		var decided []string
		for _, d := range l.decisions {
			if d.Turn == g.ID && d.Index == p.Version && d.Tool == api.PlanTool {
				decided = append(decided, d.ID)
			}
		}
		if p.Version != i+1 || p.Status == api.PlanApproved && !slices.Equal(decided, []string{p.Decision}) {
			o.fault("%s: plan %d is version %d by decision %q, policy has %v", g.ID, i+1, p.Version, p.Decision, decided)
		}
	}
}

func (o *oracle) worked(l life, t api.GoalTask, said []api.TaskChanged) {
	slices.SortStableFunc(said, func(a, b api.TaskChanged) int { return cmp.Compare(a.Seq, b.Seq) })
	var status api.TaskStatus
	times := map[api.TaskStatus]int{}
	var began int64
	over := map[string]int64{} // when the attempt of a run ended
	taken := 0                 // attempts that were ended by a deadline or a cancellation
	for _, e := range said {
		if e.Previous != status {
			o.fault("%s: change %d leads from %s to %s, after %q", t.ID, e.Seq, e.Previous, e.Status, status)
		}
		late := strings.HasPrefix(e.Error, "TIMEOUT: ")
		switch {
		case e.Status == api.TaskRunning:
			began = e.At
		case e.Previous == api.TaskRunning:
			over[e.Run] = e.At
			if late || e.Status == api.TaskCancelled {
				taken++
			}
			if left := began + t.TimeoutMS*1000 - e.At; late && left >= 0 {
				o.fault("%s: attempt %d is too late %d µs before its deadline", t.ID, times[api.TaskRunning], left)
			}
		}
		status = e.Status
		times[status]++
	}
	ends := times[api.TaskCompleted] + times[api.TaskFailed] + times[api.TaskCancelled]
	if status != t.Status || ends != 1 {
		o.fault("%s: it is announced as %s and has %d ends; it is %s", t.ID, status, ends, t.Status)
	}
	runs, result := map[string]bool{}, ""
	for _, s := range l.sessions {
		if s.id != t.Session {
			continue
		}
		for _, turn := range s.turns {
			runs[turn.Run] = true
			if late := turn.StartedAt - over[turn.Run]; turn.Model != "" && late > stopping {
				o.fault("%s: turn %s began %d µs after its attempt was over", t.ID, turn.ID, late)
			}
			if turn.Run == t.Run {
				result = cmp.Or(result, resultOf(turn))
			}
		}
	}
	begun := t.Attempt
	if t.Status == api.TaskCancelled && times[api.TaskRunning] < begun { // the last attempt was queued and never began
		begun--
	}
	dropped := begun - len(runs) // runs that were dropped before their first turn
	if dropped < 0 || dropped > taken || times[api.TaskRunning] != begun || times[api.TaskAssigned] != t.Attempt {
		o.fault("%s: %d attempts were queued %d times, begun %d times and made by %d runs", t.ID, t.Attempt, times[api.TaskAssigned], times[api.TaskRunning], len(runs))
	}
	if t.Status == api.TaskCompleted && (t.Result != result || t.Result == "") {
		o.fault("%s: its result is %q, and its run said %q", t.ID, t.Result, result)
	}
}

// stopping is the maximum time in microseconds from the cancellation of a run to the
// start of a turn of it (docs/reference/platform.md, Takeover).
const stopping = 250_000

// resultOf returns the output that a turn reports for its task, "" if it reports none.
func resultOf(t api.Turn) string {
	for _, c := range t.Calls {
		var args struct{ Output string }
		if c.Tool == "complete_task" && json.Unmarshal(c.Arguments, &args) == nil {
			return args.Output
		}
	}
	if len(t.Calls) > 0 {
		return ""
	}
	return t.Thinking
}

var peerIn = regexp.MustCompile(`(?m)^\[message from peer (0x[0-9A-Fa-f]{40})`)

// remembered checks that every turn became one episode, and that the count of each
// relationship is the number of meetings in the turns: messages sent to the peer, and
// inputs with messages of the peer.
func (o *oracle) remembered(l life) {
	who := l.agent.ID
	read := func(tier api.MemoryTier) []api.Memory {
		return found(asked[api.Memories](o.ctx, o.w.world, api.ListMemory{Agent: who, Tier: tier, Limit: 1000}))(o).Memories
	}
	episodes := map[string]int{}
	for _, m := range read(api.MemoryEpisodic) {
		episodes[m.ID]++
	}
	met := map[string]int64{}
	for _, t := range l.turns {
		if episodes[t.ID] != 1 {
			o.fault("%s: turn %s became %d memories", who, t.ID, episodes[t.ID])
		}
		delete(episodes, t.ID)
		for _, c := range t.Calls {
			var args struct {
				To string `json:"to_address"`
			}
			if c.Tool == "send_message" && c.Outcome == api.OutcomeOK && json.Unmarshal(c.Arguments, &args) == nil {
				met[strings.ToLower(args.To)]++
			}
		}
		wrote := map[string]bool{} // two messages of one peer in the input of a turn are one meeting
		for _, m := range peerIn.FindAllStringSubmatch(t.Input, -1) {
			if peer := strings.ToLower(m[1]); !wrote[peer] {
				wrote[peer] = true
				met[peer]++
			}
		}
	}
	if len(episodes) > 0 {
		o.fault("%s: memories of turns that do not exist: %v", who, episodes)
	}
	for _, m := range read(api.MemoryRelationship) {
		if m.Count != met[m.ID] {
			o.fault("%s: its memory of %s counts %d interactions, want %d", who, m.ID, m.Count, met[m.ID])
		}
		delete(met, m.ID)
	}
	if len(met) > 0 {
		o.fault("%s: no memory of its peers %v", who, met)
	}
}

var cutMark = regexp.MustCompile(`(?s)^(.*)\n\[(\d+) more bytes were cut: the whole is kept`)

// kept checks that an output that the turn marks as stored can be read completely, and
// that it begins with the part in the turn.
func (o *oracle) kept(l life) {
	for _, t := range l.turns {
		for _, c := range t.Calls {
			m := cutMark.FindStringSubmatch(c.Result)
			if m == nil {
				continue
			}
			more, _ := strconv.Atoi(m[2])
			if whole := o.output(t, c.Index); len(whole) != len(m[1])+more || !strings.HasPrefix(whole, m[1]) {
				o.fault("%s: of call %d of turn %s %d bytes are kept, want %d, %.40q…", l.agent.ID, c.Index, t.ID, len(whole), len(m[1])+more, m[1])
			}
		}
	}
}

// output reads the stored output of a call, part by part.
func (o *oracle) output(t api.Turn, index int) string {
	whole := ""
	for at := int64(0); ; {
		part := found(asked[api.OutputPart](o.ctx, o.w.world, api.GetOutput{Turn: t.ID, Index: index, Offset: at}))(o)
		whole += part.Text
		if part.Next == 0 {
			return whole
		}
		at = part.Next
	}
}

// pursuing returns a description of the work in progress for a goal, "" if there is none.
func (w *crashWorld) pursuing(ctx context.Context, g api.Goal) string {
	if g.Status == api.GoalActive {
		return fmt.Sprintf("goal %s is in phase %s", g.ID, g.Phase)
	}
	changes, err := w.read(ctx, "LOOP_EVT", "anima.loop.evt.task_changed.v1."+g.Agent)
	if err != nil {
		return fmt.Sprintf("the tasks of %s cannot be read: %v", g.ID, err)
	}
	for _, t := range g.Tasks {
		begun := 0
		for _, m := range changes {
			var e api.TaskChanged
			if api.Decode(m.data, &e) == nil && e.Task == t.ID && e.Status == api.TaskRunning {
				begun++
			}
		}
		ends, err := w.named(ctx, t.Session, "loop_end")
		if err != nil || len(ends) < begun {
			return fmt.Sprintf("task %s has ended %d runs of %d: %v", t.ID, len(ends), begun, err)
		}
	}
	keys, err := w.keys(ctx, g.ID)
	if err != nil || len(keys) > 0 {
		return fmt.Sprintf("goal %s has the keys %v: %v", g.ID, keys, err)
	}
	said, err := w.read(ctx, "LOOP_EVT", "anima.loop.evt.goal_changed.v1."+g.Agent)
	if err != nil || !slices.ContainsFunc(said, func(m told) bool {
		var e api.GoalChanged
		return api.Decode(m.data, &e) == nil && e.Goal == g.ID && e.Status == g.Status
	}) {
		return fmt.Sprintf("that goal %s is %s is not announced: %v", g.ID, g.Status, err)
	}
	return ""
}
