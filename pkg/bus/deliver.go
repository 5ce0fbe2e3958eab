package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// heartbeat is how often the server says that a fetch still waits; two that are
// missed make the fetch anew.
const heartbeat = 2 * time.Second

// delivery is one consuming route at work.
type delivery struct {
	bus     *Bus
	subject api.Subject
	how     Consuming
	run     func(jetstream.Msg)
	line    *line
	iter    jetstream.MessagesContext
	spare   []jetstream.Msg // came while the connection changed
	earlier uint64          // sequence up to which an earlier process may have had messages; set by renew

	mu    sync.Mutex
	held  map[jetstream.Msg]*hand    // taken and not settled: told to the stream to be alive
	lanes map[string][]jetstream.Msg // by lane: what waits behind the one that runs
	hung  map[string]bool            // lanes whose handler hangs
}

// open binds to the durable, which it makes if need be.
func (d *delivery) open(ctx context.Context) error {
	ln := d.bus.use()
	if err := d.bind(ctx, ln); err != nil {
		ln.release()
		return err
	}
	if d.line != nil {
		d.line.release()
	}
	d.line = ln
	return nil
}

func (d *delivery) bind(ctx context.Context, ln *line) error {
	cfg := jetstream.ConsumerConfig{
		Durable: d.durable(), FilterSubject: d.subject.All(),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: d.how.AckWait,
		// The server would stop delivering in silence and the message would stay
		// in its queue for ever; settle counts instead.
		MaxDeliver:    -1,
		MaxAckPending: max(1000, d.how.Workers),
	}
	if d.how.Workers == 1 && !d.how.InOrder {
		cfg.MaxAckPending = 64
	}
	if d.how.FromNow {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	if err := d.bus.permit("$JS.ACK." + d.subject.Stream() + "." + cfg.Durable + ".1"); err != nil {
		return err
	}
	consumer, err := ln.consumer(ctx, d.subject.Stream(), cfg)
	if err != nil {
		return err
	}
	// One at a time: what lies in the iterator's own buffer is not kept alive.
	iter, err := consumer.Messages(jetstream.PullMaxMessages(1), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	d.iter = iter
	return nil
}

// renew has the stream deliver at once what an earlier process of the installation had
// in hand when it was killed, and not when its ack wait is over. It is called before
// the first fetch: no other process handles messages of the installation. Only what is
// never given up is renewed, because the count of deliveries begins anew. Events that
// were acknowledged after an older one that was not come again, too.
func (d *delivery) renew(ctx context.Context) error {
	if d.bus.opts.Installation == "" || d.how.MaxDeliver >= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	stream, durable := d.subject.Stream(), d.durable()
	c, err := d.line.js.Consumer(ctx, stream, durable)
	if err != nil {
		return fmt.Errorf("renew %s: %w", durable, err)
	}
	info := c.CachedInfo()
	if info.NumAckPending == 0 {
		return nil
	}
	if _, err := d.line.js.ResetConsumer(ctx, stream, durable); err != nil {
		return fmt.Errorf("renew %s: %w", durable, err)
	}
	d.earlier = info.Delivered.Stream
	return nil
}

func (d *delivery) durable() string { return d.bus.opts.Service + "-" + d.subject.Name }

// take hands messages to workers until taking ends. A worker is free
// before its message is fetched, so that what this replica cannot start is left
// to the others. Messages behind a busy one of their lane hold no worker.
func (d *delivery) take(taking context.Context, s *server) {
	slots, room := make(chan struct{}, d.how.Workers), make(chan struct{}, 16*d.how.Workers)
	if d.how.Workers == 1 && !d.how.InOrder {
		// One lane: its worker and the one that waits for the next message.
		slots = make(chan struct{}, 2)
	}
	var workers, keeper sync.WaitGroup
	alive, stopAlive := context.WithCancel(s.work)
	keeper.Go(func() { d.keepAlive(alive) })
	defer keeper.Wait()
	defer stopAlive()
	defer workers.Wait()
	defer func() {
		d.handBackAll(s.work)
		d.line.release()
	}()
	for acquire(taking, slots) && acquire(taking, room) {
		msg, ok := d.next(taking, s)
		if !ok {
			return
		}
		d.mu.Lock()
		d.held[msg] = &hand{line: d.line}
		d.line.hold()
		lane := ""
		if d.how.InOrder {
			lane = msg.Subject()
		}
		waiting, busy := d.lanes[lane]
		hung := d.hung[lane]
		parallel := d.how.Workers > 1 && !d.how.InOrder
		if !parallel && !hung {
			d.lanes[lane] = append(waiting, msg)
		}
		d.mu.Unlock()
		switch {
		case hung:
			d.leave(msg)
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

// next waits for a message; false means that taking has ended. An iterator
// that broke, because its consumer was deleted or the server lost it, is made
// anew.
func (d *delivery) next(taking context.Context, s *server) (jetstream.Msg, bool) {
	for try := 0; ; try++ {
		if len(d.spare) > 0 {
			msg := d.spare[0]
			d.spare = d.spare[1:]
			return msg, true
		}
		msg, err := d.look(taking)
		if err == nil {
			return msg, true
		}
		if taking.Err() != nil {
			return nil, false
		}
		if d.line.left.Err() != nil {
			d.empty(taking, func(m jetstream.Msg) { d.spare = append(d.spare, m) })
			if len(d.spare) > 0 { // what they are settled on must not be closed yet
				continue
			}
		} else {
			if errors.Is(err, jetstream.ErrConnectionClosed) {
				s.fail(err)
				return nil, false
			}
			d.bus.log.Warn("cannot fetch, trying again", "subject", d.subject.All(), "err", err)
		}
		d.iter.Stop()
		if d.line.left.Err() == nil && pause(taking, backoff(try, 50*time.Millisecond, time.Second)) != nil {
			return nil, false
		}
		if err := d.open(taking); err != nil {
			d.bus.log.Warn("cannot bind to the durable, trying again", "subject", d.subject.All(), "err", err)
		}
	}
}

// look waits for a message with short looks first. The iterator sends for the
// next message when it is asked, unless it is still busy sending for the last one;
// a message that comes faster than that leaves it waiting for what nobody was
// sent for, until half a minute later a heartbeat is missed. Asking again mends it.
func (d *delivery) look(taking context.Context) (jetstream.Msg, error) {
	taking, stop := d.line.staying(taking)
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
			d.handBack(msg)
			continue
		}
		d.run(msg)
		d.mu.Lock()
		delete(d.hung, lane)
		d.mu.Unlock()
		<-room
	}
}

// handBack gives a message that was not begun to the other replicas, now and
// not after AckWait.
func (d *delivery) handBack(msg jetstream.Msg) {
	defer d.forget(msg)()
	if err := msg.Nak(); err != nil {
		d.bus.log.Warn("cannot hand a message back, it comes after the ack wait", "subject", d.subject.Template(), "err", err)
	}
}

// handBackAll hands back what waits in the lanes and in the iterator. It looks
// until the server has forgotten our last fetch, also when the time to drain is
// over: that fetch would swallow what is handed back.
func (d *delivery) handBackAll(ctx context.Context) {
	var waiting []jetstream.Msg
	d.mu.Lock()
	for lane, msgs := range d.lanes {
		waiting = append(waiting, msgs...)
		d.lanes[lane] = nil
	}
	d.mu.Unlock()
	for _, msg := range waiting {
		d.handBack(msg)
	}
	for _, msg := range d.spare {
		d.handBack(msg)
	}
	d.empty(ctx, d.handBack)
}

// empty ends the iterator and gives what was on its way to it.
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

func (d *delivery) process(work context.Context, msg jetstream.Msg, err error, handle func(context.Context) error) {
	began, n := time.Now(), d.bus.names.of(d.subject)
	meta := metaOf(msg)
	if meta.Delivered == 1 && meta.Sequence <= d.earlier {
		meta.Delivered++
	}
	d.mu.Lock()
	h := d.held[msg]
	d.mu.Unlock()
	ctx, done := h.begin(context.WithValue(work, metaKey{}, meta))
	defer done()
	if !d.how.NoSpan {
		var span trace.Span
		ctx, span = d.bus.tracer.Start(ctx, n.process,
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(linkTo(meta.Sender)...),
			trace.WithAttributes(append(slices.Clip(n.consumer),
				attribute.Int("messaging.nats.delivery_count", meta.Delivered))...))
		defer span.End()
		defer func() { _ = failed(span, err) }()
	}
	if meta.Delivered > 1 {
		d.bus.tel.redeliver.Add(ctx, 1)
	}
	if err == nil && d.how.MaxDeliver > 0 && meta.Delivered > 2*d.how.MaxDeliver {
		// Nobody lived to settle it: it takes the process down, or time out of mind.
		err = &api.Error{Code: api.Invalid, Message: "delivered too often and never settled"}
	}
	if err == nil {
		err = guarded(func() error { return handle(ctx) })
	}
	d.bus.observe(ctx, n, began, err)
	defer d.forget(msg)()
	d.settle(ctx, msg, meta, err, work.Err() != nil)
}

// settle is the whole retry policy: nil is done; invalid and denied are
// hopeless and given up; everything else comes back later, after RetryAfter if
// the error names it, until MaxDeliver. What was cut off because this replica
// stops goes to another one at once and is never given up for that.
func (d *delivery) settle(ctx context.Context, msg jetstream.Msg, meta Meta, err error, cut bool) {
	var ack error
	code := api.CodeOf(err)
	last := d.how.MaxDeliver > 0 && meta.Delivered >= d.how.MaxDeliver
	switch {
	case err == nil:
		ack = failpoint.Do(ctx, failpoint.BusAck, func(context.Context) error { return msg.Ack() })
	case code == api.Invalid, code == api.Denied, last && !cut:
		d.bus.tel.givenUp.Add(ctx, 1)
		d.bus.log.ErrorContext(ctx, "message given up", "subject", d.subject.Template(), "msg_id", meta.ID,
			"sequence", meta.Sequence, "delivered", meta.Delivered, "err", err)
		ack = msg.TermWithReason(headerText(api.Wire(err).Message))
	case cut:
		ack = msg.Nak()
	default:
		wait := backoff(min(meta.Delivered-1, 10), 250*time.Millisecond, d.how.MaxPause)
		if e, ok := errors.AsType[*api.Error](err); ok && e.RetryAfter > 0 {
			wait = e.Retry()
		}
		level := d.bus.log.WarnContext
		if code == api.Conflict {
			level = d.bus.log.DebugContext // somebody else has it: the normal case of replicas
		}
		level(ctx, "message comes back", "subject", d.subject.Template(), "msg_id", meta.ID, "wait", wait.String(), "err", err)
		ack = msg.NakWithDelay(wait)
	}
	if ack != nil {
		d.bus.log.WarnContext(ctx, "message not settled, it will come again", "subject", d.subject.Template(), "msg_id", meta.ID, "err", ack)
	}
}
