package sqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestWeigh checks that an agent becomes dead after an hour without funds, not before,
// that funds stop the clock, and that only funds revive a dead agent.
func TestWeigh(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		hour := time.Hour.Microseconds()
		for _, step := range []struct {
			name string
			owns api.Micros
			at   int64
			want api.AgentState // new state of the agent; "": unchanged
		}{
			{"the first look at nothing begins the clock", 0, at, ""},
			{"just before an hour", 0, at + hour - 1, ""},
			{"a cent stops it", api.Cent, at + hour, ""},
			{"it begins anew", 0, at + 2*hour, ""},
			{"an hour", 0, at + 3*hour, api.StateDead},
			{"dead stays dead", 0, at + 9*hour, ""},
			{"money wakes the dead", 1, at + 10*hour, api.StateSleeping},
			{"once", 1, at + 10*hour, ""},
			{"and the clock is new", 0, at + 11*hour, ""},
		} {
			c, err := s.ApplyBalance(t.Context(), "ada", step.owns, time.Hour, step.at)
			must(t, err)
			var got api.AgentState
			if c != nil {
				got = c.State
			}
			if got != step.want {
				t.Errorf("%s: the agent becomes %q, want %q", step.name, got, step.want)
			}
			poor, more, err := s.LowOnFunds(t.Context(), "")
			must(t, err)
			rest, _, err := s.LowOnFunds(t.Context(), "ada")
			must(t, err)
			if more || len(rest) != 0 {
				t.Errorf("%s: there are more than %v, after ada %v", step.name, poor, rest)
			}
			if want := step.owns <= 0; (len(poor) == 1 && poor[0] == "ada") != want {
				t.Errorf("%s: looked after: %v, want ada: %t", step.name, poor, want)
			}
		}
		// Neither a run's end nor SetState without paid revives a dead agent.
		_, err := s.ApplyBalance(t.Context(), "ada", 0, 0, at+20*hour)
		must(t, err)
		c, err := s.SetState(t.Context(), "ada", api.StateSleeping, "told to sleep", false, 0, at)
		if err != nil || c != nil {
			t.Errorf("a dead agent was put to sleep: %+v, %v", c, err)
		}
		_, err = s.ApplyBalance(t.Context(), "missing", 0, time.Hour, at)
		wantCode(t, err, api.NotFound)
	})
}

func wantCode(t *testing.T, err error, want api.Code) {
	t.Helper()
	if api.CodeOf(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestHistory checks that every change has its reason and number, that the latest is
// first, and that the oldest are pruned.
func TestHistory(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		_, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at)
		must(t, err)
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), enginetest.End(cmd, 1)))
		x, err := s.Explain(t.Context(), "ada", 10)
		must(t, err)
		type change struct{ from, to, why string }
		var got []change
		for _, c := range x.History {
			got = append(got, change{string(c.Previous), string(c.State), c.Reason})
		}
		want := []change{
			{"running", "sleeping", "nothing to do"}, {"waking", "running", "a message"}, {"sleeping", "waking", "a message"}, {"setup", "sleeping", "just born"},
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(change{})); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
		if x.Since != enginetest.End(cmd, 1).At || x.Agent.State != api.StateSleeping {
			t.Errorf("explained: %+v", x)
		}
		for i := range 1200 {
			if _, err := s.SetState(t.Context(), "ada", api.StateSleeping, "again", false, int64(i), at); err != nil {
				t.Fatal(err)
			}
		}
		kept := func() {
			t.Helper()
			x, err = s.Explain(t.Context(), "ada", 1000)
			must(t, err)
			if n := len(x.History); n < 500 || n > 600 {
				t.Errorf("%d changes are kept, want the last 500 and some", n)
			}
		}
		kept()
		_, err = s.Renumber(t.Context(), at+time.Hour.Microseconds())
		must(t, err)
		for i := range 100 {
			if _, err := s.SetState(t.Context(), "ada", api.StateSleeping, "again", false, int64(i), at); err != nil {
				t.Fatal(err)
			}
		}
		kept()
	})
}

