package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

func TestJournalTail(t *testing.T) {
	t.Parallel()
	j := Journal{apptest.Bus(t)}
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	first, err := j.Append(t.Context(), cmd, engine.Step{Turn: 1, Begin: &engine.Begin{Attempt: 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	last, err := j.Append(t.Context(), cmd, engine.Step{Turn: 1, Intent: &engine.Intent{Index: 3}}, first)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		after uint64
		want  []string
	}{
		{"from the start", 0, []string{"begin", "intent"}},
		{"after the first", first, []string{"intent"}},
		{"after the last", last, nil},
		// An intent that Tail omits would repeat an irreversible call.
		{"the store has seen more than the stream has", last + 1000, []string{"begin", "intent"}},
	} {
		steps, end, err := j.Tail(t.Context(), cmd, c.after)
		if err != nil || end != last {
			t.Errorf("%s: got end %d, %v; want %d", c.name, end, err, last)
		}
		var got []string
		for _, s := range steps {
			got = append(got, s.Kind())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if steps, end, err := j.Tail(t.Context(), api.Run{Run: "r", Session: "other"}, 7); err != nil || end != 0 || steps != nil {
		t.Errorf("a session without a journal: got %v, %d, %v", steps, end, err)
	}
}

// TestJournalTurn tests that Turn returns the steps of a turn, or none if the stream has
// removed one of them, and that it does not search for them in later turns.
func TestJournalTurn(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{})
	nc, err := nats.Connect("", nats.InProcessServer(w.NATS))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), api.Journal{}.Subject().Stream())
	if err != nil {
		t.Fatal(err)
	}
	j := Journal{w.Bus}
	var last uint64
	write := func(run string, turn int, step engine.Step) uint64 {
		t.Helper()
		step.Run, step.Turn = run, turn
		seq, err := j.Append(t.Context(), api.Run{Run: run, Session: "s", Agent: "a"}, step, last)
		if err != nil {
			t.Fatal(err)
		}
		last = seq
		return seq
	}
	begin, thought := engine.Step{Begin: &engine.Begin{Attempt: 1, Input: &engine.Input{Text: "hi"}}}, engine.Step{Completion: &engine.Completion{}}
	intent, end := engine.Step{Intent: &engine.Intent{}}, engine.Step{End: &api.LoopEnd{}}
	write("r1", 1, begin)
	write("r1", 1, thought)
	first := write("r1", 1, intent)
	write("r1", 2, thought)
	second := write("r1", 2, intent)
	ended := write("r1", 2, end)
	write("r2", 1, begin)
	write("r2", 1, thought)
	for _, purge := range []struct {
		from uint64 // first entry that is left
		want map[string]int
	}{
		{1, map[string]int{"r1.1": 3, "r1.2": 3, "r2.1": 2}},
		{2, map[string]int{"r1.1": 0, "r1.2": 3, "r2.1": 2}},
		{second, map[string]int{"r1.1": 0, "r1.2": 0, "r2.1": 2}},
		{ended + 1, map[string]int{"r1.1": 0, "r1.2": 0, "r2.1": 2}}, // the begin of a run is its first entry
		{ended + 2, map[string]int{"r1.1": 0, "r1.2": 0, "r2.1": 0}},
	} {
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(purge.from)); err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, turn := range []struct {
			run    string
			number int
			after  uint64 // as the store has it: the last entry before the previous turn was persisted
		}{{"r1", 1, 0}, {"r1", 2, first}, {"r2", 1, second}} {
			steps, err := j.Turn(t.Context(), "s", turn.run, turn.number, turn.after)
			if err != nil {
				t.Fatal(err)
			}
			got[engine.ID(turn.run, turn.number)] = len(steps)
		}
		if diff := cmp.Diff(purge.want, got); diff != "" {
			t.Errorf("entries from %d on (-want +got):\n%s", purge.from, diff)
		}
	}
}
