package telemetry

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry/tracesdk"
)

// Providers are the tracer provider and the meter provider of one service. They are safe
// for concurrent use.
type Providers struct {
	exporters *Exporters
	service   string
	replica   int
	registry  *prometheus.Registry
	tracers   *tracesdk.Provider
	meters    *sdkmetric.MeterProvider
}

// Start creates the providers of a service; service is its service.name. Every trace is
// sampled unless OTEL_TRACES_SAMPLER is set. The caller shuts the Providers down.
func (e *Exporters) Start(ctx context.Context, service string) (*Providers, error) {
	attrs := []attribute.KeyValue{
		attribute.String("service.name", service),
		attribute.String("service.namespace", "anima"),
		attribute.String("service.version", e.opts.Version),
	}
	if e.opts.Instance != "" {
		attrs = append(attrs, attribute.String("service.instance.id", e.opts.Instance))
	}
	// Later options take precedence, so OTEL_SERVICE_NAME cannot give six services one
	// name.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithFromEnv(), resource.WithAttributes(attrs...))
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: want key=value,key=value: %w", err)
	}

	p := &Providers{
		exporters: e,
		service:   service,
		registry:  prometheus.NewRegistry(),
		tracers:   tracesdk.NewProvider(e.spans, res, e.sampler),
	}
	err = e.add(p, func(labels prometheus.Labels) error {
		// The service is a label of every series and the scopes add no information, so
		// target_info and otel_scope_ labels are redundant.
		reader, err := promexporter.New(
			promexporter.WithRegisterer(prometheus.WrapRegistererWith(labels, p.registry)),
			promexporter.WithoutTargetInfo(),
			promexporter.WithoutScopeInfo(),
		)
		if err != nil {
			return err
		}
		meters := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(reader), sdkmetric.WithView(buckets)}
		if e.push != nil {
			meters = append(meters, e.push.reader())
		}
		p.meters = sdkmetric.NewMeterProvider(meters...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open the metrics of %s: %w", service, err)
	}
	return p, nil
}

// TracerProvider returns a provider of tracers whose spans have the service's name.
func (p *Providers) TracerProvider() trace.TracerProvider { return p.tracers }

// MeterProvider returns a provider of meters whose series have the label service.
// Histograms with the unit s get bounds from 50 µs to 2 minutes instead of their own.
func (p *Providers) MeterProvider() metric.MeterProvider { return p.meters }

// Shutdown flushes traces and pushes metrics, removes the service's series from the
// metrics page, and disables its tracers and meters. Further calls do nothing.
func (p *Providers) Shutdown(ctx context.Context) error {
	if !p.exporters.remove(p) {
		return nil
	}
	return errors.Join(p.tracers.Shutdown(ctx), p.meters.Shutdown(ctx))
}
