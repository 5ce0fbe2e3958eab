package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/tools/trace/query"
	"github.com/anima-run/anima/tools/trace/rules"
)

// Variables of make crash and make crash-long.
const (
	crashForm   = "ANIMA_CRASH"        // short: every point in every mode, once; long: in every service, at every pass; empty: a few cases
	crashSeed   = "ANIMA_CRASH_SEED"   // seed of the order
	crashWorlds = "ANIMA_CRASH_WORLDS" // number of concurrent worlds
	crashOnly   = "ANIMA_CRASH_ONLY"   // run only the cases whose name contains this text
	crashDoc    = "ANIMA_CRASH_DOC"    // file that the table is written to
)

// crashCase is one crash in one scene.
type crashCase struct {
	point   failpoint.Info
	service string
	mode    failpoint.Mode
	pass    int
	scene   string
}

func (c crashCase) String() string {
	return fmt.Sprintf("%s in %s, %s, pass %d of the %s", c.point.Name, c.service, c.mode, c.pass, c.scene)
}

// spec returns the text that arms the failpoint. Data that a process has written to a
// socket is sent shortly afterwards, so after an answer or an acknowledgement the crash
// is delayed by 20 ms.
func (c crashCase) spec() string {
	s := fmt.Sprintf("%s:%s:%d", c.point.Name, c.mode, c.pass)
	if c.mode == failpoint.After && (c.point.Name == failpoint.BusAnswer.String() || c.point.Name == failpoint.BusAck.String()) {
		s += ":20ms"
	}
	return s
}

// plays is how often a scene is played for a case whose point it does not pass.
const plays = 3

// verdict is the result of a case.
type verdict struct {
	crashCase
	fired  bool
	took   time.Duration
	faults []string
}

// TestCrashMatrix crashes one service at one point, for every point, service, mode and
// pass, while agents use every feature, and has the oracle check the result of each case.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	form := os.Getenv(crashForm)
	first := newCrashWorld(t, "")
	passes := first.rehearse(t)
	if form == "long" { // a second rehearsal excludes passes that do not occur in every play
		for scene, services := range first.rehearse(t) {
			for service, points := range passes[scene] {
				for p, n := range points {
					points[p] = passing{n.skipped, min(n.most, services[service][p].most)}
				}
			}
		}
	}
	cases := crashCases(form, passes)
	if only := os.Getenv(crashOnly); only != "" {
		cases = slices.DeleteFunc(cases, func(c crashCase) bool { return !strings.Contains(c.String(), only) })
	}
	if len(cases) == 0 {
		t.Fatal("no case")
	}
	rng := rand.New(rand.NewPCG(uint64(number(t, crashSeed, 1)), 0))
	rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	// Slow cases come first, so that no world is left with them alone: a message that a
	// durable has not acknowledged is redelivered after 30 s.
	slices.SortStableFunc(cases, func(a, b crashCase) int { return slow(b) - slow(a) })

	t.Logf("%d cases", len(cases))
	began := time.Now()
	todo := make(chan crashCase, len(cases))
	for _, c := range cases {
		todo <- c
	}
	close(todo)
	var mu sync.Mutex
	var all []verdict
	var spread sync.WaitGroup
	worlds := min(number(t, crashWorlds, 6), len(cases))
	many := []*crashWorld{first}
	for len(many) < worlds {
		many = append(many, newCrashWorld(t, ""))
	}
	for i, w := range many {
		spread.Go(func() {
			n := 0
			for c := range todo {
				n++
				v := w.crash(t, c, fmt.Sprintf("W%dC%d", i, n))
				// Two plays of a scene may pass a point a different number of times: a
				// slow rehearsal repeats requests.
				for range plays - 1 {
					if !v.fired && len(v.faults) == 0 {
						n++
						if isCommon(c.point.Name) {
							c.pass = (c.pass + 1) / 2
						}
						v = w.crash(t, c, fmt.Sprintf("W%dC%d", i, n))
					}
				}
				if !v.fired && len(v.faults) == 0 {
					v.faults = []string{fmt.Sprintf("the point was not passed in %d plays", plays)}
				}
				if len(v.faults) > 0 {
					t.Errorf("%s:\n  %s", c, strings.Join(v.faults, "\n  "))
				}
				mu.Lock()
				all = append(all, v)
				if len(all)%100 == 0 {
					t.Logf("%d of %d cases after %.0f s", len(all), len(cases), time.Since(began).Seconds())
				}
				mu.Unlock()
			}
		})
	}
	spread.Wait()
	red := 0
	for _, v := range all {
		if len(v.faults) > 0 {
			red++
		}
	}
	t.Logf("%d cases in %d worlds in %.0f s, %d of them red", len(all), worlds, time.Since(began).Seconds(), red)
	for _, w := range many {
		w.judgeTraces(t)
	}
	if path := os.Getenv(crashDoc); path != "" {
		writeMatrix(t, path, form, all, time.Since(began))
	}
}

