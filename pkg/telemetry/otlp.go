package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// target is where spans are sent; the zero value is nowhere. Headers, timeouts,
// compression and certificates are left to the exporters, which read their own
// variables.
type target struct {
	url  string // complete for http/protobuf; gRPC uses scheme and host
	http bool
}

func targetOf(env func(string) (string, bool)) (target, error) {
	get := func(names ...string) (name, value string) {
		for _, name := range names {
			if v, _ := env(name); strings.TrimSpace(v) != "" {
				return name, strings.TrimSpace(v)
			}
		}
		return names[len(names)-1], ""
	}
	if name, v := get("OTEL_SDK_DISABLED"); v != "" {
		off, err := strconv.ParseBool(v)
		if err != nil {
			return target{}, fmt.Errorf("%s=%q: want true or false", name, v)
		}
		if off {
			return target{}, nil
		}
	}
	switch name, v := get("OTEL_TRACES_EXPORTER"); v {
	case "", "otlp":
	case "none":
		return target{}, nil
	default:
		return target{}, fmt.Errorf("%s=%q: want otlp or none", name, v)
	}

	var t target
	switch name, v := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); v {
	case "", "grpc":
	case "http/protobuf":
		t.http = true
	default:
		return target{}, fmt.Errorf("%s=%q: want grpc or http/protobuf", name, v)
	}
	name, v := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	if v == "" {
		return target{}, nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return target{}, fmt.Errorf("%s: want a URL, such as http://127.0.0.1:4317", name) // it may hold a password
	}
	if t.http && name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1", "traces") // this variable is the base of all signals
	}
	t.url = u.String()
	return t, nil
}

// open makes the exporter without waiting for a connection: the collector may
// come later.
func (t target) open(ctx context.Context) (sdktrace.SpanExporter, error) {
	if t.http {
		return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(t.url))
	}
	return otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.url))
}

// batching is how spans wait to be sent.
type batching struct {
	queue, batch, delay int // spans, spans, milliseconds
}

func batchingOf(env func(string) (string, bool)) (batching, error) {
	// The SDK's own defaults, 2,048 spans and 5 s, lose spans at a few hundred
	// turns a second and make people wait for the trace they just caused.
	// 1,024 spans stay below the 4 MiB that collectors take in one message.
	b := batching{queue: 16_384, batch: 1_024, delay: 1_000}
	for name, at := range map[string]*int{
		"OTEL_BSP_MAX_QUEUE_SIZE":        &b.queue,
		"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": &b.batch,
		"OTEL_BSP_SCHEDULE_DELAY":        &b.delay,
	} {
		v, _ := env(name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return batching{}, fmt.Errorf("%s=%q: want a whole number from 1", name, v)
		}
		*at = n
	}
	b.batch = min(b.batch, b.queue)
	return b, nil
}
