// Package telemetry makes a process observable: JSON logs with trace ids, traces sent
// over OTLP, and metrics in Prometheus' format with exemplars. It is the only package
// that uses the OpenTelemetry SDK; other packages take a trace.TracerProvider and a
// metric.MeterProvider of the OpenTelemetry API.
//
// A process opens one [Exporters] and starts one [Providers] for each service that it
// runs: six services keep their six names and share one connection, one queue and one
// metrics page. Nothing is registered globally, so a process may open several Exporters.
//
// Standard variables configure the destination of traces: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT (a URL), OTEL_EXPORTER_OTLP_PROTOCOL (grpc, the
// default, or http/protobuf), OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION and
// _CERTIFICATE, OTEL_BSP_*, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED. Without an endpoint spans are created
// and sampled but not sent, so that logs, messages and stored rows still have trace ids.
// OTEL_SERVICE_NAME has no effect, because one process may run several services.
//
// Prometheus or a collector fetches metrics from [Exporters.MetricsHandler]. They are
// also pushed, every OTEL_METRIC_EXPORT_INTERVAL (milliseconds, default 60000), if
// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set or OTEL_METRICS_EXPORTER is otlp. The
// destination is the former, or OTEL_EXPORTER_OTLP_ENDPOINT; never the endpoint for
// traces. Metrics of the process as a whole, such as its memory, are on the page only.
//
// Every trace is sampled unless OTEL_TRACES_SAMPLER and _ARG are set; the collector,
// which has whole traces, drops unwanted ones.
//
// With [Options.Spool] a process that is killed loses no span: the next process that
// opens the folder sends them. The root span of work that another process resumes is sent
// by the process that ends the work: see [StartRoot], [Abandon], [Ending] and [Resolve].
//
// The services decide which spans and instruments they create. The package must never put
// the content of prompts, answers or tool calls into a span.
package telemetry
