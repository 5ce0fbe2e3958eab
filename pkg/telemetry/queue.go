package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// sendTimeout bounds the sending of a batch, with all that is tried again.
const sendTimeout = 30 * time.Second

// queue is the one way of a process's spans to the collector, shared by all of
// its Providers. It bounds what waits and accounts for every span: sent, failed
// or dropped. It outlives the providers it is given to.
//
// A span is written in OTLP's form once, when it ends, to where it waits, and what
// is sent is put together from that. The SDK's own way makes objects of all spans
// first, and cost twice as much (BenchmarkSpan).
type queue struct {
	size  batching
	room  int64
	wait  atomic.Int64 // ended, and neither sent nor failed
	log   *slog.Logger
	spool *spool // nil when a process that is killed loses its spans

	sent, failed, dropped func(spans int)
	taken                 prometheus.Counter
	length                prometheus.Gauge

	doubts  doubts
	client  otlptrace.Client
	full    chan struct{}      // a batch waits
	flush   chan chan struct{} // send everything, then close it
	stop    context.CancelFunc // of sending
	stopped chan struct{}      // closed when the sender is gone
	closing atomic.Bool
	ending  sync.Once
	ended   chan struct{} // closed by close
	over    error         // of close

	// Of the sender only, used again and again.
	batch []item
	buf   []byte
	sizes map[*source]int

	sourcesMu sync.RWMutex
	sources   map[sourceKey]*source

	mu         sync.Mutex
	items      []item
	down       bool  // the last batch failed
	droppedNow int   // spans, since the queue last had plenty of room
	lost       error // why spans were lost since the last flush
}

// item is a span that waits.
type item struct {
	of    *source
	place uint32 // in the spool, or nowhere
	data  []byte // OTLP's bytes; in the spool's memory or its own
}

func newQueue(client otlptrace.Client, size batching, spool *spool, log *slog.Logger, spans *spanCounters) *queue {
	ctx, stop := context.WithCancel(context.Background())
	q := &queue{
		size:    size,
		room:    int64(size.queue),
		log:     log,
		spool:   spool,
		sent:    both(spans.outcome.WithLabelValues("sent"), spans.exported.WithLabelValues("")),
		failed:  both(spans.outcome.WithLabelValues("failed"), spans.exported.WithLabelValues("export_failed")),
		dropped: both(spans.outcome.WithLabelValues("dropped"), spans.processed.WithLabelValues("queue_full")),
		taken:   spans.processed.WithLabelValues(""),
		length:  spans.size,
		client:  client,
		full:    make(chan struct{}, 1),
		flush:   make(chan chan struct{}),
		stop:    stop,
		stopped: make(chan struct{}),
		ended:   make(chan struct{}),
		sources: map[sourceKey]*source{},
		sizes:   map[*source]int{},
	}
	restored := spans.outcome.WithLabelValues("restored")
	q.doubts = doubts{client: client, log: log, sent: func(n int) { restored.Add(float64(n)) }, more: make(chan struct{}, 1)}
	spans.capacity.Set(float64(size.queue))
	go q.run(ctx)
	return q
}

func both(a, b prometheus.Counter) func(spans int) {
	return func(spans int) {
		a.Add(float64(spans))
		b.Add(float64(spans))
	}
}

// abandon forgets a span that is never sent, or keeps it as a doubt.
func (q *queue) abandon(of *source, id trace.SpanID) {
	if q.spool == nil {
		return
	}
	if d, ok := q.spool.abandoned(of, id); ok {
		q.doubts.add(d)
	}
}

// put takes a span that has ended, as it is written by write; it never waits.
func (q *queue) put(of *source, id trace.SpanID, now time.Time, write func(b []byte, lean bool) []byte) {
	if q.wait.Add(1) > q.room {
		q.wait.Add(-1)
		if q.spool != nil {
			q.spool.forget(id)
		}
		q.drop()
		return
	}
	q.length.Inc()
	q.taken.Inc()
	v := item{of: of, place: nowhere}
	buf := scratch.Get().(*[]byte)
	b := write((*buf)[:0], false)
	if q.spool != nil && of.spool {
		v.place, v.data = q.spool.ended(of.number, id, b, now, write)
	}
	if v.data == nil {
		v.data = append(make([]byte, 0, len(b)), b...)
	}
	*buf = b[:0]
	scratch.Put(buf)

	q.mu.Lock()
	q.items = append(q.items, v)
	n := len(q.items)
	q.mu.Unlock()
	if n == q.size.batch {
		q.wake()
	}
}

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

func (q *queue) wake() {
	select {
	case q.full <- struct{}{}:
	default: // the sender knows
	}
}

