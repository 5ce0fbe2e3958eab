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

	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/tools/trace/query"
	"github.com/anima-run/anima/tools/trace/rules"
)

// Variables of make crash and make crash-long.
const (
	crashForm   = "ANIMA_CRASH"        // short: every point in every mode, once; ci: in one mode; long: in every service, at every pass; empty: a few cases
	crashSeed   = "ANIMA_CRASH_SEED"   // seed of the order, and in the form ci of the modes
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
	seed := number(t, crashSeed, 1)
	var cases []crashCase
	if form == "ci" {
		cases = inOneMode(crashCases("short", passes), seed)
	} else {
		cases = crashCases(form, passes)
	}
	if only := os.Getenv(crashOnly); only != "" {
		cases = slices.DeleteFunc(cases, func(c crashCase) bool { return !strings.Contains(c.String(), only) })
	}
	if len(cases) == 0 {
		t.Fatal("no case")
	}
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	// Slow cases come first, so that no world is left with them alone: a message that a
	// durable has not acknowledged is redelivered after 30 s.
	slices.SortStableFunc(cases, func(a, b crashCase) int { return slow(b) - slow(a) })

	t.Logf("%d cases, seed %d", len(cases), seed)
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
							c.pass = (c.pass + 3) / 4
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

// inOneMode returns the cases of each point in one mode. Three successive seeds select
// every mode.
func inOneMode(cases []crashCase, seed int) []crashCase {
	points, modes := failpoint.Scenes(), failpoint.Modes()
	return slices.DeleteFunc(cases, func(c crashCase) bool {
		i := slices.IndexFunc(points, func(p failpoint.Info) bool { return p.Name == c.point.Name })
		return c.mode != modes[(i+seed)%len(modes)]
	})
}

// TestInOneMode checks that three successive seeds select each case once.
func TestInOneMode(t *testing.T) {
	t.Parallel()
	var all []crashCase
	for _, p := range failpoint.Scenes() {
		for _, mode := range failpoint.Modes() {
			all = append(all, crashCase{p, p.Services[0], mode, 1, "tour"})
		}
	}
	selected := map[string]int{}
	for seed := range 3 {
		some := inOneMode(slices.Clone(all), 7+seed)
		if len(some) != len(failpoint.Scenes()) {
			t.Errorf("seed %d selects %d cases, want one for each of %d points", 7+seed, len(some), len(failpoint.Scenes()))
		}
		for _, c := range some {
			selected[c.String()]++
		}
	}
	for _, c := range all {
		if n := selected[c.String()]; n != 1 {
			t.Errorf("%s is selected by %d of three seeds, want 1", c, n)
		}
	}
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
