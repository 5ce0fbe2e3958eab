package enginetest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// RunStore tests an implementation of engine.Store. open returns a new store with the
// sleeping agents ada and bob, each with the sessions <id>-main and <id>-two.
func RunStore(t *testing.T, open func(t *testing.T) Stores) {
	each(t, open, map[string]func(*testing.T, Stores){
		"known of nothing":        knownOfNothing,
		"started":                 started,
		"begun with a turn":       begunWithTurn,
		"tiers":                   tiers,
		"counters":                counts,
		"outcomes":                outcomes,
		"started is over":         startedIsOver,
		"dead stays dead":         deadStaysDead,
		"persist":                 persist,
		"persist twice":           persistTwice,
		"persist an end twice":    persistEndTwice,
		"persist otherwise":       persistOtherwise,
		"owners at the same time": ownersAtOnce,
		"runs at the same time":   runsAtOnce,
		"history":                 history,
	})
}

func each(t *testing.T, open func(t *testing.T) Stores, tests map[string]func(*testing.T, Stores)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func knownOfNothing(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	k := known(t, s, cmd)
	if k.Begun || k.Turns != 0 || k.Cost != 0 || k.Journal != 0 || k.Ended != nil || k.Agent.ID != "ada" || k.Agent.State != api.StateSleeping {
		t.Errorf("known of a new run: %+v", k)
	}
	for _, missing := range []api.Run{{Run: "r1", Agent: "nobody", Session: "ada-main"}, {Run: "r1", Agent: "ada", Session: "ada-none"}} {
		_, err := s.Known(t.Context(), missing)
		wantCode(t, missing.Agent+" "+missing.Session, err, api.NotFound)
	}
	h, err := s.History(t.Context(), cmd.Session, 10)
	if err != nil || len(h) != 0 {
		t.Errorf("history of nothing: %v, %v", h, err)
	}
}

func started(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	first, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start)
	must(t, err)
	if len(first) != 2 {
		t.Fatalf("the first start is %+v", first)
	}
	if k := known(t, s, cmd); !k.Begun || k.Turns != 0 {
		t.Errorf("known of a run that has begun: %+v", k)
	}
	for i, want := range [][2]api.AgentState{{api.StateSleeping, api.StateWaking}, {api.StateWaking, api.StateRunning}} {
		if c := first[i]; c.Agent != "ada" || c.Previous != want[0] || c.State != want[1] || c.Reason != "a message" || c.At != Start {
			t.Errorf("change %d is %+v, want %s to %s", i, c, want[0], want[1])
		}
	}
	if first[1].Seq <= first[0].Seq {
		t.Errorf("the changes have the numbers %d and %d", first[0].Seq, first[1].Seq)
	}
	again, err := s.Started(t.Context(), cmd, Input(cmd), api.TierCritical, Start+1)
	must(t, err)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the same run started again (-want +got):\n%s", diff)
	}
	other, err := s.Started(t.Context(), Command("ada", "r2"), Input(cmd), api.TierHigh, Start+2)
	if err != nil || len(other) != 0 {
		t.Errorf("another run of a running agent: %+v, %v, want no change", other, err)
	}
	wake := Command("bob", "r3")
	wake.Kind, wake.Content = api.RunWake, "a beat"
	woken, err := s.Started(t.Context(), wake, Input(wake), api.TierLow, Start)
	must(t, err)
	if len(woken) != 2 || woken[1].Agent != "bob" || woken[1].Reason != "woken: a beat" || woken[1].State != api.StateLow {
		t.Errorf("woken: %+v", woken)
	}
	if got := known(t, s, cmd).Agent.State; got != api.StateRunning {
		t.Errorf("the agent is %s, want running", got)
	}
}

