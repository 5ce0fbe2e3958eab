package loop

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// TestCancelAfterTheEnd tests that the answer to a cancel does not report a run as
// cancelled that ended before the cancel was stored.
func TestCancelAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{})
	ctx := t.Context()
	for run, ends := range map[string]bool{"ends": true, "waits": false} {
		cmd := api.Run{Run: run, Agent: "ada", Session: "ada-" + run, Kind: api.RunMessage, AcceptedAt: time.Now().UnixMicro()}
		if err := h.store.NewSession(ctx, cmd.Session, "ada", cmd.AcceptedAt); err != nil {
			t.Fatal(err)
		}
		if err := h.bus.Publish(ctx, "run/"+run, cmd); err != nil {
			t.Fatal(err)
		}
		h.now = func() time.Time { // called between the read of the run and the cancel
			if ends {
				if _, err := h.store.Drop(ctx, engine.End{Run: cmd, Outcome: api.OutcomeConsumed, At: cmd.AcceptedAt, Success: true}); err != nil {
					t.Error(err)
				}
			}
			return time.Now()
		}
		st, err := h.cancelRun(ctx, api.CancelRun{Run: run, Session: cmd.Session})
		if err != nil || st.Cancelled == ends || (st.Status == api.RunEnded) != ends || st.Success != ends {
			t.Errorf("%s: got %+v, %v, want a run that ended: %t", run, st, err, ends)
		}
	}
}
