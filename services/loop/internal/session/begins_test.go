package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// TestBeginnings tests that a run is recorded if its first turn takes longer than
// moment, that it is not recorded if its first turn is stored earlier, and that Flush
// records the begins of an agent at once.
func TestBeginnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var recorded []string
		away, stuck := true, true
		b := NewBegins(func(ctx context.Context, cmd api.Run, in engine.Input, tier api.Tier, at int64) error {
			mu.Lock()
			defer mu.Unlock()
			if away && cmd.Run == "refused" {
				return errors.New("the store is away")
			}
			if cmd.Run == "stuck" && stuck {
				stuck = false
				<-ctx.Done()
				return ctx.Err()
			}
			if in.Text != cmd.Run || tier != api.TierLow || at != 7 {
				t.Errorf("recorded %+v, %s, %d", in, tier, at)
			}
			recorded = append(recorded, cmd.Run)
			return nil
		}, func(api.Run, int64) bool { return false }, apptest.Log(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		begin := func(agent, run string) func() {
			over, err := b.Begun(ctx, api.Run{Run: run, Agent: agent}, engine.Input{Text: run}, api.TierLow, 7)
			if err != nil {
				t.Error(err)
			}
			return over
		}
		want := func(when string, runs ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(runs, recorded); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		pass := func(d time.Duration) { <-time.After(d) } // on the clock of the synctest bubble

		begin("ada", "long")
		pass(moment / 2)
		short := begin("ada", "short")
		begin("bob", "refused")
		want("before a moment is over")
		short()
		pass(moment/2 + time.Millisecond)
		want("after a moment", "long")
		pass(moment)
		want("a turn that was stored, and a store that was away, leave nothing", "long")

		mu.Lock()
		away = false
		mu.Unlock()
		begin("ada", "flushed")
		begin("bob", "kept")
		if err := b.Flush(ctx, "ada"); err != nil {
			t.Error(err)
		}
		want("flushed", "long", "flushed")
		pass(moment + time.Millisecond)
		want("a moment later", "long", "flushed", "kept")
		begin("ada", "later")()
		pass(2 * time.Hour)
		begin("ada", "last")
		pass(moment + time.Millisecond)
		want("after a long time", "long", "flushed", "kept", "last")
		begin("bob", "stuck")
		pass(moment + time.Millisecond)
		begin("bob", "left")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		begin("ada", "cut") // while the process drains
		b.Close(ctx)
		want("at the end of the process", "long", "flushed", "kept", "last", "stuck", "left", "cut")
	})
}

// TestBeginAtOnce tests that the begin of a message that may expire soon is recorded
// before the run continues, and that the run stops if it is over.
func TestBeginAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ stored, want error }{
		"recorded":           {nil, nil},
		"the run is over":    {api.Errorf(api.Conflict, "over"), api.Errorf(api.Conflict, "over")},
		"the store is away":  {api.Errorf(api.Unavailable, "away"), api.Errorf(api.Unavailable, "away")},
		"the agent is dead":  {api.Errorf(api.Denied, "dead"), nil},
		"the agent has gone": {api.Errorf(api.NotFound, "gone"), nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var recorded []string
			b := NewBegins(func(_ context.Context, cmd api.Run, _ engine.Input, _ api.Tier, _ int64) error {
				recorded = append(recorded, cmd.Run)
				return c.stored
			}, func(cmd api.Run, at int64) bool { return cmd.Run == "late" && at == 7 }, apptest.Log(t))
			done, err := b.Begun(t.Context(), api.Run{Run: "late"}, engine.Input{}, api.TierLow, 7)
			if api.CodeOf(err) != api.CodeOf(c.want) || (done == nil) != (err != nil) {
				t.Errorf("%s: got %v, want %v", name, err, c.want)
			}
			if err == nil {
				done()
			}
			if err := b.Flush(t.Context(), ""); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"late"}, recorded); diff != "" {
				t.Errorf("%s: recorded (-want +got):\n%s", name, diff)
			}
		})
	}
}
