package tracesdk

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
)

// recovery sends the spans of crashed processes in the background.
type recovery struct {
	client otlptrace.Client
	log    *slog.Logger
	sent   func(spans int)
	stop   context.CancelFunc
	work   sync.WaitGroup
}

// retryInterval is the pause before spans that the collector did not accept are sent
// again.
const retryInterval = 2 * time.Second

// startRecovery sends spans in the background until all are sent or close is called.
// Unsent spans stay in their files for the next process.
func startRecovery(client otlptrace.Client, all []orphans, log *slog.Logger, sent func(spans int)) *recovery {
	ctx, stop := context.WithCancel(context.Background())
	r := &recovery{client: client, log: log, sent: sent, stop: stop}
	r.work.Go(func() {
		for _, o := range all {
			if err := r.send(ctx, o); err != nil {
				return
			}
		}
	})
	return r
}

func (r *recovery) send(ctx context.Context, o orphans) error {
	for logged := false; len(o.spans) > 0; {
		err := r.client.UploadTraces(ctx, o.spans)
		if err == nil {
			break
		}
		if !logged {
			r.log.WarnContext(ctx, "spans of an exited process not sent, retrying", "spans", o.count, "err", err)
		}
		logged = true
		t := time.NewTimer(retryInterval)
		select {
		case <-ctx.Done():
			t.Stop()
			return errors.Join(ctx.Err(), err)
		case <-t.C:
		}
	}
	r.sent(o.count)
	if o.count > 0 {
		r.log.InfoContext(ctx, "spans of a killed process sent", "spans", o.count)
	}
	o.remove()
	return nil
}

// close stops the sending. It waits for a request in progress until ctx ends.
func (r *recovery) close(ctx context.Context) {
	done := make(chan struct{})
	go func() { r.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	r.stop()
	<-done
}
