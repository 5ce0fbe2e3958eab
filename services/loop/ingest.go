package loop

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// ingestion makes memories of the turns that loop itself persists, after them and
// beside them: no turn waits for it.
//
// Its events say which session has something new and not what. What is taken in is
// the session's turns in their order, from the first that is not in memory yet, in
// the transaction that says so. So an event may come twice, late, out of order, to
// two replicas at once, or never: the session's next one catches up.
type ingestion struct {
	store sqlstore.Memory
	now   func() time.Time
}

// persisted handles the last turn of a run that went well. Those before it are taken in
// with it: until then they are in the run's own prompts, and one transaction costs
// less than many.
func (i ingestion) persisted(ctx context.Context, m api.LoopPersist) error {
	if !m.Last {
		return nil
	}
	return i.session(ctx, m.Session)
}

// failed handles the last turn of any other run.
func (i ingestion) failed(ctx context.Context, m api.LoopError) error {
	return i.session(ctx, m.Session)
}

func (i ingestion) session(ctx context.Context, session string) error {
	_, err := i.store.Ingest(ctx, session, i.now().UnixMicro())
	return err
}
