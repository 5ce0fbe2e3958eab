package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// push sends a process's metrics to a collector. All Providers of the process share it;
// each reads its own instruments. The SDK would pass errors to a global handler, so push
// logs the begin and the end of an outage itself. An outage loses no counts: sums are
// cumulative.
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
		p.log.WarnContext(ctx, "metrics not pushed, check that the endpoint is up and accepts metrics", "err", err)
	case err == nil && was:
		p.log.InfoContext(ctx, "metrics push resumed")
	}
	return nil
}

// Shutdown does nothing: the reader of each Providers calls it, and others may be in use.
func (*push) Shutdown(context.Context) error { return nil }

// close closes the connection.
func (p *push) close(ctx context.Context) error { return p.Exporter.Shutdown(ctx) }

// reader returns a reader that pushes the metrics of one Providers at the interval and at
// its shutdown.
func (p *push) reader() sdkmetric.Option {
	return sdkmetric.WithReader(sdkmetric.NewPeriodicReader(p, sdkmetric.WithInterval(p.interval)))
}
