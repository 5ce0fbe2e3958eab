package telemetry

import (
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// buckets gives histograms their bounds. The SDK's defaults are made for
// milliseconds, and would put every duration in seconds into the first two.
// Bounds that an instrument asks for itself are overruled for those.
func buckets(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
	var bounds []float64
	switch {
	case i.Kind != sdkmetric.InstrumentKindHistogram:
	case i.Name == MetricOperationDuration:
		bounds = series(0.01, 2, 14) // to 81.92
	case i.Name == MetricTokenUsage:
		bounds = series(1, 4, 14) // to 67,108,864
	case i.Name == MetricTimeToFirstChunk, i.Name == MetricTimePerOutputChunk:
		bounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
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

func series(first, factor float64, n int) []float64 {
	return prometheus.ExponentialBuckets(first, factor, n)
}

// newProcessRegistry holds what is true of the process as a whole. The counter
// says what became of spans: sent, failed (the collector did not take them) or
// dropped (they came faster than they could be sent).
func newProcessRegistry(version string) (*prometheus.Registry, *prometheus.CounterVec) {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "anima_telemetry_spans_total",
		Help: "Sampled spans that ended, by what became of them.",
	}, []string{"outcome"})
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		spans,
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
		Help:        "What is running; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": goVersion, "revision": revision},
	}, func() float64 { return 1 })
}
