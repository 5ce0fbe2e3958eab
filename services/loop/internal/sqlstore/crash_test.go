package sqlstore_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestCrash crashes the owner of a run before and after each call of a port, with real
// tables, and checks that the next owner stores the same as an owner that did not crash.
func TestCrash(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		calls := []api.ToolCall{{ID: "call_0", Name: "look", Arguments: "{}"}, {ID: "call_0", Name: "pay", Arguments: "{}"}}
		world := func() *enginetest.World {
			w := enginetest.New(s, enginetest.Say(
				api.Completion{Model: "m", ToolCalls: calls, Finish: "tool_calls", InputTokens: 7, Cost: 610},
				api.Completion{Model: "m", Text: "done", Finish: "stop", InputTokens: 9, Cost: 305},
			))
			w.Lossy = true
			return w
		}
		command := func(name string) api.Run {
			cmd := enginetest.Command("ada", name)
			cmd.Session = "ada-" + name
			must(t, s.NewSession(t.Context(), cmd.Session, "ada", at))
			return cmd
		}
		must(t, world().Run(t.Context(), enginetest.Open, command("born"))) // the input of an agent's first turn differs from others
		calm := command("calm")
		var ports enginetest.Crash
		lived := world()
		must(t, lived.Run(t.Context(), ports.Gate, calm))
		want, err := s.History(t.Context(), calm.Session, 10)
		must(t, err)
		for n := 1; n <= len(ports.Ports); n++ {
			for _, after := range []bool{false, true} {
				cmd := command(fmt.Sprintf("x%d-%t", n, after))
				w := world()
				crash := enginetest.Crash{At: ports.Point(n), After: after}
				if err := w.Run(t.Context(), crash.Gate, cmd); err == nil {
					t.Fatalf("the owner did not die at %d", n)
				}
				must(t, w.Run(t.Context(), enginetest.Open, cmd))
				got, err := s.History(t.Context(), cmd.Session, 10)
				must(t, err)
				where := fmt.Sprintf("crash at %s, after=%t", ports.Ports[n-1], after)
				if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Turn{}, "ID", "Run", "Session", "StartedAt", "EndedAt"),
					cmpopts.IgnoreFields(api.CallState{}, "DurationMS", "Decision")); diff != "" {
					t.Errorf("%s: turns (-want +got):\n%s", where, diff)
				}
				v, err := s.Session(t.Context(), cmd.Session)
				must(t, err)
				if v.Turns != 2 || v.Messages != 1 || v.Cost != 915 || v.InputTokens != 16 {
					t.Errorf("%s: session %+v", where, v)
				}
				if got, want := len(w.Stream.IDs()), len(lived.Stream.IDs()); got != want || len(w.Stream.Faults()) > 0 {
					t.Errorf("%s: %d events, want %d; faults %v", where, got, want, w.Stream.Faults())
				}
				a, err := s.Agent(t.Context(), "ada")
				must(t, err)
				if a.State != api.StateSleeping {
					t.Errorf("%s: the agent is left %s", where, a.State)
				}
			}
		}
	})
}
