package tracesdk

import (
	"context"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// batchBuffers are reused from batch to batch. Only run uses them.
type batchBuffers struct {
	items []item
	bytes []byte
	sizes map[*source]int
}

// run sends batches until Shutdown: when a batch is full, and otherwise all waiting spans
// at an interval.
func (e *Exporter) run(ctx context.Context) {
	defer close(e.stopped)
	tick := time.NewTicker(e.opts.Delay)
	defer tick.Stop()
	for {
		least := 1
		select {
		case <-e.closed:
			e.send(ctx, 1)
			return
		case done := <-e.flush:
			e.send(ctx, 1)
			close(done)
			continue
		case <-e.batchFull:
			least = e.opts.Batch
		case <-tick.C:
		}
		e.send(ctx, least)
	}
}

// send sends batches while at least least spans wait.
func (e *Exporter) send(ctx context.Context, least int) {
	for {
		e.mu.Lock()
		n := min(len(e.items), e.opts.Batch)
		if n < least {
			e.mu.Unlock()
			return
		}
		batch := append(e.buffers.items[:0], e.items[:n]...)
		e.buffers.items = batch
		rest := copy(e.items, e.items[n:])
		clear(e.items[rest:])
		e.items = e.items[:rest]
		e.mu.Unlock()
		once, cancel := context.WithTimeout(ctx, sendTimeout)
		err := e.client.UploadTraces(once, e.request(batch))
		cancel()
		e.account(ctx, batch, err)
	}
}

// request assembles the spans of a batch, grouped by source. Its messages contain only
// encoded bytes, as unknown fields, which protobuf writes unchanged. They are valid until
// the next call. The SDK would first create objects of all spans, which costs twice as
// much (BenchmarkSpan).
func (e *Exporter) request(batch []item) []*tracepb.ResourceSpans {
	sizes := e.buffers.sizes
	clear(sizes)
	for i := range batch {
		n := len(batch[i].data)
		sizes[batch[i].source] += 1 + protowire.SizeBytes(n)
	}
	b := e.buffers.bytes[:0]
	out := make([]*tracepb.ResourceSpans, 0, len(sizes))
	for src, size := range sizes {
		at := len(b)
		b = append(b, src.resourceField...)
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(len(src.scopeField)+size))
		b = append(b, src.scopeField...)
		for i := range batch {
			if batch[i].source == src {
				b = appendBytes(b, 2, batch[i].data)
			}
		}
		rs := &tracepb.ResourceSpans{}
		rs.ProtoReflect().SetUnknown(b[at:len(b):len(b)])
		out = append(out, rs)
	}
	e.buffers.bytes = b
	return out
}

// account counts the spans of a batch as sent or failed. It logs the begin and the end of
// an outage, and keeps the error for the next flush.
func (e *Exporter) account(ctx context.Context, batch []item, err error) {
	// Spans of a last batch that failed stay in the spool for the next process.
	for i := 0; (err == nil || !e.closing.Load()) && i < len(batch); i++ {
		e.spool.release(batch[i].slot)
	}
	waiting := e.waiting.Add(int64(-len(batch)))
	e.length.Sub(float64(len(batch)))
	if err != nil {
		e.failed(len(batch))
	} else {
		e.sent(len(batch))
	}
	e.mu.Lock()
	wasDown := e.down
	e.down = err != nil
	if err != nil {
		e.lost = err
	}
	dropped := 0
	if waiting <= int64(e.opts.Queue)/2 {
		dropped, e.droppedNow = e.droppedNow, 0
	}
	e.mu.Unlock()
	if dropped > 0 {
		e.log.InfoContext(ctx, "spans are no longer dropped", "spans", dropped)
	}
	switch {
	case err != nil && !wasDown:
		e.log.WarnContext(ctx, "traces not sent, check that the collector is up", "err", err)
	case err == nil && wasDown:
		e.log.InfoContext(ctx, "trace export resumed")
	}
}
