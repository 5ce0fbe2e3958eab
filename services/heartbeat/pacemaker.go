package heartbeat

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/lease"
	"github.com/anima-run/anima/services/heartbeat/internal/beat"
)

// pacemaker runs the clock on one replica, and lets the others kick it.
type pacemaker struct {
	clock    *beat.Clock
	leases   *bus.Bucket[api.Lease]
	owner    string        // of the lease, unique to this process
	ttl      time.Duration // of the lease
	instance string
	now      func() time.Time
	log      *slog.Logger

	leading atomic.Bool
	kicks   atomic.Int64
}

// kickKey returns the key of a kick. The key expires after a second (bus.MinTTL); the
// replica with the clock reacts to its creation.
func kickKey(of string) string { return api.LeaseKey("heartbeat-kick." + of) }

func (p *pacemaker) run(ctx context.Context) error {
	l := lease.Lease[api.Lease]{
		Bucket: p.leases, Key: api.LeaseKey("heartbeat-clock"), TTL: p.ttl, Now: p.now, Log: p.log,
		Value: func(expires int64) api.Lease { return api.Lease{Owner: p.owner, Expires: expires} },
	}
	l.Run(ctx, func(ctx context.Context) error {
		p.leading.Store(true)
		defer p.leading.Store(false)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.clock.Run(ctx)
		}()
		err := p.leases.Watch(ctx, kickKey("*"), p.clock.Kick, func(e bus.Entry[api.Lease]) error {
			if e.Deleted {
				return nil
			}
			p.clock.Kick()
			if !e.Value.Free(p.owner, p.now().UnixMicro()) {
				return nil
			}
			// A killed server may have restored an expired key without its TTL.
			if err := p.leases.Delete(ctx, e.Key, e.Revision); api.CodeOf(err) != api.Conflict {
				return err
			}
			return nil
		})
		stop()
		<-ended
		return err
	})
	return nil
}

// kick notifies the clock, on whichever replica it runs, of something new that is due at
// a time. It must be called after the commit. A lost kick causes a delay of at most
// [beat.Safety].
func (p *pacemaker) kick(ctx context.Context, at time.Time) {
	if p.leading.Load() {
		p.clock.Kick()
		return
	}
	if at.After(p.now().Add(beat.Safety)) {
		return // the clock reads the store before that time anyway
	}
	key := kickKey(p.instance + "-" + strconv.FormatInt(p.kicks.Add(1), 10))
	kick := api.Lease{Owner: p.owner, Expires: p.now().Add(bus.MinTTL).UnixMicro()}
	if _, err := p.leases.Create(ctx, key, kick, bus.MinTTL); err != nil {
		p.log.WarnContext(ctx, "clock not kicked, due entries may fire late", "err", err)
	}
}
