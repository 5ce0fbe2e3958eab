package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// push is the one way of a process's metrics to a collector, shared by all of its
// Providers, each of which reads its own instruments. The SDK would hand errors to
// a global handler; here the begin and the end of an outage are logged. Nothing is
// lost by it: sums are cumulative.
type push struct {
	sdkmetric.Exporter
	interval time.Duration
	log      *slog.Logger

	mu   sync.Mutex
	down bool
}

func (p *push) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := p.Exporter.Export(ctx, m)
	p.mu.Lock()
	was := p.down
	p.down = err != nil
	p.mu.Unlock()
	switch {
	case err != nil && !was:
		p.log.WarnContext(ctx, "metrics are not pushed: does the endpoint take metrics, and is it up?", "err", err)
	case err == nil && was:
		p.log.InfoContext(ctx, "metrics are pushed again")
	}
	return nil
}

// Shutdown is called by the reader of each Providers, of which others may go on.
func (*push) Shutdown(context.Context) error { return nil }

// close ends the connection.
func (p *push) close(ctx context.Context) error { return p.Exporter.Shutdown(ctx) }

// reader pushes what one Providers measures, at the interval and when it shuts
// down.
func (p *push) reader() sdkmetric.Option {
	return sdkmetric.WithReader(sdkmetric.NewPeriodicReader(p, sdkmetric.WithInterval(p.interval)))
}
