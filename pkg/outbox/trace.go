package outbox

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"

	"github.com/anima-run/anima/pkg/telemetry"
)

// traceOf returns the value of the column traceparent: the W3C traceparent of the span
// in ctx and, if the baggage has an agent or a turn, a second line with the W3C
// baggage. A separate column would need a migration of every store. A relay of a
// release that does not support the second line finds no trace in such a row and
// publishes the message without one.
func traceOf(ctx context.Context) string {
	c := propagation.MapCarrier{}
	telemetry.Propagator().Inject(ctx, c)
	if c["baggage"] == "" {
		return c["traceparent"]
	}
	return c["traceparent"] + "\n" + c["baggage"]
}

// continued splits a value of traceOf. It returns the traceparent, and ctx with the
// baggage.
func continued(ctx context.Context, stored string) (traceparent string, _ context.Context) {
	traceparent, baggage, _ := strings.Cut(stored, "\n")
	return traceparent, telemetry.Propagator().Extract(ctx, propagation.MapCarrier{"baggage": baggage})
}
