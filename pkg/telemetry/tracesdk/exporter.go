package tracesdk

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"

	"github.com/anima-run/anima/pkg/wait"
)

// retryInterval is the pause before spans that the collector did not accept are sent
// again.
const retryInterval = 2 * time.Second

// sendTimeout is the timeout of sending one batch, including the client's retries.
const sendTimeout = 30 * time.Second

// Exporter sends a process's spans to the collector, in batches. All providers of the
// process share it, and it may outlive any of them. It bounds the number of waiting spans
// and counts every span as sent, failed or dropped. It is safe for concurrent use.
//
// A nil *Exporter sends nothing.
type Exporter struct {
	opts    Options
	client  otlptrace.Client
	log     *slog.Logger
	spool   *spool // nil: spans that were not sent are lost if the process is killed
	pending pendingRoots

	sent, failed, dropped, restored func(spans int)
	accepted                        prometheus.Counter
	length                          prometheus.Gauge

	waiting   atomic.Int64       // spans that have ended and were neither sent nor failed
	batchFull chan struct{}      // signals that a batch waits
	flush     chan chan struct{} // requests to send everything and then close the channel
	stop      context.CancelFunc // cancels sending
	work      sync.WaitGroup     // run, and the sending of the spans of crashed processes
	stopped   chan struct{}      // closed when run has returned
	closing   atomic.Bool
	closeOnce sync.Once
	closed    chan struct{} // closed by Shutdown
	closeErr  error         // error of Shutdown
	buffers   batchBuffers

	mu         sync.Mutex
	items      []item
	down       bool  // the last batch failed
	droppedNow int   // spans dropped since the queue was last at most half full
	lost       error // why spans were lost since the last flush
}

// item is an ended span that waits to be sent.
type item struct {
	source *source
	slot   uint32 // in the spool, or noSlot
	data   []byte // encoded span, in the spool's memory or on the heap
}

// NewExporter opens the spool and starts to send the spans of crashed processes in it.
// Without a usable spool it logs the error and keeps spans in memory only, because the
// service is more important than its traces. The caller shuts the Exporter down.
func NewExporter(ctx context.Context, opts Options) *Exporter {
	m := opts.Metrics
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	e := &Exporter{
		opts:      opts,
		client:    opts.Client,
		log:       opts.Log,
		sent:      both(m.outcome.WithLabelValues("sent"), m.exported.WithLabelValues("")),
		failed:    both(m.outcome.WithLabelValues("failed"), m.exported.WithLabelValues("export_failed")),
		dropped:   both(m.outcome.WithLabelValues("dropped"), m.processed.WithLabelValues("queue_full")),
		accepted:  m.processed.WithLabelValues(""),
		length:    m.size,
		batchFull: make(chan struct{}, 1),
		flush:     make(chan chan struct{}),
		stop:      stop,
		stopped:   make(chan struct{}),
		closed:    make(chan struct{}),
		pending:   pendingRoots{added: make(chan struct{}, 1)},
		buffers:   batchBuffers{sizes: map[*source]int{}},
	}
	m.capacity.Set(float64(opts.Queue))
	restored := m.outcome.WithLabelValues("restored")
	e.restored = func(spans int) { restored.Add(float64(spans)) }
	others := e.openSpool(ctx)
	e.work.Go(func() { e.sendOrphans(run, others) })
	e.work.Go(func() { e.run(run) })
	return e
}

// openSpool opens the spool, if one is configured, and returns the names of the files of
// other processes.
func (e *Exporter) openSpool(ctx context.Context) []string {
	if e.opts.Spool == "" || !canSpool {
		return nil
	}
	s, others, err := openSpool(e.opts.Spool)
	if err != nil {
		e.log.WarnContext(ctx, "spans are kept in memory only: those not sent are lost if the process is killed", "folder", e.opts.Spool, "err", err)
	}
	e.spool = s
	others, removed := removeOldest(others)
	if removed > 0 {
		e.log.WarnContext(ctx, "spans of exited processes are lost, because too many files wait for the collector", "folder", e.opts.Spool, "removed", removed, "kept", maxFiles)
	}
	return others
}

// sendOrphans sends the spans of crashed processes until all are sent or ctx ends. It reads
// one file at a time: decoded, the spans of a full file take more than its 16 MiB, and when
// the collector was away for long, there are many files. A file that is not read or not
// sent is left to other processes.
func (e *Exporter) sendOrphans(ctx context.Context, files []string) {
	for _, name := range files {
		o, damaged, err := readOrphans(name, e.opts.Work)
		if err != nil {
			e.log.WarnContext(ctx, "spans of an exited process cannot be read", "file", name, "err", err)
		}
		if damaged > 0 {
			e.log.WarnContext(ctx, "some spans of an exited process cannot be read", "spans", damaged)
		}
		if o == nil {
			continue
		}
		e.addPending(o.pending...)
		if !e.sendFile(ctx, o) {
			return
		}
	}
}

