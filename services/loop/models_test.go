package loop

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
)

// TestModels tests that the list is requested once a minute, and that the last list is
// returned while the router is unavailable.
func TestModels(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	router := host.Define("inference-router", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(context.Context, api.ListModels) (api.Models, error) {
			if asked.Add(1) > 2 {
				return api.Models{}, api.Errorf(api.Internal, "broken")
			}
			return api.Models{Models: []api.Model{{ID: "m", ContextWindow: 9}}}, nil
		}))
	})
	now := time.Unix(0, 0)
	m := &models{bus: apptest.Bus(t, router), now: func() time.Time { return now }}
	for i, want := range []int64{1, 1, 2, 3} { // the third answer is an error
		got, err := m.Models(t.Context())
		if (err != nil) != (want == 3) || len(got) != 1 || got[0].ContextWindow != 9 || asked.Load() != want {
			t.Errorf("the %d. time: %+v, %v, asked %d times, want %d", i+1, got, err, asked.Load(), want)
		}
		if i > 0 {
			now = now.Add(modelsFor)
		}
	}
	alone := &models{bus: apptest.Bus(t), now: func() time.Time { return now }}
	if got, err := alone.Models(t.Context()); api.CodeOf(err) != api.Unavailable || got != nil {
		t.Errorf("without a router: %+v, %v", got, err)
	}
	if got, err := alone.Models(t.Context()); err != nil || got != nil {
		t.Errorf("without a router, just after: %+v, %v, want nothing at once", got, err)
	}
}
