package enginetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

func persist(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	changes, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start)
	must(t, err)
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), nil))
	k := known(t, s, cmd)
	if k.Turns != 1 || k.Cost != 610 || k.Journal != 10 || k.Ended != nil {
		t.Errorf("after a turn: %+v", k)
	}
	if diff := cmp.Diff(Input(cmd), k.Input); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
	end := End(cmd, 2)
	must(t, s.Persist(t.Context(), Record(cmd, 2), Input(cmd), end))
	c := end.Changed
	if c == nil || c.State != api.StateSleeping || c.Previous != api.StateRunning || c.Reason != end.Why || c.SleepUntil != end.Sleep ||
		c.Seq <= changes[1].Seq || c.At != end.At || c.Agent != "ada" {
		t.Errorf("the end changed the agent to %+v", c)
	}
	k = known(t, s, cmd)
	if diff := cmp.Diff(end, k.Ended); diff != "" {
		t.Errorf("stored end (-want +got):\n%s", diff)
	}
	if k.Turns != 2 || k.Cost != 1220 || k.Journal != 20 {
		t.Errorf("after the end: %+v", k)
	}
	// The next run continues after the last entry.
	if k := known(t, s, Command("ada", "r2")); k.Journal != 20 || k.Turns != 0 || k.Ended != nil {
		t.Errorf("for the next run: %+v", k)
	}
}

func persistTwice(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), nil))
	again := Record(cmd, 1)
	again.Turn.EndedAt++
	again.Turn.Thinking, again.Journal = "something else", 99
	must(t, s.Persist(t.Context(), again, Input(cmd), nil))
	if k := known(t, s, cmd); k.Turns != 1 || k.Cost != 610 || k.Journal != 10 {
		t.Errorf("after the same turn twice: %+v", k)
	}
	h, err := s.History(t.Context(), cmd.Session, 10)
	must(t, err)
	if diff := cmp.Diff([]api.Turn{Record(cmd, 1).Turn}, h); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

func persistEndTwice(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	end := End(cmd, 1)
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), end))
	again := End(cmd, 1)
	again.At++
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), again))
	if diff := cmp.Diff(end, again); diff != "" {
		t.Errorf("the second writer was not told what is stored (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(end, known(t, s, cmd).Ended); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// persistOtherwise tests that an owner cannot end a run that another owner has
// continued, or the reverse.
func persistOtherwise(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	_, err := s.Started(t.Context(), cmd, Input(cmd), api.TierHigh, Start)
	must(t, err)
	must(t, s.Persist(t.Context(), Record(cmd, 1), Input(cmd), nil))
	wantCode(t, "an end with a turn that did not end it", s.Persist(t.Context(), Record(cmd, 1), Input(cmd), End(cmd, 1)), api.Conflict)
	if k := known(t, s, cmd); k.Ended != nil || k.Agent.State != api.StateRunning {
		t.Errorf("a refused end left %+v", k)
	}
	end := End(cmd, 2)
	must(t, s.Persist(t.Context(), Record(cmd, 2), Input(cmd), end))
	wantCode(t, "an old turn of a run that is over", s.Persist(t.Context(), Record(cmd, 1), Input(cmd), nil), api.Conflict)
	wantCode(t, "another turn of a run that is over", s.Persist(t.Context(), Record(cmd, 3), Input(cmd), End(cmd, 3)), api.Conflict)
	k := known(t, s, cmd)
	if diff := cmp.Diff(end, k.Ended); diff != "" || k.Turns != 2 || k.Journal != 20 {
		t.Errorf("a refused turn left %d turns, journal %d (-want +got):\n%s", k.Turns, k.Journal, diff)
	}
}

// ownersAtOnce tests that eight owners may persist the same turns concurrently.
func ownersAtOnce(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	const owners, turns = 8, 4
	var wg sync.WaitGroup
	ends := make([]*engine.End, owners)
	errs := make([]error, owners)
	for i := range owners {
		wg.Go(func() {
			for n := 1; n < turns && errs[i] == nil; n++ {
				errs[i] = s.Persist(t.Context(), Record(cmd, n), Input(cmd), nil)
			}
			if errs[i] == nil {
				ends[i] = End(cmd, turns)
				errs[i] = s.Persist(t.Context(), Record(cmd, turns), Input(cmd), ends[i])
			}
		})
	}
	wg.Wait()
	k := known(t, s, cmd)
	if k.Turns != turns || k.Cost != 610*turns || k.Journal != 10*turns {
		t.Errorf("known: %+v", k)
	}
	for i := range owners {
		// A late owner gets Conflict because the run is over.
		if errs[i] != nil && api.CodeOf(errs[i]) != api.Conflict {
			t.Errorf("owner %d: %v", i, errs[i])
		}
		if errs[i] == nil {
			if diff := cmp.Diff(k.Ended, ends[i]); diff != "" {
				t.Errorf("owner %d was told of another end (-want +got):\n%s", i, diff)
			}
		}
	}
	h, err := s.History(t.Context(), cmd.Session, 100)
	must(t, err)
	if len(h) != turns {
		t.Errorf("%d turns in the history, want %d", len(h), turns)
	}
}

// runsAtOnce tests concurrent runs on one session, which the session's lock normally
// excludes: a turn whose position is taken gets Conflict, and no turn is lost.
func runsAtOnce(t *testing.T, s Stores) {
	const runs, turns = 4, 3
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			cmd := Command("ada", fmt.Sprintf("r%d", i))
			for n := 1; n <= turns; n++ {
				err := s.Persist(t.Context(), Record(cmd, n), Input(cmd), nil)
				for api.CodeOf(err) == api.Conflict {
					err = s.Persist(t.Context(), Record(cmd, n), Input(cmd), nil)
				}
				if err != nil {
					t.Errorf("turn %d of run %d: %v", n, i, err)
				}
			}
		})
	}
	wg.Wait()
	h, err := s.History(t.Context(), "ada-main", 100)
	must(t, err)
	if len(h) != runs*turns {
		t.Errorf("%d turns in the history, want %d", len(h), runs*turns)
	}
	for i := range runs {
		if k := known(t, s, Command("ada", fmt.Sprintf("r%d", i))); k.Turns != turns || k.Cost != 610*turns {
			t.Errorf("run %d has %d turns and cost %d", i, k.Turns, k.Cost)
		}
	}
}
