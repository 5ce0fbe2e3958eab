package telemetry

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
)

// buckets sets the bounds of histograms. The SDK's defaults are for milliseconds and
// would put every duration in seconds into the first two buckets. For histograms in
// seconds, the bounds given by an instrument itself are ignored.
func buckets(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
	var bounds []float64
	switch {
	case i.Kind != sdkmetric.InstrumentKindHistogram:
	case i.Name == genaiconv.ClientOperationDuration{}.Name():
		bounds = prometheus.ExponentialBuckets(0.01, 2, 14) // to 81.92 s, as in the conventions
	case i.Name == genaiconv.ClientTokenUsage{}.Name():
		bounds = prometheus.ExponentialBuckets(1, 4, 14) // to 67,108,864 tokens, as in the conventions
	case i.Unit == "s":
		// From a policy evaluation (50 µs) to a run with slow tools.
		bounds = []float64{
			.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
			.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120,
		}
	}
	if bounds == nil {
		return sdkmetric.Stream{}, false
	}
	return sdkmetric.Stream{
		Name:        i.Name,
		Description: i.Description,
		Unit:        i.Unit,
		Aggregation: sdkmetric.AggregationExplicitBucketHistogram{Boundaries: bounds},
	}, true
}

// spanCounters count spans by outcome: sent, failed (the collector did not accept them),
// dropped (they ended faster than they could be sent) or restored (sent for a process
// that was killed). The same counts exist under the names of the conventions for SDK
// metrics.
type spanCounters struct {
	outcome             *prometheus.CounterVec
	processed, exported *prometheus.CounterVec
	size, capacity      prometheus.Gauge // of the queue
}

func newSpanCounters() *spanCounters {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	c := &spanCounters{
		outcome:   counter("anima_telemetry_spans_total", "Sampled spans that ended, by outcome.", "outcome"),
		processed: counter("otel_sdk_processor_span_processed_total", "Sampled spans that ended; error_type queue_full: dropped.", "error_type"),
		exported:  counter("otel_sdk_exporter_span_exported_total", "Spans sent to the collector; error_type export_failed: the collector did not accept them.", "error_type"),
		size:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "otel_sdk_processor_span_queue_size", Help: "Spans that wait to be sent."}),
		capacity:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "otel_sdk_processor_span_queue_capacity", Help: "Spans that may wait to be sent; 0: spans are not sent."}),
	}
	// The zeros are needed by alerts.
	for _, outcome := range []string{"sent", "failed", "dropped", "restored"} {
		c.outcome.WithLabelValues(outcome)
	}
	c.processed.WithLabelValues("")
	c.processed.WithLabelValues("queue_full")
	c.exported.WithLabelValues("")
	c.exported.WithLabelValues("export_failed")
	return c
}

// newProcessRegistry returns the registry of the metrics of the process as a whole.
func newProcessRegistry(version string) (*prometheus.Registry, *spanCounters) {
	spans := newSpanCounters()
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		spans.outcome, spans.processed, spans.exported, spans.size, spans.capacity,
		buildInfo(version),
	)
	return r, spans
}

func buildInfo(version string) prometheus.Collector {
	var goVersion, revision string
	if b, ok := debug.ReadBuildInfo(); ok {
		goVersion = b.GoVersion
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "anima_build_info",
		Help:        "Version of the running program; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": goVersion, "revision": revision},
	}, func() float64 { return 1 })
}
