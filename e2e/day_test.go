package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// dayHours is the variable of make day: the number of hours of the program's clock.
// Without it the test has its short form.
const dayHours = "ANIMA_DAY_HOURS"

// TestDay watches the resources of a process while an agent has a schedule, mail and
// goals: goroutines, files, processes, keys and consumers must not increase, and the
// growth of data on disk must not accelerate. The long form takes a day; make day runs
// it, with this test, under a fast clock. The short form fires the entries of the
// schedule itself.
func TestDay(t *testing.T) {
	t.Parallel()
	hours := number(t, dayHours, 0)
	if hours != 0 && hours < 4 {
		t.Fatalf("%s=%d: want at least 4, so that each quarter has one", dayHours, hours)
	}
	d := &day{watched: watched{t: t}, itself: hours == 0}
	defer func() {
		if len(d.samples) > 0 {
			t.Logf("\n%s", d.table("hours"))
		}
	}()
	d.begin(t.TempDir())
	if hours == 0 {
		for range 8 { // each has the work of an hour without its time
			d.hour(0)
		}
	} else {
		for range hours {
			d.hour(time.Hour)
		}
	}
	d.judge()
}

// slack is the allowed difference of a count: connections of a pool, or the running agent
// of a session.
const slack = 4

// day is a process and the agents that it runs.
type day struct {
	watched

	itself bool      // the test fires the schedule
	clerk  api.Agent // has the schedule
	friend api.Agent // answers mail
	hours  int
}

func (d *day) begin(dir string) {
	t := d.t
	t.Helper()
	script, err := filepath.Abs("testdata/day.json")
	if err != nil {
		t.Fatal(err)
	}
	d.start(dir, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script})
	d.turns = func() (n int64) {
		for _, a := range []api.Agent{d.clerk, d.friend} {
			for _, s := range wanted[api.Sessions](&d.watched, api.ListSessions{Agent: a.ID, Limit: 1000}).Sessions {
				n += s.Turns
			}
		}
		return n
	}
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
	d.clerk = wanted[api.Agent](&d.watched, api.ApplyAgent{Source: source})
	wanted[api.Posted](&d.watched, api.Deposit{ID: "birth-" + d.clerk.ID, Agent: d.clerk.ID, Amount: 100 * api.Dollar, Source: "faucet"})
}

// hour does the work of an hour. Three messages go to the main session and one to a new
// session, and a reader of events connects and disconnects.
func (d *day) hour(length time.Duration) {
	d.hours++
	end := time.Now().Add(length)
	if d.itself {
		entries := []string{"look", "note", "write", "look"}
		if d.hours%2 == 0 {
			entries = append(entries, "project")
		}
		for _, name := range entries {
			wanted[api.Wake](&d.watched, api.RunBeat{Agent: d.clerk.ID, Name: name, ID: fmt.Sprintf("%s-%d", name, d.hours)})
		}
	}
	for i := range 3 {
		d.pause(end.Add(-length * time.Duration(3-i) / 3))
		d.over(wanted[api.Accepted](&d.watched, api.SendMessage{Agent: d.clerk.ID, ID: fmt.Sprintf("hour-%d-%d", d.hours, i), Content: "hello"}))
	}
	if !d.itself || d.hours%2 == 0 {
		d.read()
	}
	s := wanted[api.Session](&d.watched, api.CreateSession{Agent: d.clerk.ID, ID: fmt.Sprintf("hour-%d", d.hours)})
	d.over(wanted[api.Accepted](&d.watched, api.SendMessage{Agent: d.clerk.ID, ID: "work", Session: s.ID, Content: "work"}))
	wanted[api.Session](&d.watched, api.TerminateSession{Session: s.ID})
	d.pause(end)
	d.samples = append(d.samples, d.sample())
}

// over waits until a run has ended. It polls the state: each reader of events leaves a
// consumer for 30 s, and in the short form those would be most of the counted consumers.
func (d *day) over(acc api.Accepted) {
	d.t.Helper()
	var st api.RunState
	if !until(d.t.Context(), 10*time.Minute, func() bool {
		st = wanted[api.RunState](&d.watched, api.GetRun{Run: acc.Run, Session: acc.Session})
		return st.Status == api.RunEnded
	}) || !st.Success {
		d.t.Fatalf("run %s ended with %+v", acc.Run, st)
	}
}

// read opens an event stream over HTTP, reads the first event and disconnects.
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

// judge checks the resources of the process and the results of the agents.
func (d *day) judge() {
	d.steady(slack)
	for _, a := range []api.Agent{d.clerk, d.friend} {
		if waiting := wanted[api.Agent](&d.watched, api.GetAgent{Agent: a.ID}); waiting.State == api.StateDead {
			d.t.Errorf("%s is %s", a.ID, waiting.State)
		}
	}
	d.settled()
	goals := wanted[api.Goals](&d.watched, api.ListGoals{Agent: d.clerk.ID, Limit: 1000}).Goals
	// The latest goal, which is the first, may have been set just before the end.
	if len(goals) == 0 || slices.ContainsFunc(goals[1:], func(g api.Goal) bool { return g.Status != api.GoalCompleted }) {
		d.t.Errorf("goals: %+v", goals)
	}
	mails := wanted[api.Inbox](&d.watched, api.ListInbox{Agent: d.friend.ID, Limit: 1000}).Messages
	if len(mails) == 0 {
		d.t.Error("the friend has no mail")
	}
}
