package heartbeat

import (
	"context"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// Limits of a round of top-ups.
const (
	poorAgents  = 1000 // the most agents in one round; the next round goes on after them
	roundOfPoor = time.Minute
)

// topups has treasury buy credits for agents that cannot pay, in rounds
// (docs/reference/heartbeat.md, Top-ups). It knows the states of agents and no balances:
// treasury reads those and decides.
type topups struct {
	every time.Duration
	store schedule.Store
	leads func() bool // this replica has the clock
	bus   *bus.Bus
	log   *slog.Logger
	after string // last agent of the previous round, "" if it was the last of all
}

// run makes a round in each interval until ctx ends. A round that fails or is lost with
// its process is repeated by the next one. Two replicas that both make a round buy once.
func (t *topups) run(ctx context.Context) error {
	wait.Every(ctx, t.every, func() {
		if t.leads() {
			t.round(ctx)
		}
	})
	return nil
}

func (t *topups) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, roundOfPoor)
	defer cancel()
	agents, err := t.store.Poor(ctx, t.after, poorAgents)
	if err != nil && ctx.Err() == nil {
		t.log.WarnContext(ctx, "agents that cannot pay not read, retrying", "err", err)
	}
	for _, agent := range agents {
		got, err := bus.Call[api.TopUpTriggered](ctx, t.bus, api.TriggerTopUp{Agent: agent, Cause: "heartbeat: the agent is critical or dead"})
		switch {
		case ctx.Err() != nil, api.ReasonOf(err) == api.ReasonNoChain, api.ReasonOf(err) == api.ReasonNoAnswer:
			return // the answer for the others is the same
		case err != nil:
			t.log.DebugContext(ctx, "no credits bought", "agent", agent, "err", err)
		case got.Bought:
			t.log.InfoContext(ctx, "credits bought for an agent that could not pay", "agent", agent, "credits", got.Credits)
		}
		t.after = agent
	}
	if err == nil && len(agents) < poorAgents {
		t.after = ""
	}
}
