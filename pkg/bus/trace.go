package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

// carrier reads and writes trace context in NATS headers. OpenTelemetry's carrier for
// HTTP headers writes Traceparent, which a case-sensitive reader does not find.
type carrier nats.Header

func (c carrier) Get(key string) string {
	if v, ok := c[key]; ok && len(v) > 0 {
		return v[0]
	}
	for k, v := range c {
		if len(v) > 0 && strings.EqualFold(k, key) {
			return v[0]
		}
	}
	return ""
}

func (c carrier) Set(key, value string) { c[key] = []string{value} }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// propagator propagates trace context and the ids of agent and turn, nothing else.
var propagator = telemetry.Propagator()

func inject(ctx context.Context, h nats.Header) {
	propagator.Inject(ctx, carrier(h))
}

// extract returns ctx with the sender's span as its remote parent.
func extract(ctx context.Context, h nats.Header) context.Context {
	if len(h) == 0 {
		return ctx
	}
	return propagator.Extract(ctx, carrier(h))
}

// TraceParent returns the W3C traceparent of the span in ctx, "" without one. Stores keep
// it in a row, so that work that is resumed from the row continues the same trace.
func TraceParent(ctx context.Context) string {
	h := nats.Header{}
	inject(ctx, h)
	return carrier(h).Get("traceparent")
}

// WithTraceParent returns ctx with the span of a stored traceparent as its
// remote parent.
func WithTraceParent(ctx context.Context, traceparent string) context.Context {
	return extract(ctx, nats.Header{"traceparent": {traceparent}})
}

// failed records the kind of err on the span and returns err. The message is not recorded:
// it may quote the request.
func failed(span trace.Span, err error) error {
	if err == nil {
		return nil
	}
	e := api.Wire(err)
	kind := string(e.Code)
	if e.Reason != "" {
		kind = e.Reason
	}
	telemetry.Fail(span, kind, kind)
	return err
}

type instruments struct {
	duration  metric.Float64Histogram
	redeliver metric.Int64Counter
	givenUp   metric.Int64Counter
}

func newInstruments(p metric.MeterProvider) (instruments, error) {
	m := p.Meter("github.com/anima-run/anima/pkg/bus")
	var t instruments
	var errs [3]error
	t.duration, errs[0] = m.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Time to handle a message or a request"),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60))
	t.redeliver, errs[1] = m.Int64Counter("anima.bus.redeliveries", metric.WithDescription("Messages delivered more than once"))
	t.givenUp, errs[2] = m.Int64Counter("anima.bus.given_up", metric.WithDescription("Messages terminated without success"))
	if err := errors.Join(errs[:]...); err != nil {
		return t, fmt.Errorf("instrument: %w", err)
	}
	// The counters begin at 0, so that the first message is an increase: alerts ask for one.
	t.redeliver.Add(context.Background(), 0)
	t.givenUp.Add(context.Background(), 0)
	return t, nil
}

func (b *Bus) observe(ctx context.Context, n *names, began time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = string(api.CodeOf(err))
	}
	option, known := n.outcomes[outcome]
	if !known {
		option = n.outcomes[string(api.Internal)]
	}
	b.tel.duration.Record(ctx, time.Since(began).Seconds(), option)
}
