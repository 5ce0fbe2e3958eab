package loop

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/replay"
)

// TestForkOfMalformedCalls tests that a fork has the decisions on the valid calls of an
// answer, also if other calls have arguments that are no JSON, of tools that are known and
// of others.
func TestForkOfMalformedCalls(t *testing.T) {
	t.Parallel()
	policy := host.Define("policy", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.CheckCall) (api.Decision, error) {
			return api.Decision{Action: api.Allow, Code: "ALLOWED", Message: string(m.Args)}, nil
		}))
	})
	look := engine.Tool{Name: "look", Check: func(args json.RawMessage) error {
		if string(args) == "{" {
			return errors.New("it is broken")
		}
		return nil
	}}
	r := replayHandlers{clients: newClients(apptest.Bus(t, policy), time.Now), tools: map[string]engine.Tool{"look": look}}
	calls := []api.ForkedCall{
		{Tool: "look", Arguments: "{"}, {Tool: "mcp_a_b", Arguments: `{"n":`}, {Tool: "look", Arguments: " "}, {Tool: "mcp_a_b", Arguments: `{"n":1}`},
	}
	if err := r.evaluate(t.Context(), engine.Recording{}, replay.Fork{}, calls); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range calls {
		got = append(got, string(c.Action)+" "+c.Message)
	}
	want := []string{" not judged: it is broken", " not judged: the arguments are not JSON", "allow {}", `allow {"n":1}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
