package tracesdk

import "github.com/prometheus/client_golang/prometheus"

// Metrics count spans by outcome: sent, failed (the collector did not accept them),
// dropped (they ended faster than they could be sent) or restored (sent for a process
// that was killed). The same counts exist under the names of the conventions for SDK
// metrics.
type Metrics struct {
	outcome             *prometheus.CounterVec
	processed, exported *prometheus.CounterVec
	size, capacity      prometheus.Gauge // of the queue
}

// NewMetrics creates the metrics and registers them. They are zero until an [Exporter]
// uses them. It panics if r has metrics of these names.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, v := range values {
			c.WithLabelValues(v) // alerts need the zeros
		}
		return c
	}
	m := &Metrics{
		outcome: counter("anima_telemetry_spans_total", "Sampled spans that ended, by outcome.", "outcome",
			"sent", "failed", "dropped", "restored"),
		processed: counter("otel_sdk_processor_span_processed_total", "Sampled spans that ended; error_type queue_full: dropped.", "error_type",
			"", "queue_full"),
		exported: counter("otel_sdk_exporter_span_exported_total", "Spans sent to the collector; error_type export_failed: the collector did not accept them.", "error_type",
			"", "export_failed"),
		size:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "otel_sdk_processor_span_queue_size", Help: "Spans that wait to be sent."}),
		capacity: prometheus.NewGauge(prometheus.GaugeOpts{Name: "otel_sdk_processor_span_queue_capacity", Help: "Spans that may wait to be sent; 0: spans are not sent."}),
	}
	r.MustRegister(m.outcome, m.processed, m.exported, m.size, m.capacity)
	return m
}

// both returns a function that adds to two counters.
func both(a, b prometheus.Counter) func(spans int) {
	return func(spans int) {
		a.Add(float64(spans))
		b.Add(float64(spans))
	}
}
