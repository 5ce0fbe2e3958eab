package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// varying is a source whose text changes with each read, as goals and notes do.
type varying struct {
	layer engine.Layer
	size  func(n int) int
	n     *int
}

func (v varying) Layer(context.Context, engine.Agent) (engine.Layer, error) {
	*v.n++
	l := v.layer
	l.Text = fmt.Sprintf("look %d\n", *v.n) + strings.Repeat("to be done ", v.size(*v.n))
	return l, nil
}

// TestReplayLong tests that long sessions with goals, memories, notes, flushes and
// compactions replay without a difference, whichever layer is large when a flush or a
// compaction is due.
func TestReplayLong(t *testing.T) {
	t.Parallel()
	for _, window := range []int64{13_000, 18_000, 23_000, 26_000} { // the 4 of 29 tried windows that found the most faults
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			w := notes(says("NO_REPLY"))()
			a := ada
			a.Tools = append([]string{"write_file"}, ada.Tools...)
			a.Window, a.Autonomous = window, true
			w.Store = newStore(a)
			var looks [4]int
			w.Sources = []engine.Source{
				varying{engine.Layer{Name: "todo", Last: true}, func(n int) int { return n % 7 * 60 }, &looks[0]},
				varying{engine.Layer{Name: "worklog"}, func(n int) int { return n % 5 * 150 }, &looks[1]},
				varying{engine.Layer{Name: "orchestrator"}, func(n int) int { return n % 3 * 30 }, &looks[2]},
				varying{engine.Layer{Name: "soul"}, func(n int) int { return n / 9 * 100 }, &looks[3]},
			}
			w.Memory = &memory{}
			total := 0
			for n := 1; n <= 40; n++ {
				cmd := nthRun(n)
				if n%4 == 0 {
					cmd.Kind, cmd.By = api.RunWake, api.Principal{Kind: api.HeartbeatKind}
				}
				run(t, w, cmd)
				got, err := w.Replay(t.Context(), cmd.Session, cmd.Run)
				if total += got; err != nil {
					t.Errorf("after %d turns: %v", total, err)
				}
			}
			if len(flushes(t, w)) == 0 || len(compactions(w)) == 0 || total < 70 {
				t.Errorf("%d flushes, %d compactions, %d turns replayed: the shape is not what it was meant to be", len(flushes(t, w)), len(compactions(w)), total)
			}
		})
	}
}

// prefix returns a prompt as sent to a provider, without its last message, which has
// the parts that change with each turn.
func prefix(t *testing.T, messages []api.ChatMessage) string {
	t.Helper()
	data, err := api.Encode(messages[:len(messages)-1])
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(data), "]")
}

// TestStablePrefix tests that each prompt of a session begins with the bytes of the
// previous one, while the agent's balance, memories, notes and goals change, and that
// only the first message has the role system.
func TestStablePrefix(t *testing.T) {
	t.Parallel()
	w := long(128_000, 400)
	a := ada
	a.Autonomous = true
	w.Store = newStore(a)
	var looks [4]int
	w.Sources = []engine.Source{
		varying{engine.Layer{Name: "todo", Last: true}, func(n int) int { return n % 3 }, &looks[0]},
		varying{engine.Layer{Name: "worklog"}, func(n int) int { return n }, &looks[1]},
		varying{engine.Layer{Name: "memory"}, func(n int) int { return n }, &looks[2]},
		varying{engine.Layer{Name: "orchestrator"}, func(n int) int { return n % 2 }, &looks[3]},
	}
	w.Memory = &memory{}
	for n := 1; n <= 14; n++ {
		cmd := nthRun(n)
		if n%3 == 0 {
			cmd.Kind, cmd.By = api.RunWake, api.Principal{Kind: api.HeartbeatKind}
		}
		w.Treasury.Tier = []api.Tier{api.TierHigh, api.TierNormal, api.TierLow}[n%3]
		run(t, w, cmd)
	}
	all := w.Router.Requests()
	if len(all) < 28 {
		t.Fatalf("%d requests, want 28 and more", len(all))
	}
	for i, r := range all {
		for k, m := range r.Messages {
			if (m.Role == "system") != (k == 0) {
				t.Errorf("request %d: message %d is of role %s", i, k, m.Role)
			}
		}
		if i == 0 {
			continue
		}
		if now, before := prefix(t, r.Messages), prefix(t, all[i-1].Messages); !strings.HasPrefix(now, before) {
			n := 0
			for n < len(now) && n < len(before) && now[n] == before[n] {
				n++
			}
			t.Errorf("request %d begins otherwise than the one before it, from %q, was %q", i, now[max(0, n-60):min(len(now), n+60)], before[max(0, n-60):min(len(before), n+60)])
		}
	}
}

// TestRefused tests that a run whose prompt the provider refuses fails with the
// provider's message, and that the next run succeeds without the refused conversation.
func TestRefused(t *testing.T) {
	t.Parallel()
	poisoned := false
	w := enginetest.New(newStore(ada), func(req api.Complete) (api.Completion, error) {
		for _, m := range req.Messages {
			if poisoned && strings.Contains(m.Content, "task 1") {
				return api.Completion{}, &api.Error{Code: api.Invalid, Reason: api.ReasonRefused, Message: "messages[1]: I do not take this"}
			}
		}
		return says("seen"), nil
	})
	runs(t, w, 1, 1)
	poisoned = true
	_, end := run(t, w, nthRun(2))
	if end.Success || end.Reason != api.ReasonRefused || end.Error != "messages[1]: I do not take this" {
		t.Fatalf("the run ended %+v, want the provider's words", end)
	}
	runs(t, w, 3, 5)
	if got := len(w.Router.Requests()); got != 1+1+2+1+1 {
		t.Errorf("%d requests, want one a run and one more for the third", got)
	}
	for n := 3; n <= 5; n++ {
		if got, err := w.Replay(t.Context(), command.Session, nthRun(n).Run); got != 1 || err != nil {
			t.Errorf("run %d: %d turns replayed, %v", n, got, err)
		}
	}
	poisoned = false
	w.Router.Script = func(api.Complete) (api.Completion, error) {
		return api.Completion{}, &api.Error{Code: api.Invalid, Reason: api.ReasonRefused, Message: "no such parameter"}
	}
	before := len(compactions(w))
	run(t, w, nthRun(6))
	w.Router.Script = func(api.Complete) (api.Completion, error) { return says("seen"), nil }
	runs(t, w, 7, 7)
	if got := len(compactions(w)); got != before {
		t.Error("a refusal that was mended has cost the conversation")
	}
}
