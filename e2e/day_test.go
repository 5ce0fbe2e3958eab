package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// dayHours is the variable of make day: hours of the program's clock. Without it the
// test is the short form.
const dayHours = "ANIMA_DAY_HOURS"

// TestDay watches what a process holds while an agent has a schedule, mail and goals:
// goroutines, files, processes, keys and consumers must not become more, and what is
// kept on the disk must not grow faster. The long form is a day; make day runs it, and
// this test, under a fast clock. The short form fires the schedule's entries itself.
func TestDay(t *testing.T) {
	t.Parallel()
	hours := number(t, dayHours, 0)
	if hours != 0 && hours < 4 {
		t.Fatalf("%s=%d: want at least 4, so that each quarter has one", dayHours, hours)
	}
	d := &day{t: t, itself: hours == 0}
	defer func() {
		if len(d.samples) > 0 {
			t.Logf("\n%s", d.table())
		}
	}()
	d.begin(t.TempDir())
	if hours == 0 {
		for range 8 { // each an hour without its time
			d.hour(0)
		}
	} else {
		for range hours {
			d.hour(time.Hour)
		}
	}
	d.judge()
}

// day is a process and the agents that it runs.
type day struct {
	t       *testing.T
	itself  bool // fires the schedule
	p       *process
	w       *world
	js      jetstream.JetStream
	ops     string
	clerk   api.Agent // has the schedule
	friend  api.Agent // answers mail
	samples []sample
	hours   int
}

func (d *day) begin(dir string) {
	t := d.t
	t.Helper()
	script, err := filepath.Abs("testdata/day.json")
	if err != nil {
		t.Fatal(err)
	}
	d.ops = freeAddr(t)
	d.p, d.w = upWith(t, dir, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script, "ANIMA_OPS_ADDR": d.ops, "ANIMA_LOOP_LEASE": "15s"})
	d.js = streams(t, dir)
	d.friend = born(t, d.w, "Friend", 100*api.Dollar)
	d.clerk = born(t, d.w, "Clerk", 0)
	source := fmt.Sprintf(`---
name: Clerk
schedule:
  - {name: look, cron: '*/10 * * * *', reason: look around}
  - {name: note, cron: '5 * * * *', reason: note}
  - {name: write, cron: '25,55 * * * *', reason: write %s %s}
  - {name: project, cron: '35 */2 * * *', reason: project}
---
Be useful.
`, d.friend.Address, d.clerk.Address)
	d.clerk = wanted[api.Agent](d, api.ApplyAgent{Source: source})
	wanted[api.Posted](d, api.Deposit{ID: "birth-" + d.clerk.ID, Agent: d.clerk.ID, Amount: 100 * api.Dollar, Source: "faucet"})
}

// wanted asks until there is an answer: under the fast clock a second is a sixtieth of
// one, and a machine that is busy for a moment answers late.
func wanted[Resp any](d *day, req api.Message) Resp {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	v, err := asked[Resp](ctx, d.w, req)
	if err != nil {
		d.t.Fatalf("%T: %v", req, err)
	}
	return v
}

// hour lets an hour pass. Three messages come to the main session, one to a session of
// its own, and a reader of events comes and goes.
func (d *day) hour(length time.Duration) {
	d.hours++
	end := time.Now().Add(length)
	if d.itself {
		entries := []string{"look", "note", "write", "look"}
		if d.hours%2 == 0 {
			entries = append(entries, "project")
		}
		for _, name := range entries {
			wanted[api.Wake](d, api.RunBeat{Agent: d.clerk.ID, Name: name, ID: fmt.Sprintf("%s-%d", name, d.hours)})
		}
	}
	for i := range 3 {
		d.pause(end.Add(-length * time.Duration(3-i) / 3))
		d.over(wanted[api.Accepted](d, api.SendMessage{Agent: d.clerk.ID, ID: fmt.Sprintf("hour-%d-%d", d.hours, i), Content: "hello"}))
	}
	if !d.itself || d.hours%2 == 0 {
		d.read()
	}
	s := wanted[api.Session](d, api.CreateSession{Agent: d.clerk.ID, ID: fmt.Sprintf("hour-%d", d.hours)})
	d.over(wanted[api.Accepted](d, api.SendMessage{Agent: d.clerk.ID, ID: "work", Session: s.ID, Content: "work"}))
	wanted[api.Session](d, api.TerminateSession{Session: s.ID})
	d.pause(end)
	d.samples = append(d.samples, d.sample())
}

