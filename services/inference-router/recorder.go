package router

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// recorder stores answers in groups, so that the calls that end together share a commit.
type recorder struct{ gatherer[*recording] }

// recording is one call of [recorder.record] in progress.
type recording struct {
	ctx    context.Context //nolint:containedctx // context of the call, kept while its answer waits
	call   sqlstore.StoredCall
	stored sqlstore.StoredCall
	err    error
}

// record stores an answer as [sqlstore.Store.Record] does.
func (r *recorder) record(ctx context.Context, call sqlstore.StoredCall) (sqlstore.StoredCall, error) {
	x := &recording{ctx: ctx, call: call, stored: call, err: errNotStored}
	r.do(x)
	return x.stored, x.err
}

// errNotStored is the error of an answer that was in a group whose store panicked.
var errNotStored = &api.Error{Code: api.Unavailable, Message: "the answer was not stored", Next: "retry", RetryAfter: 1000}

// storeRecords stores a group of answers in one transaction. After an error that a retry
// would not fix, the cause may be a single answer, so each is stored separately.
func (h *handlers) storeRecords(group []*recording) {
	if len(group) > 1 {
		calls := make([]sqlstore.StoredCall, len(group))
		for i, x := range group {
			calls[i] = x.call
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), finishTimeout)
		defer cancel()
		stored, err := h.store.RecordMany(ctx, calls)
		if err == nil || api.CodeOf(err) == api.Unavailable {
			for i, x := range group {
				if x.err = err; err == nil {
					x.stored = stored[i]
				}
			}
			return
		}
	}
	for _, x := range group {
		x.stored, x.err = h.store.Record(x.ctx, x.call)
	}
}

const (
	groupFrom  = 4                    // calls in progress from which groups wait for further members
	groupPause = time.Millisecond / 2 // how long they wait
)

// groupPause returns how long a group of answers, holds or settlements waits for further
// members. A process with few calls does not wait. With many calls the processor is busy,
// and a commit for several of them costs little more than for one.
func (h *handlers) groupPause() time.Duration {
	if active, _ := h.gate.Load(); active < groupFrom {
		return 0
	}
	return groupPause
}
