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

// What make crash and make crash-long set.
const (
	crashForm   = "ANIMA_CRASH"        // short: every point in every mode, once; long: in every service, at every pass; neither: a handful
	crashSeed   = "ANIMA_CRASH_SEED"   // of the order
	crashWorlds = "ANIMA_CRASH_WORLDS" // worlds at a time
	crashOnly   = "ANIMA_CRASH_ONLY"   // the cases whose name contains this
	crashDoc    = "ANIMA_CRASH_DOC"    // where the table is written
)

// crashCase is one death.
type crashCase struct {
	point   failpoint.Info
	service string
	mode    failpoint.Mode
	pass    int
}

func (c crashCase) String() string {
	return fmt.Sprintf("%s in %s, %s, pass %d", c.point.Name, c.service, c.mode, c.pass)
}

// spec arms the case. What a process has written to a socket leaves it a moment
// later, so that after an answer or an acknowledgement it lives on for that moment.
func (c crashCase) spec() string {
	s := fmt.Sprintf("%s:%s:%d", c.point.Name, c.mode, c.pass)
	if c.mode == failpoint.After && (c.point.Name == failpoint.BusAnswer.String() || c.point.Name == failpoint.BusAck.String()) {
		s += ":20ms"
	}
	return s
}

// verdict is how a case ended.
type verdict struct {
	crashCase
	fired  bool
	took   time.Duration
	faults []string
}

// TestCrashMatrix kills one service at one point, for every point, service, mode and
// pass, while an agent does something of everything, and has one oracle judge what
// is left.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	form := os.Getenv(crashForm)
	first := newCrashWorld(t, "")
	passes := first.rehearse(t)
	cases := crashCases(form, passes)
	if only := os.Getenv(crashOnly); only != "" {
		cases = slices.DeleteFunc(cases, func(c crashCase) bool { return !strings.Contains(c.String(), only) })
	}
	if len(cases) == 0 {
		t.Fatal("no case")
	}
	rng := rand.New(rand.NewPCG(uint64(number(t, crashSeed, 1)), 0))
	rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	// The slow ones first, so that no world is left with them alone: what a durable
	// has not acknowledged comes again after half a minute.
	slices.SortStableFunc(cases, func(a, b crashCase) int { return slow(b) - slow(a) })

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
				mu.Lock()
				all = append(all, v)
				mu.Unlock()
				if len(v.faults) > 0 {
					t.Errorf("%s:\n  %s", c, strings.Join(v.faults, "\n  "))
				}
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
		writeMatrix(t, path, all, time.Since(began))
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

