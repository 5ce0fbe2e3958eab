package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// crashMoney is the deposit of each agent in micro-USD. The first payment from it changes
// the agent's tier, which is announced.
const crashMoney = 5*api.Dollar + 1

// The scenes. In tour, the first agent uses a tool of every effect class, writes to the
// second, which answers to the third, and sleeps until its alarm. In talk, messages
// cancel the work of an agent and what waits behind it, two messages are collected into
// one run, and a third one joins it. In project, the agent changes its schedule and
// creates a goal of two tasks: the output that the first one reads is cut in the turn,
// and a call completes the task; the second one depends on it and ends with text. detour,
// setback and retreat have goals that do not go as planned.
const (
	tour    = "tour"
	talk    = "talk"
	project = "project"
	detour  = "detour"
	setback = "setback"
	retreat = "retreat"
)

var scenes = []string{tour, talk, project, detour, setback, retreat}

// scene is one play of a scene.
type scene struct {
	kind   string
	agents []api.Agent
	runs   []api.Accepted // answers to the messages, in order
	stays  []string       // ids of the runs that are cancelled

	approved int64                     // when the creator approved the plan, in Unix microseconds
	from, to map[string]map[string]int // passes of the services when the scene began to differ from another scene, and when it ceased to; nil: it differs from the beginning
}

// ends returns the expected number of ended runs of each agent.
func (s *scene) ends() map[string]int {
	switch s.kind {
	case talk:
		return map[string]int{s.agents[0].ID: 5}
	case project, detour, setback, retreat: // in the main session: the run of the message, and either that of the goal's end or that of the second message
		return map[string]int{s.agents[0].ID: 2}
	}
	return map[string]int{s.agents[0].ID: 2, s.agents[1].ID: 1, s.agents[2].ID: 1}
}

func (w *crashWorld) set(ctx context.Context, kind, name string) (*scene, error) {
	s := &scene{kind: kind}
	roles := []string{"a", "b", "c"}
	if kind != tour {
		roles = roles[:1]
	}
	for _, role := range roles {
		var tools []string // nil: the default tools
		switch kind {
		case project:
			tools = []string{"modify_heartbeat", "check_credits", "list_models", "create_goal", "write_file", "read_file", "complete_task"}
		case detour, setback, retreat:
			tools = []string{"create_goal", "exec"}
		}
		a, err := w.bear(ctx, name+role, tools...)
		if err != nil {
			return nil, err
		}
		s.agents = append(s.agents, a)
	}
	return s, nil
}

// bear creates an agent with a deposit, and with the given tools instead of the default
// ones if there are any.
func (w *crashWorld) bear(ctx context.Context, name string, tools ...string) (api.Agent, error) {
	head := "name: " + name
	if len(tools) > 0 {
		head += "\ntools: [" + strings.Join(tools, ", ") + "]"
	}
	a, err := asked[api.Agent](ctx, w.world, api.ApplyAgent{Source: "---\n" + head + "\n---\nBe useful.\n"})
	if err == nil {
		_, err = asked[api.Posted](ctx, w.world, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: crashMoney, Source: "faucet"})
	}
	return a, err
}

func (w *crashWorld) play(ctx context.Context, s *scene) error {
	switch s.kind {
	case tour:
		return w.say(ctx, s, "crash tools "+s.agents[1].Address+" "+s.agents[2].Address, api.ModeQueue)
	case project:
		return w.say(ctx, s, "crash project", api.ModeQueue)
	case detour:
		return w.detour(ctx, s)
	case setback:
		return w.setback(ctx, s)
	case retreat:
		return w.retreat(ctx, s)
	}
	if err := w.say(ctx, s, "long command", api.ModeQueue); err != nil {
		return err
	}
	w.acting(ctx, s.runs[0].Session, s.runs[0].Run)
	for _, m := range []struct {
		text string
		mode api.Mode
	}{{"never", api.ModeQueue}, {"short command", api.ModeCollect}, {"and this", api.ModeCollect}} {
		if err := w.say(ctx, s, m.text, m.mode); err != nil {
			return err
		}
	}
	for _, i := range []int{1, 0} {
		st, err := asked[api.RunState](ctx, w.world, api.CancelRun{Run: s.runs[i].Run, Session: s.runs[i].Session})
		if err != nil {
			return fmt.Errorf("cancel: %w", err)
		}
		if st.Cancelled {
			s.stays = append(s.stays, st.Run)
		}
	}
	w.acting(ctx, s.runs[2].Session, s.runs[2].Run)
	return w.say(ctx, s, "and that", api.ModeSteer)
}