func slow(c crashCase) int {
	switch {
	case c.service == "heartbeat" || c.point.Name == failpoint.BusAck.String():
		return 2
	case c.service != "loop":
		return 1
	}
	return 0
}

// crashCases returns the cases of a form. passes is the number of times that each scene
// passes each point in each service. A point is used in the first scene that passes it,
// and in the long form in all scenes. A point of goals is used in all scenes in the short
// form, too, because each scene passes it under other conditions.
func crashCases(form string, passes map[string]map[string]map[string]passing) []crashCase {
	var all []crashCase
	for i, p := range failpoint.Scenes() {
		for s, service := range p.Services {
			if form != "long" && s > 0 {
				continue
			}
			for _, scene := range scenes {
				n := passes[scene][service][p.Name]
				for m, mode := range failpoint.Modes() {
					if form == "" && (i%5 != 2 || m != i%3) {
						continue
					}
					for _, pass := range chosen(form, p.Name, n.most) {
						all = append(all, crashCase{p, service, mode, n.skipped + pass, scene})
					}
				}
				if n.most > 0 && (form == "" || form == "short" && !ofGoals(p.Name)) {
					break
				}
			}
		}
	}
	return all
}

func ofGoals(point string) bool {
	return strings.HasPrefix(point, "loop.goal.") || strings.HasPrefix(point, "loop.task.")
}

// actPoints are the points whose passes differ from each other.
var actPoints = []string{
	failpoint.LoopTool.String(), failpoint.LoopResult.String(), failpoint.LoopIntent.String(), failpoint.LoopTaskEnd.String(),
}

// isCommon reports whether a point is part of what all services do continuously.
func isCommon(point string) bool {
	return strings.HasPrefix(point, "bus.") || strings.HasPrefix(point, "outbox.") || point == failpoint.TreasuryCursor.String()
}

// chosen returns the passes, of most in total, at which a form crashes: all passes of a
// run's own steps; the first and the middle pass of points that every service passes all
// the time, because their number differs from play to play. The short form uses up to
// three passes of actPoints: the third tool is the irreversible one, and of two tasks one
// ends with its call and one with its run.
func chosen(form, point string, most int) []int {
	common := isCommon(point)
	acts := slices.Contains(actPoints, point)
	switch {
	case most <= 0:
		return nil
	case form == "long" && !common:
	case form == "long" && most > 1:
		return []int{1, most/2 + 1}
	case form == "short" && acts:
		most = min(most, 3)
	default:
		most = 1
	}
	var all []int
	for pass := 1; pass <= most; pass++ {
		all = append(all, pass)
	}
	return all
}

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

// passing is how often a scene passes a point. skipped passes are the same as in another
// scene and are not used; most passes follow.
type passing struct{ skipped, most int }

// rehearse plays the scenes without a crash and counts the passes of each point in each
// service.
func (w *crashWorld) rehearse(t testing.TB) map[string]map[string]map[string]passing {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	passes := map[string]map[string]map[string]passing{}
	w.rehearsed++
	for _, kind := range scenes {
		s, err := w.set(ctx, kind, fmt.Sprintf("Rehearsal-%s-%d", kind, w.rehearsed))
		if err != nil {
			t.Fatal(err)
		}
		if why := w.rest(ctx, nil, s.agents...); why != "" {
			t.Fatalf("no rest before the %s: %s", kind, why)
		}
		before := w.passed()
		if err := w.play(ctx, s); err != nil {
			t.Fatal(err)
		}
		if why := w.rest(ctx, s.ends(), s.agents...); why != "" {
			t.Fatalf("no rest after the %s: %s\n%s", kind, why, tail(filepath.Join(w.data, "loop.log")))
		}
		passes[kind] = map[string]map[string]passing{}
		from, to := s.from, s.to
		if from == nil {
			from, to = before, w.passed() // passes of the oracle's own requests are not counted
		}
		for service, points := range to {
			passes[kind][service] = map[string]passing{}
			for p, n := range points {
				passes[kind][service][p] = passing{from[service][p] - before[service][p], n - from[service][p]}
			}
		}
		if faults := w.judge(ctx, s, crashCase{}); len(faults) > 0 {
			t.Fatalf("without any death the oracle finds after the %s:\n  %s", kind, strings.Join(faults, "\n  "))
		}
	}
	for _, p := range failpoint.Scenes() {
		for _, service := range p.Services {
			if !slices.ContainsFunc(scenes, func(scene string) bool { return passes[scene][service][p.Name].most > 0 }) {
				t.Errorf("no scene passes %s in %s", p.Name, service)
			}
		}
	}
	return passes
}

