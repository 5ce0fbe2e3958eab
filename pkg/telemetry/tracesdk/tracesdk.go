// Package tracesdk implements the spans of the OpenTelemetry API and exports them over
// OTLP. It is used by package telemetry only, in the place of the tracer provider and the
// batch processor of the OpenTelemetry SDK.
//
// A process has one [Exporter] and one [Provider] for each service. A span is encoded for
// OTLP once, when it ends; the exporter assembles its requests from these bytes. With
// [Options.Spool] the encoded spans are in a memory-mapped file until the collector has
// accepted them, so that a process that is killed loses no span: the next process that
// opens the folder sends the spans of the killed one.
//
// ADR 9 has the reasons for an implementation besides that of the SDK.
package tracesdk

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
)

// Options configure an [Exporter]. The fields without a remark are required.
type Options struct {
	Client  otlptrace.Client // a started client; Shutdown stops it
	Log     *slog.Logger     // logs failures to send
	Metrics *Metrics

	Queue int           // limit of waiting spans; further ones are dropped
	Batch int           // limit of the spans in one request, at most Queue
	Delay time.Duration // a span waits at most this long before it is sent
	// Spool is the folder of the files with spans that were not sent. It is created if
	// necessary, may be shared by processes, and takes 16 MiB for each. "" keeps spans in
	// memory only.
	Spool string
	// Work is the attribute that names the work of a root span to [Provider.Resolve].
	Work attribute.Key
	// Baggage returns up to two attributes that every span started with ctx gets, unless
	// the span has the attribute itself.
	Baggage func(ctx context.Context) [2]Member
}

// Member is one entry of the baggage. The zero value is no entry.
type Member struct {
	Key   attribute.Key
	Value string // "": no entry
}