// run sends until close: whenever a batch is full, and what there is in any case
// after a while.
func (q *queue) run(ctx context.Context) {
	defer close(q.stopped)
	tick := time.NewTicker(time.Duration(q.size.delay) * time.Millisecond)
	defer tick.Stop()
	for {
		least := 1
		select {
		case <-q.ended:
			q.send(ctx, 1)
			return
		case done := <-q.flush:
			q.send(ctx, 1)
			close(done)
			continue
		case <-q.full:
			least = q.size.batch
		case <-tick.C:
		}
		q.send(ctx, least)
	}
}

// send sends batches for as long as there are least spans.
func (q *queue) send(ctx context.Context, least int) {
	for {
		q.mu.Lock()
		n := min(len(q.items), q.size.batch)
		if n < least {
			q.mu.Unlock()
			return
		}
		batch := append(q.batch[:0], q.items[:n]...)
		q.batch = batch
		rest := copy(q.items, q.items[n:])
		clear(q.items[rest:])
		q.items = q.items[:rest]
		q.mu.Unlock()
		once, cancel := context.WithTimeout(ctx, sendTimeout)
		err := q.client.UploadTraces(once, q.request(batch))
		cancel()
		q.account(ctx, batch, err)
	}
}

// request puts spans together, those of one scope of one service below each other.
// Its messages hold nothing but bytes that are already written, as fields that they
// do not know: so they are sent as they are. They are good until the next call.
func (q *queue) request(batch []item) []*tracepb.ResourceSpans {
	clear(q.sizes)
	for i := range batch {
		n := len(batch[i].data)
		q.sizes[batch[i].of] += 1 + protowire.SizeBytes(n)
	}
	b := q.buf[:0]
	out := make([]*tracepb.ResourceSpans, 0, len(q.sizes))
	for of, size := range q.sizes {
		at := len(b)
		b = append(b, of.head...)
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(len(of.within)+size))
		b = append(b, of.within...)
		for i := range batch {
			if batch[i].of == of {
				b = appendBytes(b, 2, batch[i].data)
			}
		}
		rs := &tracepb.ResourceSpans{}
		rs.ProtoReflect().SetUnknown(b[at:len(b):len(b)])
		out = append(out, rs)
	}
	q.buf = b
	return out
}

// account says what became of a batch. An outage is logged when it begins and ends,
// and kept for the next flush.
func (q *queue) account(ctx context.Context, batch []item, err error) {
	// What the last try could not send is for the next process.
	for i := 0; (err == nil || !q.closing.Load()) && i < len(batch); i++ {
		if batch[i].place != nowhere {
			q.spool.release(batch[i].place)
		}
	}
	waiting := q.wait.Add(int64(-len(batch)))
	q.length.Sub(float64(len(batch)))
	if err != nil {
		q.failed(len(batch))
	} else {
		q.sent(len(batch))
	}
	q.mu.Lock()
	was := q.down
	q.down = err != nil
	if err != nil {
		q.lost = err
	}
	dropped := 0
	if waiting <= q.room/2 {
		dropped, q.droppedNow = q.droppedNow, 0
	}
	q.mu.Unlock()
	if dropped > 0 {
		q.log.InfoContext(ctx, "spans are no longer dropped", "spans", dropped)
	}
	switch {
	case err != nil && !was:
		q.log.WarnContext(ctx, "traces are not sent: is the collector up?", "err", err)
	case err == nil && was:
		q.log.InfoContext(ctx, "traces are sent again")
	}
}

// ForceFlush sends what waits and says what was lost since the last flush.
func (q *queue) ForceFlush(ctx context.Context) error {
	done := make(chan struct{})
	var err error
	select {
	case q.flush <- done:
		select {
		case <-done:
		case <-ctx.Done():
			err = ctx.Err()
		}
	case <-q.stopped:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(err, q.takeLost())
}

func (q *queue) takeLost() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.lost
	q.lost = nil
	return err
}

// close sends what waits, until ctx ends, and closes the connection.
func (q *queue) close(ctx context.Context) error {
	q.ending.Do(func() {
		q.closing.Store(true)
		close(q.ended)
		select {
		case <-q.stopped:
		case <-ctx.Done():
			// Out of time: end the sending that is under way, or it would go on
			// behind our back.
			q.over = ctx.Err()
		}
		q.stop()
		<-q.stopped
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		q.over = errors.Join(q.over, q.client.Stop(end))
		if q.spool != nil {
			q.over = errors.Join(q.over, q.spool.close())
		}
		q.over = errors.Join(q.over, q.takeLost())
	})
	return q.over
}

var errFull = errors.New("more spans ended than could be sent: raise OTEL_BSP_MAX_QUEUE_SIZE, or OTEL_BSP_MAX_EXPORT_BATCH_SIZE up to what the collector takes")

// drop accounts for a span that found no room. The first one of a time of need is
// logged, the others would drown the log.
func (q *queue) drop() {
	q.dropped(1)
	q.mu.Lock()
	q.lost = errFull
	first := q.droppedNow == 0
	q.droppedNow++
	q.mu.Unlock()
	if first {
		q.log.WarnContext(context.Background(), "spans are dropped", "err", errFull)
	}
}