// TestRenumber checks that the numbers of all agents, deleted ones too, are raised to a time
// and announced once, and that the next change has the next number.
func TestRenumber(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		const lost = at + 1_000_000
		announced := func() []api.AgentChanged {
			t.Helper()
			all, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (c api.AgentChanged, err error) {
				return c, r.Scan(sqldb.JSON(&c))
			}, `select payload from outbox order by seq`)
			must(t, err)
			_, err = db.ExecContext(t.Context(), `delete from outbox`)
			must(t, err)
			return all
		}
		for _, c := range announced() {
			if c.Seq != at {
				t.Errorf("the first number of %s is %d, want %d, the time of its creation", c.Agent, c.Seq, at)
			}
		}
		_, err := s.Delete(t.Context(), "bob", "enough", false, at+1)
		must(t, err)
		announced()
		for _, want := range []int{2, 0} {
			if n, err := s.Renumber(t.Context(), lost); err != nil || n != want {
				t.Errorf("%d agents are renumbered, %v, want %d", n, err, want)
			}
		}
		want := []api.AgentChanged{
			{Agent: "ada", Name: "Ada", Address: "0xAD", Previous: api.StateSleeping, State: api.StateSleeping, Reason: "just born", Seq: lost, At: at},
			{Agent: "bob", Name: "Bob", Address: "0xAD", Previous: api.StateDead, State: api.StateDead, Reason: "deleted: enough", Seq: lost, At: at + 1},
		}
		if diff := cmp.Diff(want, announced()); diff != "" {
			t.Errorf("announced (-want +got):\n%s", diff)
		}
		_, err = s.Apply(t.Context(), definition("Carl"), "carl", "0xAD", "source of Carl", lost+5)
		must(t, err)
		c, err := s.SetState(t.Context(), "ada", api.StateSleeping, "told to sleep", false, 0, lost+6)
		must(t, err)
		if all := announced(); len(all) != 2 || all[0].Seq != lost+5 || c.Seq != lost+1 {
			t.Errorf("after the loss carl has %+v, ada %+v", all, c)
		}
		if n, err := s.Renumber(t.Context(), lost); err != nil || n != 0 {
			t.Errorf("%d agents are renumbered later, %v", n, err)
		}
	})
}

// TestCancelRace persists and cancels a run concurrently, many times, and checks that the
// run ends either as cancelled or as it was persisted before the cancellation.
func TestCancelRace(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		won := map[bool]int{}
		for range 60 {
			cmd := enginetest.Command("ada", "r"+time.Now().Format("150405.000000000"))
			must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
			var wg sync.WaitGroup
			var perr, cerr error
			wg.Go(func() {
				perr = s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), enginetest.End(cmd, 2))
			})
			wg.Go(func() { cerr = s.Cancel(t.Context(), cmd.Run, cmd.Session, "enough", at) })
			wg.Wait()
			must(t, cerr)
			why, err := s.IsCancelled(t.Context(), cmd.Run, cmd.Session)
			must(t, err)
			k, err := s.Known(t.Context(), cmd)
			must(t, err)
			switch {
			case perr == nil && (why != "" || k.Ended == nil || !k.Ended.Success):
				t.Fatalf("persisted: cancelled %q, end %+v", why, k.Ended)
			case perr != nil && (api.ReasonOf(perr) != api.ReasonCancelled || why != "enough" || k.Ended != nil || k.Turns != 1):
				t.Fatalf("refused with %v: cancelled %q, end %+v, %d turns", perr, why, k.Ended, k.Turns)
			}
			won[perr == nil]++
			if perr != nil { // the owner ends the run as cancelled
				end := enginetest.End(cmd, 2)
				end.Success, end.Reason = false, api.ReasonCancelled
				must(t, s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), end))
			}
		}
		t.Logf("the run won %d times, the cancel %d times", won[true], won[false])
	})
}

