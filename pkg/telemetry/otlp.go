package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// target is the destination of spans or metrics; the zero value is none. The exporters
// read the variables for headers, timeouts, compression and certificates themselves.
type target struct {
	url  string // complete for http/protobuf; gRPC uses scheme and host
	http bool
}

const baseEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT" // of all signals

// environment looks up variables. As the conventions require, a blank value is not set.
type environment func(string) (string, bool)

// first returns the first of names that is set, else the last name and "".
func (env environment) first(names ...string) (name, value string) {
	for _, name := range names {
		if v, _ := env(name); strings.TrimSpace(v) != "" {
			return name, strings.TrimSpace(v)
		}
	}
	return names[len(names)-1], ""
}

// positive returns the value of a variable that is a number of units from 1.
func (env environment) positive(name, unit string, standard int) (int, error) {
	_, v := env.first(name)
	if v == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s=%q: want a whole number of %s from 1", name, v, unit)
	}
	return n, nil
}

func (env environment) milliseconds(name string, standard int) (time.Duration, error) {
	ms, err := env.positive(name, "milliseconds", standard)
	return time.Duration(ms) * time.Millisecond, err
}

// settings are the values of the OTEL_ variables that the exporters do not read themselves.
type settings struct {
	traces, metrics target
	sampler         sdktrace.Sampler
	queue, batch    int           // limits of the queue and of a batch, in spans
	delay           time.Duration // the longest time that a span waits
	interval        time.Duration // between two pushes of metrics
}

// settingsOf returns the settings, or the first error.
func settingsOf(env environment) (s settings, err error) {
	var off bool
	if name, v := env.first("OTEL_SDK_DISABLED"); v != "" {
		if off, err = strconv.ParseBool(v); err != nil {
			return s, fmt.Errorf("%s=%q: want true or false", name, v)
		}
	}
	var errs [7]error // in the order in which one is reported
	if !off {
		s.traces, errs[0] = targetOf(env)
		s.metrics, errs[5] = metricTargetOf(env)
	}
	s.sampler, errs[1] = samplerOf(env)
	// The SDK's defaults, 2,048 spans and 5 s, lose spans at a few hundred turns a second
	// and delay the trace of an interactive call. 1,024 spans are smaller than the 4 MiB
	// that collectors accept in one message.
	s.queue, errs[2] = env.positive("OTEL_BSP_MAX_QUEUE_SIZE", "spans", 16_384)
	s.batch, errs[3] = env.positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "spans", 1_024)
	s.batch = min(s.batch, s.queue)
	s.delay, errs[4] = env.milliseconds("OTEL_BSP_SCHEDULE_DELAY", 1_000)
	s.interval, errs[6] = env.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", 60_000)
	return s, cmp.Or(errs[:]...)
}

// targetOf returns the destination of spans.
func targetOf(env environment) (target, error) {
	switch name, v := env.first("OTEL_TRACES_EXPORTER"); v {
	case "", "otlp":
	case "none":
		return target{}, nil
	default:
		return target{}, fmt.Errorf("%s=%q: want otlp or none", name, v)
	}
	return env.target("TRACES", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", baseEndpoint)
}

// metricTargetOf returns the destination to which metrics are pushed, besides the metrics
// page. The base endpoint alone does not enable it: it may be a Jaeger, which accepts no
// metrics.
func metricTargetOf(env environment) (target, error) {
	const own = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	name, v := env.first("OTEL_METRICS_EXPORTER")
	push := false
	for _, one := range strings.Split(v, ",") {
		switch strings.TrimSpace(one) {
		case "":
			_, set := env.first(own)
			push = push || v == "" && set != ""
		case "otlp":
			push = true
		case "prometheus": // the page always exists
		case "none":
		default:
			return target{}, fmt.Errorf("%s=%q: want otlp, prometheus or none", name, v)
		}
	}
	if !push {
		return target{}, nil
	}
	t, err := env.target("METRICS", own, baseEndpoint)
	if err == nil && t == (target{}) {
		return target{}, fmt.Errorf("%s=%q: want %s or %s set as well, for the endpoint", name, v, own, baseEndpoint)
	}
	return t, err
}

// target reads the endpoint of a signal from the first variable that is set.
func (env environment) target(signal string, endpoints ...string) (target, error) {
	var t target
	switch name, v := env.first("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); v {
	case "", "grpc":
	case "http/protobuf":
		t.http = true
	default:
		return target{}, fmt.Errorf("%s=%q: want grpc or http/protobuf", name, v)
	}
	name, v := env.first(endpoints...)
	if v == "" {
		return target{}, nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return target{}, fmt.Errorf("%s: want a URL, such as http://127.0.0.1:4317", name) // the error must not contain the value, which may hold a password
	}
	if t.http && name == baseEndpoint {
		u = u.JoinPath("v1", strings.ToLower(signal))
	}
	t.url = u.String()
	return t, nil
}

// open creates the exporter without waiting for a connection: the collector may start
// later.
func (t target) open(ctx context.Context) (otlptrace.Client, error) {
	client := otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(t.url))
	if t.http {
		client = otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(t.url))
	}
	return client, client.Start(ctx)
}

// openMetrics is open for metrics.
func (t target) openMetrics(ctx context.Context) (sdkmetric.Exporter, error) {
	if t.http {
		return otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(t.url))
	}
	return otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(t.url))
}
