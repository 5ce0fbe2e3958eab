package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// shaped creates an agent with every tool that a shape needs, and with a context window
// of the given size if that is greater than zero.
func shaped(t *testing.T, w *world, name string, window int) api.Agent {
	t.Helper()
	source := "---\nname: " + name + "\ntools: [exec, read_file, write_file, check_credits, send_message, sleep, create_goal, list_goals, complete_task, remember_fact]\n"
	if window > 0 {
		source += fmt.Sprintf("context: {window: %d, reserve: 1000, flush: 7000}\n", window)
	}
	a := call[api.Agent](t, w, api.ApplyAgent{Source: source + "---\nBe useful.\n"})
	call[api.Posted](t, w, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: 100 * api.Dollar, Source: "faucet"})
	return a
}

// TestReplayShapes checks that sessions of every shape replay exactly. The tests of the
// engine replay crashed and resumed runs, at each step.
func TestReplayShapes(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("testdata/shapes.json")
	if err != nil {
		t.Fatal(err)
	}
	w := oneProcess(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script, "ANIMA_LOOP_MAIL_SENDER_RUNS": "1"})
	said := func(text string) func(t *testing.T, a api.Agent) {
		return func(t *testing.T, a api.Agent) {
			if end := send(t, w, a.ID, text); !end.Success {
				t.Errorf("%+v", end)
			}
		}
	}
	started := func(t *testing.T, a api.Agent, text string) api.Accepted {
		t.Helper()
		acc := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: text})
		await(t, w, api.ToolStart{Session: a.Session}, func(e api.ToolStart) bool { return e.Run == acc.Run })
		return acc
	}
	shapes := []struct {
		name   string
		window int
		turns  int // minimum number of turns
		live   func(t *testing.T, a api.Agent)
	}{
		{"plain", 0, 1, said("hello")},
		{"parallel calls", 0, 3, said("parallel")},
		{"a call that is denied", 0, 2, said("forbidden")},
		{"calls that are malformed", 0, 2, said("wrong")},
		{"sleep and alarm", 0, 2, func(t *testing.T, a api.Agent) {
			end := send(t, w, a.ID, "sleep")
			await(t, w, api.LoopEnd{Session: a.Session}, func(e api.LoopEnd) bool { return e.Run != end.Run })
		}},
		{"a wake by the creator", 0, 1, func(t *testing.T, a api.Agent) {
			await(t, w, api.AgentChanged{Agent: a.ID}, func(api.AgentChanged) bool { return true })
			var err error
			until(t.Context(), time.Minute, func() bool { // heartbeat may not have handled the event yet
				_, err = bus.Call[api.Wake](t.Context(), w.bus, api.RequestWake{Agent: a.ID, Cause: "creator-1", Reason: "breakfast"})
				return api.CodeOf(err) != api.NotFound
			})
			if err != nil {
				t.Fatal(err)
			}
			await(t, w, api.LoopEnd{Session: a.Session}, func(api.LoopEnd) bool { return true })
		}},
		{"mail, and mail over its budget", 0, 2, func(t *testing.T, a api.Agent) {
			from := shaped(t, w, "Writer", 0)
			for n := range 2 {
				send(t, w, from.ID, fmt.Sprintf("tell %s news %d", a.Address, n))
				ends := 0
				await(t, w, api.LoopEnd{Session: a.Mail}, func(api.LoopEnd) bool { ends++; return ends > n })
			}
		}},
		{"a goal with tasks", 0, 4, func(t *testing.T, a api.Agent) {
			send(t, w, a.ID, "goal")
			await(t, w, api.GoalChanged{Agent: a.ID}, func(e api.GoalChanged) bool { return e.Phase == api.PhaseComplete })
		}},
		{"flush and compaction with a goal", 14_000, 30, func(t *testing.T, a api.Agent) {
			send(t, w, a.ID, "goal")
			for range 14 {
				if end := send(t, w, a.ID, "read at length"); !end.Success {
					t.Fatalf("%+v", end)
				}
			}
			flushed := 0
			for _, turn := range call[api.Turns](t, w, api.ListTurns{Session: a.Session, Limit: 200}).Turns {
				if turn.Finish == api.FinishFlush {
					flushed++
				}
			}
			if flushed == 0 {
				t.Error("the session was never flushed")
			}
		}},
		{"steer", 0, 2, func(t *testing.T, a api.Agent) {
			run := started(t, a, "slow tool")
			call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "hello there", Mode: api.ModeSteer})
			ended(t, w, a.Session, run.Run)
		}},
		{"collect", 0, 3, func(t *testing.T, a api.Agent) {
			started(t, a, "slow tool")
			var last api.Accepted
			for _, text := range []string{"one", "two", "three"} {
				last = call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: text, Mode: api.ModeCollect})
			}
			ended(t, w, a.Session, last.Run)
		}},
		{"interrupt", 0, 2, func(t *testing.T, a api.Agent) {
			run := started(t, a, "never")
			next := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "hello", Mode: api.ModeInterrupt})
			ended(t, w, a.Session, run.Run)
			ended(t, w, a.Session, next.Run)
		}},
		{"reset", 0, 3, func(t *testing.T, a api.Agent) {
			send(t, w, a.ID, "one")
			send(t, w, a.ID, "two")
			var err error
			until(t.Context(), time.Minute, func() bool { // the acknowledgement of its last run may be in transit
				_, err = bus.Call[api.Session](t.Context(), w.bus, api.ResetSession{Session: a.Session})
				return api.ReasonOf(err) != api.ReasonBusy
			})
			if err != nil {
				t.Fatal(err)
			}
			send(t, w, a.ID, "three")
		}},
		{"more turns than a prompt shows", 0, 64, func(t *testing.T, a api.Agent) {
			for n := range 64 {
				send(t, w, a.ID, fmt.Sprint("recall ", n))
			}
		}},
	}
	tests := map[string]func(*testing.T){}
	for i, shape := range shapes {
		tests[shape.name] = func(t *testing.T) {
			a := shaped(t, w, fmt.Sprint("Shape", i), shape.window)
			shape.live(t, a)
			turns, steps := 0, 0
			for last := ""; ; {
				page := call[api.Turns](t, w, api.ListTurns{Agent: a.ID, Before: last, Limit: 200}).Turns
				if len(page) == 0 {
					break
				}
				for _, turn := range page {
					last = turn.ID
					got, err := bus.Call[api.Replayed](t.Context(), w.bus, api.ReplayTurn{Turn: turn.ID})
					switch {
					case err != nil:
						t.Errorf("turn %s (%s): %v", turn.ID, turn.Finish, err)
					case !got.Same:
						t.Errorf("turn %s: %+v", turn.ID, got.Difference)
					}
					turns, steps = turns+1, steps+got.Steps
				}
			}
			if turns < shape.turns {
				t.Errorf("%d turns, want %d", turns, shape.turns)
			}
			t.Logf("%d turns with %d steps", turns, steps)
		}
	}
	together(t, tests)
}