// begunWithTurn tests that Persist of a run's first turn records the run as
// [Stores].Started does.
func begunWithTurn(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	rec := Record(cmd, 1)
	rec.Begun, rec.Tier, rec.Turn.State = Start, api.TierLow, api.StateLow
	must(t, s.Persist(t.Context(), rec, Input(cmd), nil))
	if c := rec.Changed; len(c) != 2 || c[0].State != api.StateWaking || c[0].Previous != api.StateSleeping || c[0].At != Start ||
		c[1].State != api.StateLow || c[1].Previous != api.StateWaking || c[1].Seq != c[0].Seq+1 || c[1].Reason != "a message" {
		t.Errorf("the first turn changed the agent to %+v", c)
	}
	all, err := s.Changes(t.Context(), cmd)
	must(t, err)
	if diff := cmp.Diff(rec.Changed, all); diff != "" {
		t.Errorf("changes of the run (-want +got):\n%s", diff)
	}
	again := Record(cmd, 1)
	again.Begun, again.Tier, again.Turn.State = Start+1, api.TierHigh, api.StateRunning
	must(t, s.Persist(t.Context(), again, Input(cmd), nil))
	started, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start+2)
	must(t, err)
	if diff := cmp.Diff(rec.Changed, started); diff != "" || len(again.Changed) != 0 {
		t.Errorf("again it changed %+v; started after the turn (-want +got):\n%s", again.Changed, diff)
	}
	if k := known(t, s, cmd); !k.Begun || !k.Latest || k.Turns != 1 || k.Agent.State != api.StateLow || k.Before != rec.Turn.EndedAt {
		t.Errorf("known: %+v", k)
	}
	if k := known(t, s, Command("ada", "r2")); k.Latest {
		t.Errorf("the last turn is another run's: %+v", k)
	}

	// The end of a run with one turn has all changes of the run.
	only := Command("bob", "r3")
	rec, end := Record(only, 1), End(only, 1)
	rec.Begun, rec.Tier = Start, api.TierHigh
	must(t, s.Persist(t.Context(), rec, Input(only), end))
	if len(end.Earlier) != 2 || end.Earlier[1].State != api.StateRunning || end.Changed == nil || end.Changed.Seq != end.Earlier[1].Seq+1 {
		t.Errorf("the only turn changed the agent to %+v, and its end to %+v", end.Earlier, end.Changed)
	}
	if diff := cmp.Diff(end, known(t, s, only).Ended); diff != "" {
		t.Errorf("stored end (-want +got):\n%s", diff)
	}
}

// tiers tests that turns of different tiers change the agent's state during a run.
func tiers(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	_, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start)
	must(t, err)
	for n, state := range []api.AgentState{api.StateRunning, api.StateLow, api.StateLow, api.StateCritical, api.StateRunning} {
		rec := Record(cmd, n+1)
		rec.Turn.State = state
		was := known(t, s, cmd).Agent.State
		must(t, s.Persist(t.Context(), rec, Input(cmd), nil))
		switch c := rec.Changed; {
		case was == state && len(c) != 0:
			t.Errorf("turn %d changed the agent to %+v", n+1, c)
		case was != state && (len(c) != 1 || c[0].State != state || c[0].Previous != was):
			t.Errorf("turn %d: %+v, want %s to %s", n+1, c, was, state)
		}
	}
}

// counts tests that counters and notices pass from one run of a session to the next.
func counts(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	rec := Record(cmd, 1)
	rec.Counters, rec.Notice = api.Counters{Idle: 3, Pattern: "exec", Repeated: 2, Errors: 1, Blocked: 4}, "you repeat yourself"
	must(t, s.Persist(t.Context(), rec, Input(cmd), End(cmd, 1)))
	k := known(t, s, Command("ada", "r2"))
	if diff := cmp.Diff(rec.Counters, k.Counters); diff != "" || k.Notice != rec.Notice {
		t.Errorf("notice %q, counters (-want +got):\n%s", k.Notice, diff)
	}
	other := Command("ada", "r3")
	other.Session = "ada-two"
	if k := known(t, s, other); k.Counters != (api.Counters{}) || k.Notice != "" {
		t.Errorf("another session has %+v and %q", k.Counters, k.Notice)
	}
}

