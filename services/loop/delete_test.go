package loop_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// TestDeleteBeforeTheBegin tests that the deletion of an agent cancels a run of which only
// the queue has a record, also if the agent is applied again before the run continues, and
// that a forgotten agent does not remember the run.
func TestDeleteBeforeTheBegin(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 2)
	ended := apptest.Watch[api.LoopEnd](t, b)
	asked, deleted := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	p.set(func() {
		p.funds = func(ctx context.Context) { // the run waits for its balance, then records its begin
			if !first.CompareAndSwap(false, true) {
				return
			}
			close(asked)
			select {
			case <-deleted:
			case <-ctx.Done():
			}
		}
	})
	run := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "long thought"})
	<-asked
	ask[api.Deleted](t, b, api.DeleteAgent{Agent: "lucky", Force: true, Forget: true, Reason: "enough"})
	ask[api.Agent](t, b, api.ApplyAgent{Source: source})
	close(deleted)
	end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == run.Run })
	if end.Success || end.Reason != api.ReasonCancelled {
		t.Errorf("the run ended %+v, want it cancelled", end)
	}
	next := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "hello"})
	if end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == next.Run }); !end.Success {
		t.Errorf("the next run ended %+v, want success", end)
	}
	// The turns of a session become memories in order.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	for len(got) == 0 && ctx.Err() == nil {
		for _, m := range ask[api.Memories](t, b, api.ListMemory{Agent: "lucky", Tier: api.MemoryEpisodic}).Memories {
			got = append(got, m.ID)
		}
	}
	if want := []string{next.Run + ".1"}; !slices.Equal(got, want) {
		t.Errorf("the agent remembers the turns %q, want %q", got, want)
	}
}