// over waits until a run has ended. It asks: each reader of events leaves a consumer for
// 30 s, and in the short form they would be most of what is counted.
func (d *day) over(acc api.Accepted) {
	d.t.Helper()
	var st api.RunState
	if !until(d.t.Context(), 10*time.Minute, func() bool {
		st = wanted[api.RunState](d, api.GetRun{Run: acc.Run, Session: acc.Session})
		return st.Status == api.RunEnded
	}) || !st.Success {
		d.t.Fatalf("run %s came to %+v", acc.Run, st)
	}
}

func (d *day) pause(until time.Time) {
	select {
	case <-d.t.Context().Done():
	case <-time.After(time.Until(until)):
	}
}

// read opens an event stream over HTTP, reads its first event and leaves.
func (d *day) read() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.w.http["loop"]+"/v1/sessions/"+d.clerk.Session+"/events", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Last-Event-ID", "0")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	scan := bufio.NewScanner(res.Body)
	for scan.Scan() {
		if strings.HasPrefix(scan.Text(), "data:") {
			return
		}
	}
	d.t.Fatalf("no event of the session: %d, %v", res.StatusCode, scan.Err())
}

// sample is what a process holds at a time.
type sample struct {
	counts [counted]int64
	turns  int64
}

// What is counted. The first ones must not grow.
const (
	goroutines = iota
	descriptors
	children
	consumers
	coordination // keys
	others       // files, without those of the streams
	bounded
)

const (
	resident = bounded + iota // bytes of memory
	heap                      // bytes in use
	onStreams
	onDatabases
	onRest
	counted
)

var kindNames = [counted]string{
	goroutines: "goroutines", descriptors: "open files", children: "child processes", consumers: "consumers", coordination: "keys in buckets",
	others: "files but the streams'", resident: "resident memory, MiB", heap: "heap, MiB", onStreams: "streams, MiB", onDatabases: "databases, MiB", onRest: "other files, MiB",
}

// slack is what a count may differ by: a connection of a pool, a session's agent that
// happens to work.
const slack = 4

// sample counts when little is under way: of several looks it takes the least of each.
func (d *day) sample() sample {
	d.t.Helper()
	var least sample
	for look := range 8 {
		s := d.look()
		for k, n := range s.counts {
			if look == 0 || n < least.counts[k] {
				least.counts[k] = n
			}
		}
		least.turns = s.turns
		d.pause(time.Now().Add(250 * time.Millisecond))
	}
	return least
}

func (d *day) look() (s sample) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	proc := fmt.Sprintf("/proc/%d", d.p.cmd.Process.Pid)
	open, err := os.ReadDir(proc + "/fd")
	d.must(err)
	s.counts[descriptors] = int64(len(open))
	tasks, err := filepath.Glob(proc + "/task/*/children")
	d.must(err)
	for _, path := range tasks {
		data, _ := os.ReadFile(path) // the thread may be gone, and has no children then
		s.counts[children] += int64(len(strings.Fields(string(data))))
	}
	pages, err := os.ReadFile(proc + "/statm")
	d.must(err)
	n, err := strconv.ParseInt(strings.Fields(string(pages))[1], 10, 64)
	d.must(err)
	s.counts[resident] = n * int64(os.Getpagesize())
	metrics := d.metrics(ctx)
	s.counts[goroutines], s.counts[heap] = metrics["go_goroutines"], metrics["go_memstats_heap_inuse_bytes"]
	all := d.js.ListStreams(ctx)
	for st := range all.Info() {
		s.counts[consumers] += int64(st.State.Consumers)
		if strings.HasPrefix(st.Config.Name, "KV_") {
			s.counts[coordination] += int64(st.State.Msgs) //nolint:gosec // a small number
		}
	}
	d.must(all.Err())
	d.must(filepath.WalkDir(d.w.data, func(path string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && !e.IsDir() {
			info, err = e.Info()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir(): // it went meanwhile
			return nil
		case err != nil:
			return err
		}
		rel, err := filepath.Rel(d.w.data, path)
		switch {
		case strings.HasPrefix(rel, "nats/"):
			s.counts[onStreams] += info.Size()
			return err
		case strings.Contains(rel, ".db"):
			s.counts[onDatabases] += info.Size()
		default:
			s.counts[onRest] += info.Size()
		}
		s.counts[others]++
		return err
	}))
	for _, a := range []api.Agent{d.clerk, d.friend} {
		for _, one := range wanted[api.Sessions](d, api.ListSessions{Agent: a.ID, Limit: 1000}).Sessions {
			s.turns += one.Turns
		}
	}
	return s
}