func TestTerminate(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		must(t, s.NewSession(t.Context(), "ada-side", "ada", at))
		cmd := enginetest.Command("ada", "r1")
		cmd.Session = "ada-side"
		isCancelled := func(want string) {
			t.Helper()
			if got, err := s.IsCancelled(t.Context(), cmd.Run, cmd.Session); err != nil || got != want {
				t.Errorf("the run is cancelled with the reason %q, %v, want %q", got, err, want)
			}
		}
		isCancelled("")
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
		for i, why := range []string{"done", "again"} {
			got, err := s.Terminate(t.Context(), "ada-side", why, at+int64(i))
			must(t, err)
			if got.Terminated != at || got.Reason != "done" {
				t.Errorf("terminated %d times: %+v, want the first time and reason", i+1, got)
			}
		}
		isCancelled("done")
		k, err := s.Known(t.Context(), cmd)
		if err != nil || k.Terminated != "done" {
			t.Errorf("known: %q, %v", k.Terminated, err)
		}
		// Its run may only end as cancelled.
		end := enginetest.End(cmd, 2)
		for _, end := range []*engine.End{nil, end} {
			if err := s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), end); api.ReasonOf(err) != api.ReasonCancelled {
				t.Errorf("another turn: got %v, want it refused as cancelled", err)
			}
		}
		end.Success, end.Reason = false, api.ReasonCancelled
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), end))
		for _, want := range []string{"ada-main-2", "ada-main-3"} {
			a, err := s.Agent(t.Context(), "ada")
			must(t, err)
			ended, err := s.Terminate(t.Context(), a.Session, "no", at)
			must(t, err)
			if a, err = s.Agent(t.Context(), "ada"); err != nil || a.Session != want || a.Mail != "ada-mail" || ended.Terminated != at {
				t.Errorf("after the end of %s the main session is %s, that for mail %s, %v; want %s", ended.ID, a.Session, a.Mail, err, want)
			}
			if _, err := s.Explain(t.Context(), "ada", 1); err != nil {
				t.Error(err)
			}
		}
		must(t, s.NewSession(t.Context(), "ada-mail", "ada", at))
		_, err = s.Terminate(t.Context(), "ada-mail", "no", at)
		must(t, err)
		if a, err := s.Agent(t.Context(), "ada"); err != nil || a.Mail != "ada-mail-2" {
			t.Errorf("the session for mail is %s, %v", a.Mail, err)
		}
		_, err = s.Terminate(t.Context(), "none", "no", at)
		wantCode(t, err, api.NotFound)
	})
}

// TestRunState checks the state of a run at every stage.
func TestRunState(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		_, err := s.RunState(t.Context(), cmd.Run)
		wantCode(t, err, api.NotFound)
		_, err = s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at)
		must(t, err)
		want := api.RunState{Run: "r1", Session: "ada-main", Agent: "ada", Kind: api.RunMessage, Status: api.RunRunning, AcceptedAt: cmd.AcceptedAt}
		check := func() {
			t.Helper()
			got, err := s.RunState(t.Context(), cmd.Run)
			must(t, err)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
		check()
		must(t, s.Cancel(t.Context(), cmd.Run, cmd.Session, "enough", at))
		want.Cancelled = true
		check()
		end := enginetest.End(cmd, 1)
		end.Success, end.Code, end.Reason, end.Error, end.Response = false, api.Denied, api.ReasonCancelled, "enough", ""
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		want.Status, want.Outcome, want.Code, want.Reason, want.Error = api.RunEnded, api.OutcomeConsumed, end.Code, end.Reason, end.Error
		want.Turns, want.Cost, want.EndedAt = 1, 610, end.At
		check()
		must(t, s.Cancel(t.Context(), cmd.Run, cmd.Session, "too late", at))
		check()
	})
}

// TestSleepIsKept checks that the end of a cancelled run does not change the sleep that has
// cancelled it.
func TestSleepIsKept(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		_, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at)
		must(t, err)
		until := at + time.Hour.Microseconds()
		if c, err := s.SetState(t.Context(), "ada", api.StateSleeping, "told to sleep", false, until, at+1); err != nil || c == nil {
			t.Fatalf("the agent is not put to sleep: %+v, %v", c, err)
		}
		end := enginetest.End(cmd, 1)
		end.Reason, end.Why, end.Sleep = api.ReasonCancelled, "cancelled", 0
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		a, err := s.Agent(t.Context(), "ada")
		if err != nil || a.State != api.StateSleeping || a.SleepUntil != until || a.Reason != "told to sleep" || end.Changed != nil {
			t.Errorf("after the end of the run the agent is %s until %d because of %q, changed %+v, %v; want the sleep that it was told",
				a.State, a.SleepUntil, a.Reason, end.Changed, err)
		}
	})
}

// TestSleepDuringARun checks that the end of a run that began before its agent was told to
// sleep, and that was not cancelled because it is in another session, keeps that sleep and
// sets no alarm.
func TestSleepDuringARun(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		until := at + time.Hour.Microseconds()
		cmd := enginetest.Command("ada", "r1")
		cmd.Session = "ada-two"
		_, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at)
		must(t, err)
		_, err = s.SetState(t.Context(), "ada", api.StateSleeping, "told to sleep", false, until, at+1)
		must(t, err)
		end := enginetest.End(cmd, 1)
		end.Alarm = true
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		a, err := s.Agent(t.Context(), "ada")
		if err != nil || a.State != api.StateSleeping || a.SleepUntil != until || a.Reason != "told to sleep" {
			t.Errorf("the agent is %s until %d because of %q, %v; want the sleep that it was told", a.State, a.SleepUntil, a.Reason, err)
		}
		if end.Alarm || end.Changed != nil || len(end.Earlier) != 0 {
			t.Errorf("the end is %+v, want it without an alarm and a change", end)
		}
		// A message after that wakes the agent.
		cmd = enginetest.Command("ada", "later")
		end = enginetest.End(cmd, 1)
		end.Alarm = true
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		if end.Changed == nil || end.Changed.SleepUntil != end.Sleep || !end.Alarm || len(end.Earlier) != 2 {
			t.Errorf("after a later message the end is %+v, want its own sleep", end)
		}
	})
}

