package loop

import (
	"context"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// TestFunded tests that a deposit ends the state critical of an agent that could not pay, and
// the death of another one, and that it wakes those that are autonomous, once.
func TestFunded(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	alarms := make(chan api.SetAlarm, 10)
	serve(t, b,
		bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
			return api.Balance{Agent: m.Agent, Available: api.Dollar, Tier: api.TierNormal}, nil
		}),
		bus.Reply(func(_ context.Context, m api.SetAlarm) (api.Alarm, error) {
			alarms <- m
			return api.Alarm{Agent: m.Agent, At: m.At}, nil
		}))
	h := onStore(t, b)
	ctx := t.Context()
	for _, tt := range []struct {
		name       string
		autonomous bool
		state      api.AgentState
		from, to   api.Tier
		want       api.AgentState
		alarm      bool
	}{
		{"pays-again", true, api.StateCritical, api.TierCritical, api.TierNormal, api.StateSleeping, true},
		{"pays-more", true, api.StateCritical, api.TierLow, api.TierNormal, api.StateSleeping, true},
		{"waits", false, api.StateCritical, api.TierCritical, api.TierNormal, api.StateSleeping, false},
		{"spends", true, api.StateCritical, api.TierHigh, api.TierCritical, api.StateCritical, false},
		{"revived", true, api.StateDead, api.TierCritical, api.TierNormal, api.StateSleeping, true},
		{"revived-and-waits", false, api.StateDead, api.TierCritical, api.TierNormal, api.StateSleeping, false},
		{"read-as-funded", true, api.StateDead, "", "", api.StateSleeping, true}, // no event
		{"asleep", true, api.StateSleeping, api.TierCritical, api.TierNormal, api.StateSleeping, false},
	} {
		h.apply(t, tt.name, tt.autonomous)
		for _, to := range []api.AgentState{api.StateWaking, tt.state} {
			if _, err := h.store.SetState(ctx, tt.name, to, "its money", false, 0, 2); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // events may be delivered again
			check := func() error { return h.tierChanged(ctx, api.TierChanged{Agent: tt.name, From: tt.from, To: tt.to}) }
			if tt.to == "" {
				check = func() error { return h.checkBalance(ctx, tt.name) }
			}
			if err := check(); err != nil {
				t.Fatal(err)
			}
		}
		a, err := h.store.Agent(ctx, tt.name)
		if err != nil || a.State != tt.want {
			t.Errorf("%s: the agent is %s, %v, want %s", tt.name, a.State, err, tt.want)
		}
		ids := map[string]bool{}
		for range len(alarms) {
			m := <-alarms
			if ids[m.ID] = true; m.Agent != tt.name || m.At > time.Now().UnixMicro() {
				t.Errorf("%s: the alarm %+v, want one of the agent for now", tt.name, m)
			}
		}
		if len(ids) > 1 || (len(ids) == 1) != tt.alarm {
			t.Errorf("%s: alarms %v, want one: %t", tt.name, ids, tt.alarm)
		}
	}
	if err := h.tierChanged(ctx, api.TierChanged{Agent: "no-agent", From: api.TierCritical, To: api.TierNormal}); err != nil {
		t.Errorf("an account without an agent: %v", err)
	}
}
