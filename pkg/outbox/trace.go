package outbox

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"

	"github.com/anima-run/anima/pkg/telemetry"
)

// traceOf is what the column traceparent holds: the W3C traceparent of the span in
// ctx, and on a second line the W3C baggage that names the agent and the turn, if
// there is any. A column more would be a migration more in every store. A relay
// of a release that does not know the second line finds no trace in such a row and
// publishes it all the same.
func traceOf(ctx context.Context) string {
	c := propagation.MapCarrier{}
	telemetry.Propagator().Inject(ctx, c)
	if c["baggage"] == "" {
		return c["traceparent"]
	}
	return c["traceparent"] + "\n" + c["baggage"]
}

// continued takes apart what traceOf made, and returns ctx with the baggage.
func continued(ctx context.Context, stored string) (traceparent string, _ context.Context) {
	traceparent, baggage, _ := strings.Cut(stored, "\n")
	return traceparent, telemetry.Propagator().Extract(ctx, propagation.MapCarrier{"baggage": baggage})
}