// passed returns the passes of each service so far.
func (w *crashWorld) passed() map[string]map[string]int {
	all := map[string]map[string]int{}
	for _, n := range names {
		all[n] = w.proc(n).passed(w.t)
	}
	return all
}

// passed returns the passes of the process so far.
func (p *mortal) passed(t testing.TB) map[string]int {
	t.Helper()
	data, err := os.ReadFile(p.passes)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	n := map[string]int{}
	for name := range strings.FieldsSeq(string(data)) {
		n[name]++
	}
	return n
}

// crash plays one case.
func (w *crashWorld) crash(t testing.TB, c crashCase, name string) (v verdict) {
	began := time.Now()
	v.crashCase = c
	defer func() { v.took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := w.set(ctx, c.scene, name)
	if err != nil {
		v.faults = []string{"the scene cannot be set: " + err.Error()}
		return v
	}
	if why := w.rest(ctx, nil, s.agents...); why != "" {
		v.faults = []string{"no rest before the play: " + why}
		return v
	}
	p := w.proc(c.service)
	p.arm(t, c.spec())
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // restarts the service after its crash
		select {
		case <-p.done:
			if w.aged {
				w.rebuild(t)
			}
			w.again(t, c.service)
		case <-over:
		}
	})
	err = w.play(ctx, s)
	why := ""
	if err == nil {
		why = w.rest(ctx, s.ends(), s.agents...)
	}
	v.fired = p.fired()
	p.disarm()
	if v.fired && c.mode != failpoint.Timeout && why == "" && err == nil {
		// The result may have been at rest before the service had crashed and restarted.
		watch.Wait()
		why = w.rest(ctx, s.ends(), s.agents...)
	}
	close(over)
	watch.Wait()
	switch {
	case err != nil:
		v.faults = append(v.faults, "the message is not accepted: "+err.Error())
	case why != "":
		v.faults = append(v.faults, "no rest: "+why)
	}
	if err == nil {
		v.faults = append(v.faults, w.judge(ctx, s, c)...)
	}
	return v
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

// judgeTraces stops the world and checks all of its traces.
func (w *crashWorld) judgeTraces(t *testing.T) {
	t.Helper()
	var stopping sync.WaitGroup
	for _, p := range w.procs {
		stopping.Go(func() { p.stop(t) })
	}
	stopping.Wait()
	var sum rules.Summary
	var all []query.Trace
	patient(t, 20*time.Second, func() bool {
		all = w.spans.traces(t)
		var err error
		if sum, err = rules.CheckAll(t.Context(), all, w.spans, rules.Options{Skew: 2 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(sum.Verdicts, func(v rules.Verdict) bool { return !v.Pass })
	})
	for _, v := range sum.Verdicts {
		if !v.Pass {
			t.Errorf("traces: %s is broken %d times:\n  %s", v.Rule, v.Count, strings.Join(v.Faults, "\n  "))
		}
	}
}

// writeMatrix writes the table of docs/crash-matrix.md below its mark.
func writeMatrix(t *testing.T, path, form string, all []verdict, took time.Duration) {
	t.Helper()
	const mark = "<!-- generated below: make crash-long -->\n"
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(old), mark)
	if !ok {
		t.Fatalf("%s has no mark %q", path, mark)
	}
	var b strings.Builder
	green := 0
	for _, v := range all {
		if v.fired && len(v.faults) == 0 {
			green++
		}
	}
	fmt.Fprintf(&b, "The %s form: %d of %d cases green, %.0f s.\n\n", form, green, len(all), took.Seconds())
	fmt.Fprintf(&b, "| point | service | up to pass | before | after | timeout | so before it | so after it |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, p := range failpoint.Scenes() {
		for _, service := range p.Services {
			cells, passes := map[failpoint.Mode][2]int{}, 0
			for _, v := range all {
				if v.point.Name != p.Name || v.service != service {
					continue
				}
				cell := cells[v.mode]
				cell[1]++
				if v.fired && len(v.faults) == 0 {
					cell[0]++
				}
				cells[v.mode] = cell
				passes = max(passes, v.pass)
			}
			if passes == 0 {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %d |", p.Name, service, passes)
			for _, m := range failpoint.Modes() {
				word := "green"
				if cells[m][0] < cells[m][1] {
					word = "**red**"
				}
				fmt.Fprintf(&b, " %s %d/%d |", word, cells[m][0], cells[m][1])
			}
			fmt.Fprintf(&b, " %s | %s |\n", p.Before, p.After)
		}
	}
	if err := os.WriteFile(path, []byte(head+mark+"\n"+b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
