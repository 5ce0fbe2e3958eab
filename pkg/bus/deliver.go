package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// heartbeat is the interval at which the server confirms that a fetch is pending. After
// two missed heartbeats the client repeats the fetch.
const heartbeat = 2 * time.Second

// delivery is the state of one consuming route while it is served. Messages of one lane
// are handled one after the other: with InOrder a lane is a subject; with one worker
// there is one lane; otherwise messages belong to no lane.
type delivery struct {
	bus      *Bus
	subject  api.Subject
	how      ConsumerOptions
	run      func(jetstream.Msg)
	client   *client
	iter     jetstream.MessagesContext
	buffered []jetstream.Msg // received while the connection was replaced
	earlier  uint64          // last sequence that an earlier process may have received; set by renew

	mu      sync.Mutex
	pending map[jetstream.Msg]*pending // taken and not settled; their ack wait is extended
	lanes   map[string][]jetstream.Msg // messages queued behind the running one, by lane
	stalled map[string]bool            // lanes whose handler makes no progress
}

// open binds to the durable and creates it if necessary.
func (d *delivery) open(ctx context.Context) error {
	cl := d.bus.use()
	if err := d.bind(ctx, cl); err != nil {
		cl.release()
		return err
	}
	if d.client != nil {
		d.client.release()
	}
	d.client = cl
	return nil
}

func (d *delivery) bind(ctx context.Context, cl *client) error {
	cfg := jetstream.ConsumerConfig{
		Durable: d.durable(), FilterSubject: d.subject.All(),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: d.how.AckWait,
		// With a limit, the server would stop delivering without a notice, and the
		// message would stay in its queue. settle counts deliveries instead.
		MaxDeliver:    -1,
		MaxAckPending: max(1000, d.how.Workers),
	}
	if d.how.Workers == 1 && !d.how.InOrder {
		cfg.MaxAckPending = 64
	}
	if err := d.bus.permit("$JS.ACK." + d.subject.Stream() + "." + cfg.Durable + ".1"); err != nil {
		return err
	}
	consumer, err := cl.consumer(ctx, d.subject.Stream(), cfg)
	if err != nil {
		return err
	}
	// One at a time: the ack wait of messages in the iterator's buffer is not extended.
	iter, err := consumer.Messages(jetstream.PullMaxMessages(1), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	d.iter = iter
	return nil
}

// renew makes the stream redeliver at once, instead of after their ack wait, the messages
// that an earlier process of the installation held when it was killed. It is called
// before the first fetch, when no process handles messages of the installation. It skips
// routes with a MaxDeliver, because it restarts the count of deliveries. Events that were
// acknowledged after an older unacknowledged one are redelivered too.
func (d *delivery) renew(ctx context.Context) error {
	if d.bus.opts.Installation == "" || d.how.MaxDeliver >= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	stream, durable := d.subject.Stream(), d.durable()
	c, err := d.client.js.Consumer(ctx, stream, durable)
	if err != nil {
		return fmt.Errorf("renew %s: %w", durable, err)
	}
	info := c.CachedInfo()
	if info.NumAckPending == 0 {
		return nil
	}
	if _, err := d.client.js.ResetConsumer(ctx, stream, durable); err != nil {
		return fmt.Errorf("renew %s: %w", durable, err)
	}
	d.earlier = info.Delivered.Stream
	return nil
}

func (d *delivery) durable() string { return d.bus.opts.Service + "-" + d.subject.Name }

// take passes messages to workers until taking ends, and then returns those that were not
// started to the stream. It acquires a worker before it fetches a message, so that
// messages that this replica cannot start are left to the others. Messages queued behind
// a running one of their lane occupy no worker.
func (d *delivery) take(taking context.Context, s *server) {
	slots, room := make(chan struct{}, d.how.Workers), make(chan struct{}, 16*d.how.Workers)
	if d.how.Workers == 1 && !d.how.InOrder {
		// One lane: one slot for its worker, one for the fetch of the next message.
		slots = make(chan struct{}, 2)
	}
	var workers, keeper sync.WaitGroup
	alive, stopAlive := context.WithCancel(s.work)
	keeper.Go(func() { d.keepAlive(alive) })
	defer keeper.Wait()
	defer stopAlive()
	defer workers.Wait()
	defer func() {
		d.nakAll(s.work)
		d.client.release()
	}()
	for acquire(taking, slots) && acquire(taking, room) {
		msg, ok := d.next(taking, s)
		if !ok {
			return
		}
		d.mu.Lock()
		d.pending[msg] = &pending{client: d.client}
		d.client.hold()
		lane := ""
		if d.how.InOrder {
			lane = msg.Subject()
		}
		waiting, busy := d.lanes[lane]
		stalled := d.stalled[lane]
		parallel := d.how.Workers > 1 && !d.how.InOrder
		if !parallel && !stalled {
			d.lanes[lane] = append(waiting, msg)
		}
		d.mu.Unlock()
		switch {
		case stalled:
			// Redelivered after 1 s to any replica, possibly this one.
			d.nak(msg, func() error { return msg.NakWithDelay(time.Second) })
			<-room
			<-slots
		case parallel:
			workers.Go(func() {
				growStack()
				d.run(msg)
				<-room
				<-slots
			})
		case busy:
			<-slots
		default:
			workers.Go(func() {
				growStack()
				d.runLane(taking, lane, room)
				<-slots
			})
		}
	}
}

func acquire(ctx context.Context, c chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case c <- struct{}{}:
		return true
	}
}

