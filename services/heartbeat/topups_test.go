package heartbeat_test

import (
	"context"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/heartbeat"
)

// TestTopups checks that heartbeat asks for credits for the agents that cannot pay, in each
// interval, and for no others; also after an answer that is an error.
func TestTopups(t *testing.T) {
	t.Parallel()
	asked := make(chan api.TriggerTopUp, 100)
	desk := host.Define("treasury", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.TriggerTopUp) (api.TopUpTriggered, error) {
			asked <- m
			if m.Agent == "bob" {
				return api.TopUpTriggered{}, api.Errorf(api.Unavailable, "the balance is not known")
			}
			return api.TopUpTriggered{Agent: m.Agent, Bought: true}, nil
		}))
	})
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_HEARTBEAT_TOPUP_EVERY": "1s"}}, heartbeat.Service, desk)
	state := func(agent string, s api.AgentState, seq int64) {
		t.Helper()
		m := api.AgentChanged{Agent: agent, Name: agent, State: s, Seq: seq, At: time.Now().UnixMicro()}
		if err := w.Bus.Publish(t.Context(), "agent_state/"+agent+"/"+time.Now().String(), m); err != nil {
			t.Fatal(err)
		}
	}
	state("ada", api.StateSleeping, 1)
	state("bob", api.StateCritical, 1)
	state("kid", api.StateDead, 1)
	seen := map[string]int{}
	for seen["bob"] < 2 || seen["kid"] < 2 {
		select {
		case m := <-asked:
			seen[m.Agent]++
			if m.Refused || m.Missing != 0 || m.Cause == "" {
				t.Errorf("got %+v, want a request that depends on the tier", m)
			}
		case <-time.After(time.Minute):
			t.Fatalf("got requests for %v, want two for bob and two for kid", seen)
		}
	}
	if seen["ada"] > 0 {
		t.Error("credits were requested for an agent that can pay")
	}
}
