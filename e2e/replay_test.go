package e2e

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// turnsToReplay is the number of turns that [TestReplay] makes, unless ANIMA_REPLAY_TURNS
// is set, as make replay does.
const turnsToReplay = 200

// TestReplay makes turns with all services and checks that the replay of each gives the
// recorded result.
func TestReplay(t *testing.T) {
	t.Parallel()
	want := turnsToReplay
	if s := os.Getenv("ANIMA_REPLAY_TURNS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		want = n
	}
	l := newLoad(t, 8, apptest.Options{})
	l.run(want / 2) // of two turns each
	var ids []string
	for _, a := range l.agents {
		for last := ""; ; {
			page, err := bus.Call[api.Turns](t.Context(), l.w.bus, api.ListTurns{Agent: a.ID, Before: last, Limit: 200})
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Turns) == 0 {
				break
			}
			for _, turn := range page.Turns {
				ids, last = append(ids, turn.ID), turn.ID
			}
		}
	}
	if len(ids) < want {
		t.Fatalf("%d turns were made, want %d", len(ids), want)
	}
	var mu sync.Mutex
	steps, different := 0, 0
	work := make(chan string)
	var replaying sync.WaitGroup
	for range 4 {
		replaying.Go(func() {
			for id := range work {
				v, err := bus.Call[api.Replayed](t.Context(), l.w.bus, api.ReplayTurn{Turn: id})
				mu.Lock()
				steps += v.Steps
				if err != nil || !v.Same {
					different++
					t.Errorf("turn %s: %+v, %v", id, v.Difference, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, id := range ids {
		work <- id
	}
	close(work)
	replaying.Wait()
	t.Logf("%d turns with %d steps were replayed, %d are different", len(ids), steps, different)
	if steps < 2*len(ids) {
		t.Errorf("%d steps of %d turns, want two and more of each", steps, len(ids))
	}
	_, err := bus.Call[api.Replayed](t.Context(), l.w.bus, api.ReplayTurn{Turn: "nothing.1"})
	if api.CodeOf(err) != api.NotFound {
		t.Errorf("a turn that is not there: %v", err)
	}
	l.forks(ids[len(ids)-1])
}

// forks checks forks of a turn: a replay of its decisions by the current policy, and of
// its completion with another prompt.
func (l *load) forks(id string) {
	t := l.b
	fork := func(m api.ForkTurn) (api.Forked, error) {
		m.Turn = id
		return bus.CallStream[api.Delta, api.Forked](t.Context(), l.w.bus, m, func(api.Delta) error { return nil })
	}
	balance := func() api.Micros {
		agent, err := bus.Call[api.Turn](t.Context(), l.w.bus, api.GetTurn{Turn: id})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bus.Call[api.Balance](t.Context(), l.w.bus, api.GetBalance{Agent: agent.Agent})
		if err != nil {
			t.Fatal(err)
		}
		return b.Available
	}
	before := balance()
	v, err := fork(api.ForkTurn{Policy: true})
	if err != nil || len(v.Forked.Calls) != len(v.Recorded.Calls) || v.Forked.Text != v.Recorded.Text {
		t.Errorf("evaluated by the current rules: %+v, %v", v, err)
	}
	for i, c := range v.Forked.Calls {
		if c.Action != api.Allow || c.Code != "ALLOWED" || v.Recorded.Calls[i].Tool != c.Tool {
			t.Errorf("call %d: %+v", i, c)
		}
	}
	if after := balance(); after != before {
		t.Errorf("judging cost %s", before-after)
	}
	v, err = fork(api.ForkTurn{Prompt: "You are somebody else, and " + strings.Repeat("verbose ", 500)})
	if err != nil || v.Forked.InputTokens <= v.Recorded.InputTokens || v.Forked.Cost <= 0 {
		t.Errorf("with a longer genesis: %+v, %v", v, err)
	}
	if after := balance(); before-after != v.Forked.Cost {
		t.Errorf("the agent paid %s for %s", before-after, v.Forked.Cost)
	}
	for _, wrong := range []api.ForkTurn{{}, {Policy: true, Model: "m"}, {Model: "no-such-model"}} {
		if _, err := fork(wrong); api.CodeOf(err) != api.Invalid {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if got, err := bus.Call[api.Replayed](t.Context(), l.w.bus, api.ReplayTurn{Turn: id}); err != nil || !got.Same {
		t.Errorf("after its forks the turn is another: %+v, %v", got, err)
	}
}
