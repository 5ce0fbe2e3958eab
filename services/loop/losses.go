package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/wait"
)

// lostWhy is the error of a run whose journal or command was lost.
const lostWhy = "its journal or its place in the queue was lost, and the operator accepted the loss: what it did last is not known"

// settleLosses announces the agents again and ends the runs that had begun when a store was
// lost and the operator accepted the loss. It is idempotent and repeated after a crash. Runs
// that have begun since then continue.
func (h *handlers) settleLosses(ctx context.Context, db *sqldb.DB) error {
	for {
		err := h.settleOnce(ctx, db)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the service is stopping
		}
		h.log.WarnContext(ctx, "accepted loss not processed, retrying", "err", err)
		if wait.For(ctx, time.Second) != nil {
			return nil
		}
	}
}

func (h *handlers) settleOnce(ctx context.Context, db *sqldb.DB) error {
	losses, err := sqldb.Losses(ctx, db)
	if err != nil {
		return err
	}
	var until int64
	for _, l := range losses {
		if l.Settled == 0 {
			until = max(until, l.At)
		}
	}
	if until == 0 {
		return nil
	}
	renumbered, err := h.store.Renumber(ctx, until)
	if err != nil {
		return err
	}
	if renumbered > 0 {
		h.relay.Wake()
		h.log.WarnContext(ctx, "agents announced again because of an accepted loss", "count", renumbered)
	}
	begun, err := h.store.Unfinished(ctx, until)
	if err != nil {
		return err
	}
	for _, cmd := range begun {
		if err := h.endLost(ctx, cmd, until); err != nil {
			return err
		}
	}
	if len(begun) > 0 {
		h.log.WarnContext(ctx, "runs ended because of an accepted loss", "count", len(begun))
	}
	return sqldb.SettleLosses(ctx, db, until, h.now().UnixMicro())
}

// endLost cancels a run: without its journal it is unknown which of its calls were
// executed, so it must not continue. If its command is not in the queue, endLost
// publishes it again; a replica then ends the run as any cancelled run, with its
// outcome and its events.
func (h *handlers) endLost(ctx context.Context, cmd api.Run, until int64) error {
	if err := h.cancel(ctx, cmd.Run, cmd.Session, lostWhy); err != nil {
		return err
	}
	waiting, err := h.queue.All(ctx, cmd.Session)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(waiting, func(w api.Run) bool { return w.Run == cmd.Run }) {
		return nil
	}
	return h.bus.Publish(ctx, fmt.Sprintf("lost/%s/%d", cmd.Run, until), cmd)
}
