package loop

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

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

// TestRested tests that a wake that no input requested waits until the agent has slept for
// a second, also if the clock of the replica is behind by less, and not for the time by
// which a clock was set back.
func TestRested(t *testing.T) {
	t.Parallel()
	h := onStore(t, apptest.Bus(t))
	h.apply(t, "ada", true) // sleeps since 1
	for _, tt := range []struct {
		slept time.Duration
		by    api.PrincipalKind
		want  time.Duration
	}{
		{0, api.HeartbeatKind, 1001 * time.Millisecond},
		{400 * time.Millisecond, api.Self, 601 * time.Millisecond},
		{400 * time.Millisecond, api.Creator, 0},
		{time.Second, api.HeartbeatKind, 0},
		{-200 * time.Millisecond, api.HeartbeatKind, 1201 * time.Millisecond},
		{-time.Minute, api.HeartbeatKind, 0},
	} {
		h.now = func() time.Time { return time.UnixMicro(1).Add(tt.slept) }
		err := h.rested(t.Context(), api.Run{Run: "r", Agent: "ada", Session: "ada-main", Kind: api.RunWake, By: api.Principal{Kind: tt.by}})
		if got := api.Wire(err).Retry(); (err != nil) != (tt.want > 0) || err != nil && got != tt.want {
			t.Errorf("after %s, woken by %s: got %v, again in %s, want %s", tt.slept, tt.by, err, got, tt.want)
		}
	}
}
