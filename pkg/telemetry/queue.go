package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// flushRoom is the space in the SDK's queue for its flush markers, so that they
// never take the place of a span.
const flushRoom = 128

// queue is the one way of a process's spans to the collector, shared by all of
// its Providers. It bounds what waits and accounts for every span: sent, failed
// or dropped. As a span processor it outlives the providers it is given to.
type queue struct {
	batcher sdktrace.SpanProcessor
	room    int64
	waiting atomic.Int64 // ended, and neither sent nor failed
	log     *slog.Logger

	sent, failed, dropped func(spans int)
	taken                 prometheus.Counter
	size                  prometheus.Gauge

	exporter sdktrace.SpanExporter
	stopped  chan struct{} // closed when the batcher has let go of the exporter

	mu         sync.Mutex
	down       bool  // the last batch failed
	droppedNow int   // spans, since the queue last had plenty of room
	lost       error // why spans were lost since the last flush
}

func newQueue(exporter sdktrace.SpanExporter, size batching, log *slog.Logger, spans *spanCounters) *queue {
	q := &queue{
		room:     int64(size.queue),
		log:      log,
		sent:     both(spans.outcome.WithLabelValues("sent"), spans.exported.WithLabelValues("")),
		failed:   both(spans.outcome.WithLabelValues("failed"), spans.exported.WithLabelValues("export_failed")),
		dropped:  both(spans.outcome.WithLabelValues("dropped"), spans.processed.WithLabelValues("queue_full")),
		taken:    spans.processed.WithLabelValues(""),
		size:     spans.size,
		exporter: exporter,
		stopped:  make(chan struct{}),
	}
	spans.capacity.Set(float64(size.queue))
	q.batcher = sdktrace.NewBatchSpanProcessor(
		accounted{q},
		sdktrace.WithMaxQueueSize(size.queue+flushRoom),
		sdktrace.WithMaxExportBatchSize(size.batch),
		sdktrace.WithBatchTimeout(time.Duration(size.delay)*time.Millisecond),
	)
	return q
}

func both(a, b prometheus.Counter) func(spans int) {
	return func(spans int) {
		a.Add(float64(spans))
		b.Add(float64(spans))
	}
}

func (*queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > q.room {
		q.waiting.Add(-1)
		q.drop()
		return
	}
	q.size.Inc()
	q.taken.Inc()
	q.batcher.OnEnd(s)
}

// ForceFlush sends what waits and says what was lost since the last flush.
func (q *queue) ForceFlush(ctx context.Context) error {
	err := q.batcher.ForceFlush(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	err = errors.Join(err, q.lost)
	q.lost = nil
	return err
}

// Shutdown is called by the providers, of which others may go on: it flushes.
func (q *queue) Shutdown(ctx context.Context) error { return q.ForceFlush(ctx) }

// close sends what waits, until ctx ends, and closes the connection.
func (q *queue) close(ctx context.Context) error {
	err := q.batcher.Shutdown(ctx)
	if err != nil {
		// Out of time: cancel the export that is under way, or the batcher
		// would go on behind our back.
		err = errors.Join(err, q.exporter.Shutdown(ctx))
		<-q.stopped
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	err = errors.Join(err, q.lost)
	q.lost = nil
	return err
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

// accounted is the exporter as the batcher sees it. The SDK would hand errors
// to a global handler; here they are counted, logged when they begin and end,
// and kept for the next flush.
type accounted struct{ q *queue }

func (a accounted) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	q := a.q
	err := q.exporter.ExportSpans(ctx, spans)
	waiting := q.waiting.Add(int64(-len(spans)))
	q.size.Sub(float64(len(spans)))
	if err != nil {
		q.failed(len(spans))
	} else {
		q.sent(len(spans))
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
	return nil
}

func (a accounted) Shutdown(ctx context.Context) error {
	defer close(a.q.stopped)
	return a.q.exporter.Shutdown(ctx)
}