// say sends a message until it is accepted.
func (w *crashWorld) say(ctx context.Context, s *scene, text string, mode api.Mode) error {
	a := s.agents[0].ID
	acc, err := asked[api.Accepted](ctx, w.world, api.SendMessage{Agent: a, ID: fmt.Sprintf("%s-%d", a, len(s.runs)), Content: text, Mode: mode})
	s.runs = append(s.runs, acc)
	return err
}

// acting waits until a run has begun a tool call or has ended.
func (w *crashWorld) acting(ctx context.Context, session, run string) {
	until(ctx, time.Minute, func() bool {
		all, err := w.named(ctx, session, "tool_start", "loop_end")
		return err == nil && slices.ContainsFunc(all, func(m told) bool { return strings.Contains(string(m.data), run) })
	})
}

// judge has the oracle check a scene, and checks the result that this scene must have.
func (w *crashWorld) judge(ctx context.Context, s *scene, c crashCase) []string {
	o := &oracle{w: w, ctx: ctx}
	lives := make([]life, len(s.agents))
	for i, a := range s.agents {
		lives[i] = o.look(a, crashMoney)
		o.judge(lives[i])
		if _, left := abandoned(lives[i]); left > 0 && c.service != "inference-router" && c.service != "treasury" {
			o.fault("%s: %s is held for calls that are not repeated, and neither the router nor treasury failed", a.ID, left)
		}
		runs := 0
		for _, ran := range lives[i].sessions {
			for _, m := range ran.events {
				if m.name != "loop_end" || ran.id != a.Session && ran.id != a.Mail {
					continue
				}
				var e api.LoopEnd
				if o.decode(m, &e); ran.id == a.Session || e.Outcome != api.OutcomeMerged { // mail that an earlier run has read makes no run
					runs++
				}
			}
		}
		if want := s.ends()[a.ID]; runs != want {
			o.fault("%s: %d runs, want %d", a.ID, runs, want)
		}
	}
	switch s.kind {
	case talk:
		o.talked(s, lives[0])
	case project:
		o.projected(lives[0], c)
	case detour:
		o.detoured(s, lives[0])
	case setback:
		o.setBack(lives[0])
	case retreat:
		o.retreated(lives[0])
	default:
		o.toured(s, lives, c)
	}
	return o.faults
}

// projected checks that the crash changed neither the calls nor their number, and that
// the long output can be read.
func (o *oracle) projected(l life, c crashCase) {
	var tools []string
	for _, t := range l.turns {
		for _, call := range t.Calls {
			tools = append(tools, call.Tool)
			o.outcome(l, t, call, c)
			lost := call.Outcome != api.OutcomeOK || c.mode == failpoint.Timeout && c.point.Name == failpoint.LoopOutput.String()
			if long := fmt.Sprintf("%012000d", 7); call.Tool == "read_file" && !lost && o.output(t, call.Index) != long {
				o.fault("%s: the long output cannot be read", l.agent.ID)
			}
		}
	}
	if want := []string{"modify_heartbeat", "check_credits", "list_models", "create_goal", "write_file", "read_file", "complete_task"}; !slices.Equal(tools, want) {
		o.fault("the calls are %v, want %v", tools, want)
	}
	beats := found(asked[api.Schedule](o.ctx, o.w.world, api.GetSchedule{Agent: l.agent.ID}))(o).Entries
	if len(beats) != 1 || beats[0].Beat.Name != "crash" || beats[0].Beat.Reason != "survive" {
		o.fault("%s: its schedule is %+v", l.agent.ID, beats)
	}
	if len(l.goals) != 1 {
		o.fault("%s: it has %d goals", l.agent.ID, len(l.goals))
		return
	}
	g := l.goals[0]
	if g.Status != api.GoalCompleted || g.Version != 1 || g.Plans[0].Source != "planner" || len(g.Tasks) != 2 {
		o.fault("%s: the goal is %+v", l.agent.ID, g)
		return
	}
	if causes, _, _ := o.woken(l); causes["goal-"+g.ID] != 1 || len(causes) != 1 {
		o.fault("%s: it was woken by %v, want the end of goal %s", l.agent.ID, causes, g.ID)
	}
	for i, result := range []string{"it is written", "It went well."} {
		if t := g.Tasks[i]; t.Status != api.TaskCompleted || t.Attempt != 1 || t.Result != result {
			o.fault("task %s is %s with %q after %d attempts", t.ID, t.Status, t.Result, t.Attempt)
		}
	}
}