// outcomes tests that a message has one outcome and that the first one is kept.
func outcomes(t *testing.T, s Stores) {
	cmd, into := Command("ada", "r1"), Command("ada", "r2")
	must(t, s.Merge(t.Context(), into, []api.Run{cmd}, Start))
	end := engine.End{Run: cmd, Code: api.Denied, Reason: api.ReasonExpired, Error: "late", At: Start + 1, Outcome: api.OutcomeExpired}
	got, err := s.Drop(t.Context(), end)
	must(t, err)
	if got.Outcome != api.OutcomeMerged || got.Into != "r2" || !got.Success || got.At != Start {
		t.Errorf("a message that was merged became %+v", got)
	}
	must(t, s.Merge(t.Context(), Command("ada", "r3"), []api.Run{cmd}, Start+2))
	if k := known(t, s, cmd); k.Ended == nil || k.Ended.Into != "r2" {
		t.Errorf("merged again: %+v", k.Ended)
	}
	late := Command("ada", "r4")
	for run, want := range map[string]bool{"r1": false, "r4": true} {
		if waits, err := s.Waits(t.Context(), run); err != nil || waits != want {
			t.Errorf("%s waits: %t, %v, want %t", run, waits, err, want)
		}
	}
	end.Run = late
	got, err = s.Drop(t.Context(), end)
	must(t, err)
	if diff := cmp.Diff(end, got); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
	begun := Command("bob", "r5")
	_, err = s.Started(t.Context(), begun, Input(begun), api.TierHigh, Start)
	must(t, err)
	end.Run = begun
	_, err = s.Drop(t.Context(), end)
	wantCode(t, "a run that has begun expires", err, api.Conflict)
	end.Outcome, end.Reason = api.OutcomeDropped, api.ReasonCancelled
	if got, err := s.Drop(t.Context(), end); err != nil || got.Outcome != api.OutcomeDropped {
		t.Errorf("a run that has begun is dropped: %+v, %v", got, err)
	}
	_, err = s.Started(t.Context(), late, Input(late), api.TierHigh, Start+3)
	wantCode(t, "start of what was dropped", err, api.Conflict)
	wantCode(t, "a turn of what was dropped", s.Persist(t.Context(), Record(late, 1), Input(late), nil), api.Conflict)
	if k := known(t, s, late); k.Turns != 0 || k.Ended == nil || k.Ended.Outcome != api.OutcomeExpired {
		t.Errorf("known: %+v", k)
	}
}

func startedIsOver(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	_, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start)
	must(t, err)
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), End(cmd, 1)))
	_, err = s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start+1)
	wantCode(t, "start of a run that is over", err, api.Conflict)
	if got := known(t, s, cmd).Agent.State; got != api.StateSleeping {
		t.Errorf("the agent is %s, want sleeping", got)
	}
}

func deadStaysDead(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	end := End(cmd, 1)
	end.State = api.StateDead
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), end))
	next := Command("ada", "r2")
	_, err := s.Started(t.Context(), next, Input(next), api.TierHigh, Start)
	wantCode(t, "start of a dead agent", err, api.Denied)
	end = End(next, 1)
	must(t, s.Persist(t.Context(), Record(next, 1), Input(next), end))
	if end.Changed != nil || known(t, s, next).Agent.State != api.StateDead {
		t.Errorf("a run's end made a dead agent %+v", end.Changed)
	}
}

func history(t *testing.T, s Stores) {
	var want []api.Turn
	for r := range 3 {
		cmd := Command("ada", fmt.Sprintf("r%d", r))
		other := cmd
		other.Run, other.Session = cmd.Run+"x", "ada-two"
		for n := 1; n <= 4; n++ {
			rec := Record(cmd, n)
			rec.Turn.StartedAt -= int64(r * 100_000) // the order is that of the writes, not of the times
			rec.Journal += uint64(100 * r)
			want = append(want, rec.Turn)
			must(t, s.Persist(t.Context(), rec, Input(cmd), nil))
			must(t, s.Persist(t.Context(), Record(other, n), Input(other), nil))
		}
	}
	for _, n := range []int{1, 5, 12, 100} {
		got, err := s.History(t.Context(), "ada-main", n)
		must(t, err)
		if diff := cmp.Diff(want[max(0, len(want)-n):], got); diff != "" {
			t.Errorf("last %d turns (-want +got):\n%s", n, diff)
		}
	}
}
