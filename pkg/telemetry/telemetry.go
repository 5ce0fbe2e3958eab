// Package telemetry makes a process observable: JSON logs that carry trace ids,
// traces sent over OTLP, and metrics in Prometheus' form with exemplars. It is
// the only package that speaks the OpenTelemetry SDK; everyone else takes a
// trace.TracerProvider and a metric.MeterProvider of the OpenTelemetry API.
//
// A process opens one [Exporters] and starts one [Providers] for each service
// that it hosts: six services keep their six names and share one connection,
// one queue and one metrics page. Nothing is registered globally, so a process
// may open as many as it likes.
//
// Where traces go is said by the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT
// or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT (a URL), OTEL_EXPORTER_OTLP_PROTOCOL
// (grpc, the default, or http/protobuf), OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT,
// _COMPRESSION and _CERTIFICATE, OTEL_BSP_*, OTEL_TRACES_SAMPLER,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED.
// Without an endpoint spans are still made and sampled, so that logs, messages
// and stored rows have their ids, and are sent nowhere. OTEL_SERVICE_NAME has no
// effect, because one process may host several services.
//
// Prometheus or a collector fetches metrics from [Exporters.Handler]. They are
// pushed as well, every OTEL_METRIC_EXPORT_INTERVAL (milliseconds, 60000), if
// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set or OTEL_METRICS_EXPORTER is otlp, and
// then to the former or to OTEL_EXPORTER_OTLP_ENDPOINT; never to an endpoint that
// is there for traces. What is true of the process as a whole, such as its memory,
// is on the page only.
//
// Every trace is kept unless OTEL_TRACES_SAMPLER and _ARG say otherwise; what is
// noise is for the collector to drop, which sees whole traces.
// OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental asks for the newer names
// of GenAI metrics (see [GenAI]).
//
// With [Options.Spool] a process that is killed loses no span: the next one that
// opens the folder sends what it left. Roots of work that goes on elsewhere are sent
// by whoever ends it: see [StartRoot], [Abandon], [Ending] and [Resolve].
//
// The package does not decide what is measured, and never puts the content of
// prompts, answers or tool calls into a span.
package telemetry