// TestAwakeWithTheMainSession checks that the end of a run in another session does not put
// an agent to sleep while its main session has a run, and that the end of that run does.
func TestAwakeWithTheMainSession(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		main := enginetest.Command("ada", "main")
		must(t, s.Persist(t.Context(), enginetest.Record(main, 1), enginetest.Input(main), nil))
		want := func(when string, state api.AgentState) {
			t.Helper()
			a, err := s.Agent(t.Context(), "ada")
			if err != nil || a.State != state {
				t.Errorf("%s the agent is %s, %v, want %s", when, a.State, err, state)
			}
		}
		over := func(run string) *engine.End {
			t.Helper()
			cmd := enginetest.Command("ada", run)
			cmd.Session = "ada-two"
			end := enginetest.End(cmd, 1)
			must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
			return end
		}
		if end := over("short"); end.Changed != nil {
			t.Errorf("the end of the other run has the change %+v, want none", end.Changed)
		}
		want("after the end of the other run", api.StateRunning)
		must(t, s.Persist(t.Context(), enginetest.Record(main, 2), enginetest.Input(main), enginetest.End(main, 2)))
		want("after the end of the main run", api.StateSleeping)
		if end := over("later"); end.Changed == nil || end.Changed.State != api.StateSleeping || len(end.Earlier) != 2 {
			t.Errorf("a run without another one changed the agent to %+v, %+v, want it woken and asleep", end.Earlier, end.Changed)
		}
		want("after a run without another one", api.StateSleeping)
	})
}

// TestFund checks that only an agent that could not pay, and has no run in progress, is put
// to sleep because it was funded. Runs of tasks do not count.
func TestFund(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		fund := func(when string, want bool) {
			t.Helper()
			if c, err := s.Fund(t.Context(), "ada", at); err != nil || (c != nil) != want || want && c.State != api.StateSleeping {
				t.Errorf("%s: got the change %+v, %v, want one: %t", when, c, err, want)
			}
		}
		fund("of a sleeping agent", false)
		task := enginetest.Command("ada", "task")
		task.Kind, task.Session = api.RunTask, "ada-task-g1-1-1"
		must(t, s.NewSession(t.Context(), task.Session, "ada", at))
		cmd := enginetest.Command("ada", "r1")
		for _, c := range []api.Run{task, cmd} {
			_, err := s.Started(t.Context(), c, enginetest.Input(c), api.TierCritical, at)
			must(t, err)
		}
		fund("during a run", false)
		end := enginetest.End(cmd, 1)
		end.State = api.StateCritical
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		fund("after a run that it could not pay", true)
		fund("again", false)
		_, err := s.Fund(t.Context(), "missing", at)
		wantCode(t, err, api.NotFound)
	})
}

// TestWaits checks that a queued run that was cancelled does not become part of another
// one.
func TestWaits(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "cancelled")
		must(t, s.Cancel(t.Context(), cmd.Run, cmd.Session, "enough", at))
		for run, want := range map[string]bool{"cancelled": false, "other": true} {
			if got, err := s.Waits(t.Context(), run); err != nil || got != want {
				t.Errorf("%s waits: %t, %v, want %t", run, got, err, want)
			}
		}
	})
}

// TestUnfinished checks that Unfinished returns the runs that began until a time and have
// not ended.
func TestUnfinished(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		for i, run := range []string{"over", "first", "second", "later"} {
			cmd := enginetest.Command("ada", run)
			_, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at+int64(i))
			must(t, err)
		}
		cmd := enginetest.Command("ada", "over")
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), enginetest.End(cmd, 1)))
		all, err := s.Unfinished(t.Context(), at+2)
		must(t, err)
		var got []string
		for _, cmd := range all {
			got = append(got, cmd.Run)
		}
		if diff := cmp.Diff([]string{"first", "second"}, got); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
	})
}
