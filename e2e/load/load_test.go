package main

import (
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestOverdue checks that a run without an end event is counted by its state from
// get_run, and that the state is printed.
func TestOverdue(t *testing.T) {
	t.Parallel()
	began := time.UnixMicro(1_000_000)
	for name, c := range map[string]struct {
		state api.RunState
		err   error
		want  summary
		says  string
	}{
		"queued":    {api.RunState{Status: api.RunQueued}, nil, summary{Sent: 1, Lost: 1}, "lost: r of session s, accepted 1970-01-01T00:00:01Z: queued after 0 turns"},
		"cancelled": {api.RunState{Status: api.RunRunning, Turns: 1, Cancelled: true}, nil, summary{Sent: 1, Lost: 1}, "running after 1 turns, cancelled"},
		"unknown":   {api.RunState{}, api.Errorf(api.NotFound, "there is no run r yet"), summary{Sent: 1, Lost: 1}, "there is no run r yet"},
		"over":      {api.RunState{Status: api.RunEnded, Success: true, Turns: 2, EndedAt: 2_000_000}, nil, summary{Sent: 1, Runs: 1, Turns: 2, Unheard: 1}, "unheard: r"},
		"it failed": {api.RunState{Status: api.RunEnded, Error: "no money"}, nil, summary{Sent: 1, Failed: 1, Unheard: 1}, "failed and unheard: r of session s, accepted 1970-01-01T00:00:01Z: ended after 0 turns: no money"},
	} {
		l := &load{ends: map[string]*end{}, runs: map[string]int{}}
		l.overdue(api.Accepted{Run: "r", Session: "s", At: 1_000_000}, c.state, c.err, began)
		got := l.sum
		if got.Sent != c.want.Sent || got.Lost != c.want.Lost || got.Failed != c.want.Failed || got.Unheard != c.want.Unheard || got.Runs != c.want.Runs || got.Turns != c.want.Turns {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		if text := strings.Join(got.Faults, ""); !strings.Contains(text, c.says) {
			t.Errorf("%s: it says %q, want %q", name, text, c.says)
		}
		if got.ok() {
			t.Errorf("%s: the load is taken for a good one", name)
		}
	}
}
