package loop

import (
	"context"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// ingestion makes memories of the turns that loop itself persists, after them and
// beside them: no turn waits for it.
//
// The end of a run says which session has something new and not what. What is taken in is
// the session's turns in their order, from the first that is not in memory yet, in
// the transaction that says so. So an event may come twice, late, out of order, to
// two replicas at once, or never: the session's next one catches up.
type ingestion struct {
	store sqlstore.Memory
	now   func() time.Time
	log   *slog.Logger
}

// ended takes in what a run has left. Until then its turns are in its own prompts, and
// one transaction costs less than many. What cannot be taken in must not keep the
// event: others live from it.
func (i ingestion) ended(ctx context.Context, m api.LoopEnd) error {
	_, err := failpoint.Value(ctx, failpoint.LoopIngest, func(ctx context.Context) (int, error) {
		return i.store.Ingest(ctx, m.Session, i.now().UnixMicro())
	})
	if err != nil && api.CodeOf(err) != api.Unavailable && ctx.Err() == nil {
		i.log.ErrorContext(ctx, "turns cannot become memories", "session", m.Session, "run", m.Run, "err", err)
		return nil
	}
	return err
}
