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

// sendTimeout is the timeout of sending one batch, including the client's retries.
const sendTimeout = 30 * time.Second

// queue sends a process's spans to the collector. All Providers of the process share it.
// It bounds the number of waiting spans and counts every span as sent, failed or dropped.
// It is used beyond the lifetime of single Providers.
//
// A span is encoded for OTLP once, when it ends, at the place where it waits. A request
// is assembled from these bytes. The SDK would first create objects of all spans, which
// costs twice as much (BenchmarkSpan).
type queue struct {
	size  batching
	room  int64
	wait  atomic.Int64 // spans that have ended and were neither sent nor failed
	log   *slog.Logger
	spool *spool // nil: spans that were not sent are lost if the process is killed

	sent, failed, dropped func(spans int)
	taken                 prometheus.Counter
	length                prometheus.Gauge

	doubts  doubts
	client  otlptrace.Client
	full    chan struct{}      // signals that a batch waits
	flush   chan chan struct{} // requests to send everything and then close the channel
	stop    context.CancelFunc // cancels sending
	stopped chan struct{}      // closed when run has returned
	closing atomic.Bool
	ending  sync.Once
	ended   chan struct{} // closed by close
	over    error         // error of close

	// Only used by run, to avoid allocations.
	batch []item
	buf   []byte
	sizes map[*source]int

	sourcesMu sync.RWMutex
	sources   map[sourceKey]*source

	mu         sync.Mutex
	items      []item
	down       bool  // the last batch failed
	droppedNow int   // spans dropped since the queue was last at most half full
	lost       error // why spans were lost since the last flush
}

// item is an ended span that waits to be sent.
type item struct {
	of    *source
	place uint32 // in the spool, or nowhere
	data  []byte // encoded span, in the spool's memory or on the heap
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

// abandon removes a span that is not sent from the spool. After [Ending] it is kept as a
// doubt.
func (q *queue) abandon(of *source, id trace.SpanID) {
	if q.spool == nil {
		return
	}
	if d, ok := q.spool.abandoned(of, id); ok {
		q.doubts.add(d)
	}
}

// put queues a span that has ended, encoded by write. It never blocks.
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
	default: // run has been notified
	}
}

// run sends batches until close: when a batch is full, and otherwise all waiting spans at
// an interval.
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

// send sends batches while at least least spans wait.
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

// request assembles the spans of a batch, grouped by source. Its messages contain only
// encoded bytes, as unknown fields, which protobuf writes unchanged. They are valid until
// the next call.
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

// account counts the spans of a batch as sent or failed. It logs the begin and the end of
// an outage, and keeps the error for the next flush.
func (q *queue) account(ctx context.Context, batch []item, err error) {
	// Spans of a last batch that failed stay in the spool for the next process.
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
		q.log.WarnContext(ctx, "traces not sent, check that the collector is up", "err", err)
	case err == nil && was:
		q.log.InfoContext(ctx, "trace export resumed")
	}
}

// ForceFlush sends all waiting spans, and returns why spans were lost since the last
// flush.
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

// close sends the waiting spans until ctx ends, and closes the connection.
func (q *queue) close(ctx context.Context) error {
	q.ending.Do(func() {
		q.closing.Store(true)
		close(q.ended)
		select {
		case <-q.stopped:
		case <-ctx.Done():
			// Cancel the sending in progress, which would otherwise continue after close.
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

var errFull = errors.New("more spans ended than could be sent: raise OTEL_BSP_MAX_QUEUE_SIZE, or OTEL_BSP_MAX_EXPORT_BATCH_SIZE up to the limit of the collector")

// drop counts a span for which the queue had no room. Only the first one of an overload
// is logged.
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