// next waits for a message; false means that taking has ended. It replaces an iterator
// that failed because its consumer was deleted or the connection was lost.
func (d *delivery) next(taking context.Context, s *server) (jetstream.Msg, bool) {
	for try := 0; ; try++ {
		if len(d.buffered) > 0 {
			msg := d.buffered[0]
			d.buffered = d.buffered[1:]
			return msg, true
		}
		msg, err := d.fetch(taking)
		if err == nil {
			return msg, true
		}
		if taking.Err() != nil {
			return nil, false
		}
		if d.client.replaced.Err() != nil {
			d.empty(taking, func(m jetstream.Msg) { d.buffered = append(d.buffered, m) })
			if len(d.buffered) > 0 { // their client must stay open until they are settled
				continue
			}
		} else {
			if errors.Is(err, jetstream.ErrConnectionClosed) {
				s.fail(err)
				return nil, false
			}
			d.bus.log.Warn("fetch failed, retrying", "subject", d.subject.All(), "err", err)
		}
		d.iter.Stop()
		if d.client.replaced.Err() == nil && wait.For(taking, backoff(try, 50*time.Millisecond, time.Second)) != nil {
			return nil, false
		}
		if err := d.open(taking); err != nil {
			d.bus.log.Warn("binding to the durable failed, retrying", "subject", d.subject.All(), "err", err)
		}
	}
}

// fetch waits for a message, first with timeouts of 1 ms to 4 s, then without one. Next of
// the iterator requests a message from the server unless the previous request is still
// being sent. If a message arrives faster than that, Next waits without a request until a
// missed heartbeat, half a minute later. Calling Next again sends the request.
func (d *delivery) fetch(taking context.Context) (jetstream.Msg, error) {
	taking, stop := d.client.untilReplaced(taking)
	defer stop()
	for wait := time.Millisecond; wait < 10*time.Second; wait *= 4 {
		ctx, cancel := context.WithTimeout(taking, wait)
		msg, err := d.iter.Next(jetstream.NextContext(ctx))
		cancel()
		if taking.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return msg, err
		}
	}
	return d.iter.Next(jetstream.NextContext(taking))
}

// runLane handles the messages of a lane one after the other.
func (d *delivery) runLane(taking context.Context, lane string, room chan struct{}) {
	for {
		d.mu.Lock()
		waiting := d.lanes[lane]
		if len(waiting) == 0 {
			delete(d.lanes, lane)
			d.mu.Unlock()
			return
		}
		msg := waiting[0]
		d.lanes[lane] = waiting[1:]
		d.mu.Unlock()
		if taking.Err() != nil {
			d.nak(msg, msg.Nak)
			continue
		}
		d.run(msg)
		d.mu.Lock()
		delete(d.stalled, lane)
		d.mu.Unlock()
		<-room
	}
}

// nak returns a message that was not started to the stream, which redelivers it at
// once, or after a delay, instead of after AckWait.
func (d *delivery) nak(msg jetstream.Msg, nak func() error) {
	defer d.untrack(msg)()
	if err := nak(); err != nil {
		d.bus.log.Warn("message not returned, it is redelivered after the ack wait", "subject", d.subject.Template(), "err", err)
	}
}

// nakAll returns the messages of the lanes and of the iterator to the stream. It
// continues until the server has dropped the last fetch, even after the drain timeout:
// the returned messages would otherwise be delivered to that fetch.
func (d *delivery) nakAll(ctx context.Context) {
	var waiting []jetstream.Msg
	d.mu.Lock()
	for lane, msgs := range d.lanes {
		waiting = append(waiting, msgs...)
		d.lanes[lane] = nil
	}
	d.mu.Unlock()
	for _, msg := range waiting {
		d.nak(msg, msg.Nak)
	}
	for _, msg := range d.buffered {
		d.nak(msg, msg.Nak)
	}
	d.empty(ctx, func(msg jetstream.Msg) { d.nak(msg, msg.Nak) })
}

// empty drains the iterator and calls give with each message that it still receives.
func (d *delivery) empty(ctx context.Context, give func(jetstream.Msg)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	d.iter.Drain()
	for {
		msg, err := d.iter.Next(jetstream.NextContext(ctx))
		if err != nil {
			return
		}
		give(msg)
	}
}