// toured checks that the crash changed the outcome of no call, except the irreversible
// one.
func (o *oracle) toured(s *scene, lives []life, c crashCase) {
	var tools []string
	for _, l := range lives[:2] {
		for _, t := range l.turns {
			for _, call := range t.Calls {
				tools = append(tools, call.Tool)
				o.outcome(l, t, call, c)
			}
		}
	}
	if want := []string{"write_file", "read_file", "exec", "send_message", "remember_fact", "sleep", "send_message"}; !slices.Equal(tools, want) {
		o.fault("the calls are %v, want %v", tools, want)
	}
	for i, content := range map[int]string{1: "ping " + s.agents[2].Address, 2: "pong"} {
		o.heard(lives[i], content)
	}
}

// talked checks that cancelled runs stay cancelled, and that each message has one outcome
// and is in the transcript at most once.
func (o *oracle) talked(s *scene, l life) {
	for i, text := range []string{"long command", "never", "short command", "and this", "and that"} {
		st := found(asked[api.RunState](o.ctx, o.w.world, api.GetRun{Run: s.runs[i].Run}))(o)
		stays := slices.Contains(s.stays, st.Run)
		if stays && (!st.Cancelled || st.Success) || !stays && !st.Success || i >= 2 && st.Cancelled {
			o.fault("%q is %+v, want cancelled: %t", text, st, stays)
		}
		n := 0
		for _, line := range found(asked[api.Transcript](o.ctx, o.w.world, api.GetTranscript{Session: l.agent.Session}))(o).Lines {
			if line.Role == "user" {
				n += strings.Count(line.Content, text)
			}
		}
		if dropped := st.Outcome == api.OutcomeDropped; n > 1 || n == 0 && !dropped || n > 0 && dropped {
			o.fault("%q, %s, is in the transcript %d times", text, st.Outcome, n)
		}
	}
}

// inTools are the points inside a tool of loop, where a timeout is a timeout of the call.
var inTools = []string{failpoint.LoopTool.String(), failpoint.LoopGoalCreate.String(), failpoint.LoopTaskComplete.String()}

// outcome checks that the call may have this outcome in this case. An irreversible call
// of a run that was resumed may have the outcome unknown.
func (o *oracle) outcome(l life, t api.Turn, call api.CallState, c crashCase) {
	switch {
	case call.Outcome == api.OutcomeOK:
	case call.Outcome == api.OutcomeUnknown && call.Tool == "exec" && o.owners(l, t.Run) > 1:
	case call.Outcome == api.OutcomeTimeout && c.mode == failpoint.Timeout && slices.Contains(inTools, c.point.Name):
	default:
		o.fault("%s: %s ended with %s: %s", l.agent.ID, call.Tool, call.Outcome, call.Error)
	}
}

// owners counts the epochs that wrote to a run's journal.
func (o *oracle) owners(l life, run string) int {
	epochs := map[uint64]bool{}
	for _, m := range l.journal() {
		var j api.Journal
		if o.decode(m, &j); j.Run == run {
			epochs[j.Epoch] = true
		}
	}
	return len(epochs)
}

// heard checks that a message is in the inbox once, is processed, and is in the input of
// one turn.
func (o *oracle) heard(l life, content string) {
	who := l.agent.ID
	got := found(asked[api.Inbox](o.ctx, o.w.world, api.ListInbox{Agent: who}))(o).Messages
	if len(got) != 1 || got[0].Content != content || got[0].Status != "processed" {
		o.fault("%s: its inbox is %+v, want %q once, processed", who, got, content)
	}
	n := 0
	for _, t := range l.turns {
		n += strings.Count(t.Input, content)
	}
	if n != 1 {
		o.fault("%s: %q is in the input %d times", who, content, n)
	}
}