// metrics reads those without labels.
func (d *day) metrics(ctx context.Context) map[string]int64 {
	d.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.ops+"/metrics", nil)
	d.must(err)
	res, err := http.DefaultClient.Do(req)
	d.must(err)
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	d.must(err)
	found := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if f, err := strconv.ParseFloat(value, 64); err == nil {
			found[name] = int64(f)
		}
	}
	if found["go_goroutines"] == 0 {
		d.t.Fatalf("no metric go_goroutines in:\n%s", data)
	}
	return found
}

func (d *day) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// judge compares the last quarter with the second: the first one is the start. What
// leaks a little each hour has left the range of before by then.
func (d *day) judge() {
	quarter := len(d.samples) / 4
	before, last := d.samples[quarter:2*quarter], d.samples[len(d.samples)-quarter:]
	for k := range bounded {
		of := func(s sample) int64 { return s.counts[k] }
		most := of(slices.MaxFunc(before, func(a, b sample) int { return int(of(a) - of(b)) }))
		least := of(slices.MinFunc(last, func(a, b sample) int { return int(of(a) - of(b)) }))
		if least > most+slack {
			d.t.Errorf("%s: at least %d in the last quarter, at most %d in the second", kindNames[k], least, most)
		}
	}
	for _, k := range []int{onStreams, onDatabases, onRest} {
		if a, b := perTurn(before, k), perTurn(last, k); b > 1.5*a+1024 {
			d.t.Errorf("%s: %.0f bytes a turn in the last quarter, %.0f in the second", kindNames[k], b, a)
		}
	}
	for _, a := range []api.Agent{d.clerk, d.friend} {
		if waiting := wanted[api.Agent](d, api.GetAgent{Agent: a.ID}); waiting.State == api.StateDead {
			d.t.Errorf("%s is %s", a.ID, waiting.State)
		}
	}
	var report api.LedgerReport
	if !until(d.t.Context(), time.Minute, func() bool {
		report = wanted[api.LedgerReport](d, api.VerifyLedger{})
		return report.OK && report.ActiveHolds == 0
	}) {
		d.t.Errorf("ledger: %+v", report)
	}
	goals := wanted[api.Goals](d, api.ListGoals{Agent: d.clerk.ID, Limit: 1000}).Goals
	if len(goals) == 0 || slices.ContainsFunc(goals[:max(0, len(goals)-1)], func(g api.Goal) bool { return g.Status != api.GoalCompleted }) {
		d.t.Errorf("goals: %+v", goals)
	}
	mails := wanted[api.Inbox](d, api.ListInbox{Agent: d.friend.ID, Limit: 1000}).Messages
	if len(mails) == 0 {
		d.t.Error("the friend has no mail")
	}
}

// perTurn is what a turn adds, in bytes.
func perTurn(samples []sample, kind int) float64 {
	first, last := samples[0], samples[len(samples)-1]
	return float64(last.counts[kind]-first.counts[kind]) / float64(max(1, last.turns-first.turns))
}

// table has a row for each kind and a column for some hours.
func (d *day) table() string {
	var b strings.Builder
	every := max(1, len(d.samples)/6)
	var shown []int
	for i := range d.samples {
		if i == 0 || (i+1)%every == 0 || i == len(d.samples)-1 {
			shown = append(shown, i)
		}
	}
	row := func(name string, value func(sample) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, i := range shown {
			fmt.Fprintf(&b, " %s |", value(d.samples[i]))
		}
		b.WriteByte('\n')
	}
	fmt.Fprint(&b, "| after hours |")
	for _, i := range shown {
		fmt.Fprintf(&b, " %d |", i+1)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(shown)+1) + "\n")
	row("turns", func(s sample) string { return strconv.FormatInt(s.turns, 10) })
	for k, name := range kindNames {
		row(name, func(s sample) string {
			if k < bounded {
				return strconv.FormatInt(s.counts[k], 10)
			}
			return fmt.Sprintf("%.1f", float64(s.counts[k])/(1<<20))
		})
	}
	half := d.samples[len(d.samples)/2:]
	fmt.Fprintf(&b, "\nBytes that a turn adds, second half: streams %.0f, databases %.0f.\n", perTurn(half, onStreams), perTurn(half, onDatabases))
	return b.String()
}