// crashCases are the deaths of a form. passes says how often a run passes each
// point in each service.
func crashCases(form string, passes map[string]map[string]int) []crashCase {
	var all []crashCase
	for i, p := range failpoint.Table() {
		for s, service := range p.Services {
			if form != "long" && s > 0 {
				continue
			}
			for m, mode := range failpoint.Modes() {
				if form == "" && (failpoint.Point(i)%4 != 2 || m != i%3) {
					continue
				}
				c := crashCase{p, service, mode, 1}
				all = append(all, c)
				if form == "" {
					continue
				}
				most := passes[service][p.Name]
				if form == "short" {
					most = min(most, extra(p.Name))
				}
				for c.pass = 2; c.pass <= most; c.pass++ {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// extra is how many passes of a point the short form has: the third tool is the
// irreversible one, the second persist has no end.
func extra(point string) int {
	switch point {
	case failpoint.LoopTool.String(), failpoint.LoopResult.String(), failpoint.LoopIntent.String():
		return 3
	}
	return 1
}

const crashMoney = 10 * api.Dollar

// scene is what every case plays: the first agent uses a tool of every effect,
// writes to the second, which answers to the third, and sleeps until its alarm.
type scene struct {
	agents [3]api.Agent
	run    api.Accepted
}

// runs are how many runs each agent has in the end.
func (s *scene) runs() map[string]int {
	return map[string]int{s.agents[0].ID: 2, s.agents[1].ID: 1, s.agents[2].ID: 1}
}

func (w *crashWorld) set(ctx context.Context, name string) (*scene, error) {
	s := &scene{}
	for i, role := range []string{"a", "b", "c"} {
		var err error
		if s.agents[i], err = w.bear(ctx, name+role); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// bear makes an agent with money.
func (w *crashWorld) bear(ctx context.Context, name string) (api.Agent, error) {
	a, err := asked[api.Agent](ctx, w.world, api.ApplyAgent{Source: "---\nname: " + name + "\n---\nBe useful.\n"})
	if err == nil {
		_, err = asked[api.Posted](ctx, w.world, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: crashMoney, Source: "faucet"})
	}
	return a, err
}

func (w *crashWorld) play(ctx context.Context, s *scene, name string) (err error) {
	s.run, err = asked[api.Accepted](ctx, w.world, api.SendMessage{
		Agent: s.agents[0].ID, ID: name, Content: "crash tools " + s.agents[1].Address + " " + s.agents[2].Address,
	})
	return err
}

// rehearse plays the scene without a death, and counts what is passed.
func (w *crashWorld) rehearse(t testing.TB) map[string]map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := w.set(ctx, "Rehearsal")
	if err != nil {
		t.Fatal(err)
	}
	if why := w.rest(ctx, nil, s.agents[:]...); why != "" {
		t.Fatalf("no rest before the play: %s", why)
	}
	before := map[string]map[string]int{}
	for _, n := range names {
		before[n] = w.proc(n).passed(t)
	}
	if err := w.play(ctx, s, "rehearsal"); err != nil {
		t.Fatal(err)
	}
	if why := w.rest(ctx, s.runs(), s.agents[:]...); why != "" {
		t.Fatalf("no rest after the play: %s\n%s", why, tail(filepath.Join(w.data, "loop.log")))
	}
	if faults := w.judge(ctx, s, crashCase{}); len(faults) > 0 {
		t.Fatalf("without any death the oracle finds:\n  %s", strings.Join(faults, "\n  "))
	}
	passes := map[string]map[string]int{}
	for _, n := range names {
		passes[n] = w.proc(n).passed(t)
		for p, k := range before[n] {
			passes[n][p] -= k
		}
	}
	for _, p := range failpoint.Table() {
		for _, service := range p.Services {
			if passes[service][p.Name] == 0 {
				t.Errorf("%s is not passed in %s", p.Name, service)
			}
		}
	}
	return passes
}

// passed counts what the process passed so far.
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
	s, err := w.set(ctx, name)
	if err != nil {
		v.faults = []string{"the scene cannot be set: " + err.Error()}
		return v
	}
	if why := w.rest(ctx, nil, s.agents[:]...); why != "" {
		v.faults = []string{"no rest before the play: " + why}
		return v
	}
	p := w.proc(c.service)
	p.arm(t, c.spec())
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // brings the service back when it has died
		select {
		case <-p.done:
			w.again(t, c.service)
		case <-over:
		}
	})
	err = w.play(ctx, s, name)
	why := ""
	if err == nil {
		why = w.rest(ctx, s.runs(), s.agents[:]...)
	}
	v.fired = p.fired()
	p.disarm()
	close(over)
	watch.Wait()
	switch {
	case err != nil:
		v.faults = append(v.faults, "the message is not accepted: "+err.Error())
	case why != "":
		v.faults = append(v.faults, "no rest: "+why)
	case !v.fired:
		v.faults = append(v.faults, "the point was not passed")
	}
	if err == nil {
		v.faults = append(v.faults, w.judge(ctx, s, c)...)
	}
	return v
}

// judge has the oracle look at a scene, and knows besides what it must have come
// to: a death may change the outcome of no call but an irreversible one's.
func (w *crashWorld) judge(ctx context.Context, s *scene, c crashCase) []string {
	o := &oracle{w: w, ctx: ctx}
	lives := make([]life, len(s.agents))
	for i, a := range s.agents {
		lives[i] = o.look(a, crashMoney)
		o.judge(lives[i])
		runs := map[string]bool{}
		for _, t := range lives[i].turns {
			runs[t.Run] = true
		}
		if want := s.runs()[a.ID]; len(runs) != want {
			o.fault("%s: %d runs, want %d", a.ID, len(runs), want)
		}
	}
	var tools []string
	for _, t := range lives[0].turns {
		for _, call := range t.Calls {
			tools = append(tools, call.Tool)
			o.outcome(lives[0].agent.ID, call, c)
		}
	}
	if want := []string{"write_file", "read_file", "exec", "send_message", "remember_fact", "sleep"}; !slices.Equal(tools, want) {
		o.fault("the calls are %v, want %v", tools, want)
	}
	for i, content := range map[int]string{1: "ping " + s.agents[2].Address, 2: "pong"} {
		o.heard(lives[i], content)
	}
	for _, call := range lives[1].turns[:min(1, len(lives[1].turns))] {
		for _, v := range call.Calls {
			o.outcome(lives[1].agent.ID, v, c)
		}
	}
	return o.faults
}

// outcome says whether a call may have ended so, in this case.
func (o *oracle) outcome(who string, call api.CallState, c crashCase) {
	switch {
	case call.Outcome == api.OutcomeOK:
	case call.Outcome == api.OutcomeUnknown && call.Tool == "exec" && c.service == "loop":
	case call.Outcome == api.OutcomeTimeout && c.mode == failpoint.Timeout && c.point.Name == failpoint.LoopTool.String():
	default:
		o.fault("%s: %s ended with %s: %s", who, call.Tool, call.Outcome, call.Error)
	}
}

// heard: a message is in the inbox once, processed, and in the input of one turn.
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

// judgeTraces ends the world and judges every trace that it left.
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
func writeMatrix(t *testing.T, path string, all []verdict, took time.Duration) {
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
	fmt.Fprintf(&b, "%d of %d cases green, %.0f s.\n\n", green, len(all), took.Seconds())
	fmt.Fprintf(&b, "| point | service | passes | before | after | timeout | so before it | so after it |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, p := range failpoint.Table() {
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
