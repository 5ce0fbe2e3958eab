package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/lease"
)

// goalLeases are the leases of [goal.Orchestrator] in the coordination bucket.
type goalLeases struct {
	bucket *bus.Bucket[api.Lease]
	owner  string // unique to this process
	ttl    time.Duration
	now    func() time.Time
	log    *slog.Logger
	mine   *sync.Map // keys that this process works under: a lease does not exclude its own owner
}

// With calls f under the lease of key. Errors: Conflict while another caller holds it.
func (g goalLeases) With(ctx context.Context, key string, f func(context.Context) error) error {
	if _, here := g.mine.LoadOrStore(key, true); here {
		return g.held(key)
	}
	defer g.mine.Delete(key)
	l := &lease.Lease[api.Lease]{
		Bucket: g.bucket, Key: key, TTL: g.ttl, Now: g.now, Log: g.log,
		Value: func(expires int64) api.Lease { return api.Lease{Owner: g.owner, Expires: expires} },
	}
	from, err := failpoint.Value(ctx, failpoint.LoopGoalLease, l.Take)
	if api.CodeOf(err) == api.Conflict {
		return g.held(key)
	}
	if err != nil {
		return err
	}
	return l.Hold(ctx, from, f)
}

func (g goalLeases) held(key string) error {
	return &api.Error{Code: api.Conflict, Message: "another handler holds the lease " + key, RetryAfter: max(100, g.ttl.Milliseconds()/4)}
}
