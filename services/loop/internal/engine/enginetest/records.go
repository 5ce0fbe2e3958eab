package enginetest

import (
	"fmt"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Command returns a run on an agent's main session.
func Command(agent, run string) api.Run {
	return api.Run{
		Run: run, Agent: agent, Session: agent + "-main", Kind: api.RunMessage, Content: "do it",
		By: api.Principal{Kind: api.Creator}, AcceptedAt: Start,
	}
}

// Record returns turn n of a run, with two calls, at journal entry 10 n.
func Record(cmd api.Run, n int) *engine.Record {
	t := api.Turn{
		ID: engine.ID(cmd.Run, n), Agent: cmd.Agent, Session: cmd.Session, Run: cmd.Run, Number: n, State: api.StateRunning,
		By: api.Principal{Kind: api.Peer, Address: "0xAB"}, Thinking: fmt.Sprintf("thought %d", n), Model: "m", Provider: "p", Finish: "tool_calls",
		InputTokens: 100, OutputTokens: 10, Cost: 610, Trace: "0af7651916cd43dd8448eb211c80319c",
		StartedAt: Start + int64(n)*1000, EndedAt: Start + int64(n)*1000 + 500,
		// Providers repeat the ids of calls (docs/reference/loop.md, V-40).
		Calls: []api.CallState{
			{
				Index: 0, ID: "call_0", Tool: "look", Arguments: []byte(`{"n":1}`), Decision: "d1", Action: api.Allow,
				Outcome: api.OutcomeOK, Result: "seen", DurationMS: 3,
			},
			{Index: 1, ID: "call_0", Tool: "fire", Arguments: []byte(`"not json {"`), Outcome: api.OutcomeError, Error: "not run"},
		},
	}
	if n == 1 {
		t.Input = cmd.Content
	}
	return &engine.Record{Turn: t, Run: cmd, Journal: uint64(10 * n)}
}

// Input returns a run's input.
func Input(cmd api.Run) engine.Input {
	return engine.Input{Text: cmd.Content, By: api.Principal{Kind: api.Peer, Address: "0xAB"}, Inbox: 1}
}

// End returns a successful end of a run with turn n.
func End(cmd api.Run, n int) *engine.End {
	return &engine.End{
		Run: cmd, Input: Input(cmd), Success: true, Response: "done", Turns: n, Cost: api.Micros(610 * n), At: Start + 9000,
		State: api.StateSleeping, Why: "nothing to do", Sleep: Start + 60_000_000,
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func known(t *testing.T, s engine.Store, cmd api.Run) engine.Known {
	t.Helper()
	k, err := s.Known(t.Context(), cmd)
	must(t, err)
	return k
}

func wantCode(t *testing.T, what string, err error, want api.Code) {
	t.Helper()
	if api.CodeOf(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}
