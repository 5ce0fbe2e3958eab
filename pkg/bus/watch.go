package bus

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Watch calls handle with the entries that match pattern ("wake.*.*"), first the existing
// ones, then every change, until ctx ends or handle returns an error. ready, which may be
// nil, is called when the existing entries have been handled. An outage of NATS delays
// the changes; after it, the existing entries are passed to handle again.
func (k *Bucket[T]) Watch(ctx context.Context, pattern string, ready func(), handle func(Entry[T]) error) error {
	for try := 0; ; try++ {
		shown := func() {
			if ready != nil {
				ready()
			}
			ready, try = nil, 0
		}
		err := k.watch(ctx, pattern, shown, handle)
		switch {
		case ctx.Err() != nil:
			return cmp.Or(err, ctx.Err())
		case err == nil:
			continue
		case !temporary(err):
			return err
		}
		if k.bus.Connected() { // otherwise the connection has logged the outage
			k.bus.log.Warn("watch failed, retrying", "pattern", pattern, "err", err)
		}
		if err := wait.For(ctx, backoff(try, 50*time.Millisecond, time.Second)); err != nil {
			return err
		}
	}
}

// watch is one watch on one connection. It returns nil when the connection breaks or is
// replaced, so that the caller begins anew.
func (k *Bucket[T]) watch(ctx context.Context, pattern string, shown func(), handle func(Entry[T]) error) error {
	cl := k.bus.use()
	defer cl.release()
	// The library would continue after the last sequence that it has received. A server
	// that was killed may have restored keys before it, or use it again for other keys.
	broken := cl.untilBroken()
	once, cancel := context.WithTimeout(ctx, tryTimeout)
	kv, err := cl.js.KeyValue(once, api.Coordination)
	cancel()
	if err != nil {
		return fmt.Errorf("bucket %s: %w", api.Coordination, err)
	}
	// Only the start of the watch has a timeout.
	life, end := context.WithCancel(ctx)
	defer end()
	late := time.AfterFunc(tryTimeout, end)
	w, err := kv.Watch(life, pattern)
	if !late.Stop() && ctx.Err() == nil {
		err = context.DeadlineExceeded // of the start
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", pattern, err)
	}
	defer func() { _ = w.Stop() }() // an error means that ctx has ended or the connection is closed
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cl.replaced.Done():
			return nil
		case <-broken.Done():
			return nil
		case e, open := <-w.Updates():
			switch {
			case !open:
				return cmp.Or(ctx.Err(), error(api.Errorf(api.Unavailable, "the watch of %s ended", pattern)))
			case e == nil:
				shown()
				continue
			}
			v, err := entry[T](e)
			if err != nil {
				k.bus.log.Error("entry cannot be decoded, skipped", "key", e.Key(), "err", err)
				continue
			}
			if err := handle(v); err != nil {
				return err
			}
		}
	}
}

func entry[T any](e jetstream.KeyValueEntry) (Entry[T], error) {
	out := Entry[T]{Key: e.Key(), Revision: e.Revision(), Deleted: e.Operation() != jetstream.KeyValuePut}
	if out.Deleted {
		return out, nil
	}
	return out, api.Decode(e.Value(), &out.Value)
}
