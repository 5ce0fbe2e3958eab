package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
