package session

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// waits are the times that messages of all agents may wait.
type waits time.Duration

func (w waits) QueueTimeout(context.Context, string) (time.Duration, error) {
	return time.Duration(w), nil
}

func (waits) Session(context.Context, string) (api.Session, error) { return api.Session{}, nil }

// TestExpire tests that a message expires after its time, and not while the journal has
// the begin of its run, which the store may not have yet.
func TestExpire(t *testing.T) {
	t.Parallel()
	const accepted, limit = 1_000_000, 30 * time.Second
	j := Journal{apptest.Bus(t)}
	var dropped []string
	now := time.UnixMicro(accepted)
	x := Expiry{
		Store: waits(limit), Begun: j.InProgress, Limit: time.Hour, Now: func() time.Time { return now },
		Drop: func(_ context.Context, end engine.End) error {
			if end.Outcome != api.OutcomeExpired || end.Reason != api.ReasonExpired {
				t.Errorf("the end is %+v, want expired", end)
			}
			dropped = append(dropped, end.Run.Run)
			return nil
		},
	}
	message := func(run string) api.Run {
		return api.Run{Run: run, Session: "s", Agent: "a", Kind: api.RunMessage, AcceptedAt: accepted}
	}
	want := func(when string, cmd api.Run, want bool) {
		t.Helper()
		before := len(dropped)
		got, err := x.Expire(t.Context(), cmd)
		if err != nil || got != want || (len(dropped) > before) != want {
			t.Errorf("%s: got %t, %v, dropped %v, want %t", when, got, err, dropped[before:], want)
		}
	}
	last, err := j.Append(t.Context(), message("first"), engine.Step{Turn: 1, Begin: &engine.Begin{Attempt: 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(limit)
	want("at the limit", message("second"), false)
	now = now.Add(time.Microsecond)
	want("a run that has begun", message("first"), false)
	want("a message behind it", message("second"), true)
	wake := message("third")
	wake.Kind = api.RunWake
	want("a wake", wake, false)
	steer := message("fourth")
	steer.Mode = api.ModeSteer
	want("a message that joins the run at its next safe point", steer, false)
	if _, err := j.Append(t.Context(), message("first"), engine.Step{Turn: 1, Release: true}, last); err != nil {
		t.Fatal(err)
	}
	want("a run that its owner returned before its begin was stored", message("first"), true)
	// The owner of a run in mode collect crashes before it stores the outcomes of the
	// messages that the run includes.
	fifth, sixth := message("fifth"), message("sixth")
	fifth.Session, sixth.Session = "collected", "collected"
	begin := engine.Step{Turn: 1, Begin: &engine.Begin{Attempt: 1, Input: &engine.Input{Text: "both", Merged: []api.Run{sixth}}}}
	if _, err := j.Append(t.Context(), fifth, begin, 0); err != nil {
		t.Fatal(err)
	}
	want("a message that a run includes", sixth, false)
	if got := []string{"second", "first"}; !slices.Equal(dropped, got) {
		t.Errorf("dropped %v, want %v", dropped, got)
	}
}

// TestSoon tests which begins are recorded at once.
func TestSoon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   api.RunKind
		waited time.Duration
		limit  time.Duration
		want   bool
	}{
		"at once":              {api.RunMessage, 500 * time.Millisecond, time.Hour, false},
		"after half a second":  {api.RunMessage, 501 * time.Millisecond, time.Hour, true},
		"with a shorter limit": {api.RunMessage, 51 * time.Millisecond, 100 * time.Millisecond, true},
		"a wake":               {api.RunWake, time.Hour, time.Hour, false},
	} {
		cmd := api.Run{Kind: c.kind, AcceptedAt: 7}
		if got := (Expiry{Limit: c.limit}).Soon(cmd, 7+c.waited.Microseconds()); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
