package heartbeat

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/heartbeat/internal/beat"
	"github.com/anima-run/anima/services/heartbeat/internal/lease"
)

// pacemaker runs the clock on one replica, and lets the others wake it up.
type pacemaker struct {
	clock    *beat.Clock
	lease    lease.Lease
	leases   *bus.Bucket[api.Lease]
	instance string
	now      func() time.Time
	log      *slog.Logger

	leading atomic.Bool
	kicks   atomic.Int64
}

// kickKey is the key of a kick: it lives for a second, and what counts is that
// the replica with the clock sees it appear.
func kickKey(of string) string { return api.LeaseKey("heartbeat-kick." + of) }

func (p *pacemaker) run(ctx context.Context) error {
	p.lease.Run(ctx, func(ctx context.Context) error {
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
			if !e.Value.Free(p.lease.Owner, p.now().UnixMicro()) {
				return nil
			}
			// A server that was killed brought the key back, and without its TTL.
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

// kick tells the clock, wherever it runs, that something is due at a time which
// it does not know of. Whatever is written must be committed before. A kick that
// gets lost costs at most [beat.Safety].
func (p *pacemaker) kick(ctx context.Context, at time.Time) {
	if p.leading.Load() {
		p.clock.Kick()
		return
	}
	if at.After(p.now().Add(beat.Safety)) {
		return // it looks before that anyway
	}
	key := kickKey(p.instance + "-" + strconv.FormatInt(p.kicks.Add(1), 10))
	kick := api.Lease{Owner: p.lease.Owner, Expires: p.now().Add(bus.MinTTL).UnixMicro()}
	if _, err := p.leases.Create(ctx, key, kick, bus.MinTTL); err != nil {
		p.log.WarnContext(ctx, "the clock may be late", "err", err)
	}
}