// sendFile sends the spans of one file and then removes it. It returns false if ctx has
// ended before.
func (e *Exporter) sendFile(ctx context.Context, o *orphans) bool {
	logged := false
	for _, request := range o.requests(e.opts.Batch) {
		for {
			err := e.client.UploadTraces(ctx, request)
			if err == nil {
				break
			}
			if !logged {
				e.log.WarnContext(ctx, "spans of an exited process not sent, retrying", "spans", o.count, "err", err)
				logged = true
			}
			if wait.For(ctx, retryInterval) != nil {
				return false
			}
		}
	}
	e.restored(o.count)
	if o.count > 0 {
		e.log.InfoContext(ctx, "spans of a killed process sent", "spans", o.count)
	}
	o.remove()
	return true
}

// put queues a span that has ended. It never blocks.
func (e *Exporter) put(v *span) {
	if e.waiting.Add(1) > int64(e.opts.Queue) {
		e.waiting.Add(-1)
		e.spool.release(v.slot)
		e.drop()
		return
	}
	e.length.Inc()
	e.accepted.Inc()
	data := e.encode(v, stateEnded, v.end)
	e.mu.Lock()
	e.items = append(e.items, item{source: v.tracer.source, slot: v.slot, data: data})
	n := len(e.items)
	e.mu.Unlock()
	if n == e.opts.Batch {
		select {
		case e.batchFull <- struct{}{}:
		default: // run has been notified
		}
	}
}

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// encode encodes a span as it ends at end, and stores it in the spool, in another slot
// than before. It returns the encoded span if it has ended: in the memory of the spool, or
// on the heap if the spool has no room for it.
func (e *Exporter) encode(v *span, state uint32, end time.Time) (data []byte) {
	buf := scratch.Get().(*[]byte)
	defer scratch.Put(buf)
	*buf = v.append((*buf)[:0], end, false)
	if v.tracer.source.spooled {
		if slot, stored := e.spool.put(v, *buf, state, end); slot != noSlot {
			e.spool.release(v.slot)
			v.slot, data = slot, stored
		}
	}
	if data == nil && state == stateEnded {
		data = bytes.Clone(*buf)
	}
	return data
}

// abandon removes a span that is not sent from the spool. After [Ending] it becomes a
// pending root.
func (e *Exporter) abandon(v *span) {
	if v.slot == noSlot {
		return
	}
	if found, _ := spanAt(e.spool.mem, v.slot); found.state == stateEnding {
		found.source = 0
		if o, _ := restore([]*source{v.tracer.source}, []storedSpan{found}, time.Time{}, e.opts.Work); len(o.pending) == 1 {
			o.pending[0].remove = func() { e.spool.release(v.slot) }
			e.addPending(o.pending[0])
			return
		}
	}
	e.spool.release(v.slot)
}

var errFull = errors.New("more spans ended than could be sent: raise OTEL_BSP_MAX_QUEUE_SIZE, or OTEL_BSP_MAX_EXPORT_BATCH_SIZE up to the limit of the collector")

// drop counts a span for which the queue had no room. Only the first one of an overload
// is logged.
func (e *Exporter) drop() {
	e.dropped(1)
	e.mu.Lock()
	e.lost = errFull
	first := e.droppedNow == 0
	e.droppedNow++
	e.mu.Unlock()
	if first {
		e.log.WarnContext(context.Background(), "spans are dropped", "err", errFull)
	}
}

// ForceFlush sends all waiting spans, and returns why spans were lost since the last
// flush.
func (e *Exporter) ForceFlush(ctx context.Context) error {
	if e == nil {
		return nil
	}
	done := make(chan struct{})
	var err error
	select {
	case e.flush <- done:
		select {
		case <-done:
		case <-ctx.Done():
			err = ctx.Err()
		}
	case <-e.stopped:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(err, e.takeLost())
}

func (e *Exporter) takeLost() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.lost
	e.lost = nil
	return err
}

// Shutdown sends the waiting spans until ctx ends, and stops the client. Spans that end
// afterwards are lost. Further calls return the first error.
func (e *Exporter) Shutdown(ctx context.Context) error {
	if e == nil {
		return nil
	}
	e.closeOnce.Do(func() {
		e.closing.Store(true)
		close(e.closed)
		// At the end of ctx cancel the sending in progress, which would otherwise
		// continue after Shutdown.
		inTime := context.AfterFunc(ctx, e.stop)
		e.work.Wait()
		if !inTime() {
			e.closeErr = ctx.Err()
		}
		e.stop()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		e.closeErr = errors.Join(e.closeErr, e.client.Stop(end))
		if e.spool != nil {
			e.closeErr = errors.Join(e.closeErr, e.spool.close())
		}
		e.closeErr = errors.Join(e.closeErr, e.takeLost())
	})
	return e.closeErr
}
