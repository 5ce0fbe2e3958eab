package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// longestBaggage is the longest id, in bytes, that is taken from baggage:
// it comes with messages and is repeated on every span and log line.
const longestBaggage = 128

// WithTurn puts the agent and the turn into the baggage of ctx, from where they
// reach every span, log line and message below it, in place of any baggage that
// was there. An empty id is left out.
func WithTurn(ctx context.Context, agent, turn string) context.Context {
	var members []baggage.Member
	for key, value := range map[attribute.Key]string{AgentID: agent, TurnID: turn} {
		// Only invalid UTF-8 is refused, and that is no id.
		if m, err := baggage.NewMemberRaw(string(key), value); err == nil && value != "" {
			members = append(members, m)
		}
	}
	b, err := baggage.New(members...)
	if err != nil {
		return baggage.ContextWithoutBaggage(ctx)
	}
	return baggage.ContextWithBaggage(ctx, b)
}

// Turn returns the agent and the turn in the baggage of ctx, empty when unknown.
func Turn(ctx context.Context) (agent, turn string) {
	b := baggage.FromContext(ctx)
	if b.Len() == 0 {
		return "", ""
	}
	return allowed(b, AgentID), allowed(b, TurnID)
}

func allowed(b baggage.Baggage, key attribute.Key) string {
	v := b.Member(string(key)).Value()
	if len(v) > longestBaggage {
		return ""
	}
	return v
}

// Propagator reads and writes W3C trace context and the two ids of [WithTurn],
// and drops all other baggage in both directions. It is for messages among our
// own services; a request to a foreign host carries neither.
func Propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, turnBaggage{})
}

type turnBaggage struct{ propagation.Baggage }

func (p turnBaggage) Inject(ctx context.Context, carrier propagation.TextMapCarrier) {
	agent, turn := Turn(ctx)
	p.Baggage.Inject(WithTurn(ctx, agent, turn), carrier)
}

func (p turnBaggage) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	if carrier.Get("baggage") == "" {
		return ctx
	}
	agent, turn := Turn(p.Baggage.Extract(ctx, carrier))
	return WithTurn(ctx, agent, turn)
}

// stampTurn is the span processor that copies the two ids onto every span.
type stampTurn struct{}

func (stampTurn) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	agent, turn := Turn(ctx)
	if agent != "" {
		s.SetAttributes(AgentID.String(agent))
	}
	if turn != "" {
		s.SetAttributes(TurnID.String(turn))
	}
}

func (stampTurn) OnEnd(sdktrace.ReadOnlySpan)      {}
func (stampTurn) Shutdown(context.Context) error   { return nil }
func (stampTurn) ForceFlush(context.Context) error { return nil }
