package topup_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/topup"
)

// poor is a store with agents that need credits.
type poor struct {
	topup.Store
	agents []string
}

func (poor) OpenTopups(context.Context, int) ([]topup.Purchase, error) { return nil, nil }

func (p poor) PoorAgents(context.Context, api.Micros, api.Micros, int) ([]string, error) {
	return p.agents, nil
}

// TestRoundEndsWithTheChain checks that a round does not ask a chain that does not answer
// once for each agent, and that an error of one wallet does not end it.
func TestRoundEndsWithTheChain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"no chain":  {&api.Error{Code: api.Unavailable, Reason: api.ReasonChain, Message: "the RPC does not answer"}, 1},
		"no wallet": {api.Errorf(api.Unavailable, "the wallet is being rotated"), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			a := topup.Actor{Options: topup.Options{
				Store: poor{agents: []string{"ada", "bob", "lucky"}}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
				Credits: func(context.Context, string) (api.Micros, error) { return 0, nil },
				USDC: func(context.Context, string) (api.Micros, error) {
					asked++
					return 0, c.err
				},
			}}
			if a.Round(t.Context()); asked != c.want {
				t.Errorf("the balances of %d agents were asked for, want %d", asked, c.want)
			}
		})
	}
}
