package loop_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// TestDeleteBeforeTheBegin tests that the deletion of an agent cancels a run of which only
// the queue has a record, also if the agent is applied again before the run continues.
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
	ask[api.Deleted](t, b, api.DeleteAgent{Agent: "lucky", Force: true, Reason: "enough"})
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
}
