package heartbeat

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/lease"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// scheduler runs the clock on one replica, and lets the others kick it.
type scheduler struct {
	clock    *schedule.Clock
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

func (s *scheduler) run(ctx context.Context) error {
	l := lease.Lease[api.Lease]{
		Bucket: s.leases, Key: api.LeaseKey("heartbeat-clock"), TTL: s.ttl, Now: s.now, Log: s.log,
		Value: func(expires int64) api.Lease { return api.Lease{Owner: s.owner, Expires: expires} },
	}
	l.Run(ctx, func(ctx context.Context) error {
		s.leading.Store(true)
		defer s.leading.Store(false)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var clock sync.WaitGroup
		clock.Go(func() { s.clock.Run(ctx) })
		err := s.leases.Watch(ctx, kickKey("*"), s.clock.Kick, func(e bus.Entry[api.Lease]) error {
			if e.Deleted {
				return nil
			}
			s.clock.Kick()
			if !e.Value.Free(s.owner, s.now().UnixMicro()) {
				return nil
			}
			// A killed server may have restored an expired key without its TTL.
			if err := s.leases.Delete(ctx, e.Key, e.Revision); api.CodeOf(err) != api.Conflict {
				return err
			}
			return nil
		})
		stop()
		clock.Wait()
		return err
	})
	return nil
}

// kick notifies the clock, on whichever replica it runs, of something new that is due at
// a time. It must be called after the commit. A lost kick causes a delay of at most
// [schedule.Safety].
func (s *scheduler) kick(ctx context.Context, at time.Time) {
	if s.leading.Load() {
		s.clock.Kick()
		return
	}
	if at.After(s.now().Add(schedule.Safety)) {
		return // the clock reads the store before that time anyway
	}
	key := kickKey(s.instance + "-" + strconv.FormatInt(s.kicks.Add(1), 10))
	kick := api.Lease{Owner: s.owner, Expires: s.now().Add(bus.MinTTL).UnixMicro()}
	if _, err := s.leases.Create(ctx, key, kick, bus.MinTTL); err != nil {
		s.log.WarnContext(ctx, "clock not kicked, due entries may fire late", "err", err)
	}
}
