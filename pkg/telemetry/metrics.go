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

// newProcessRegistry returns the registry of the metrics of the process as a whole.
func newProcessRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(version),
	)
	return r
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
