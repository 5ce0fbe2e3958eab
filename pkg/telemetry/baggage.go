package telemetry

import (
	"context"
	"net/url"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
)

// longestBaggage is the longest id, in bytes, that is taken from baggage:
// it comes with messages and is repeated on every span and log line.
const longestBaggage = 128

// WithTurn puts the agent and the turn into ctx as its baggage, from where they
// reach every span, log line and message below it, in place of any baggage that
// was there. An empty id is left out, and one that is no UTF-8.
//
// They are W3C baggage on the wire and two strings in here: every message has them,
// and the general form costs ten times as much.
func WithTurn(ctx context.Context, agent, turn string) context.Context {
	ids := turnIDs{agent, turn}
	for _, id := range []*string{&ids.agent, &ids.turn} {
		if !utf8.ValidString(*id) {
			*id = ""
		}
	}
	if baggage.FromContext(ctx).Len() > 0 {
		ctx = baggage.ContextWithoutBaggage(ctx)
	}
	return context.WithValue(ctx, turnKey{}, ids)
}

type turnKey struct{} // turnIDs

type turnIDs struct{ agent, turn string }

// Turn returns the agent and the turn in the baggage of ctx, empty when unknown.
func Turn(ctx context.Context) (agent, turn string) {
	if ids, ok := ctx.Value(turnKey{}).(turnIDs); ok {
		return short(ids.agent), short(ids.turn)
	}
	b := baggage.FromContext(ctx)
	if b.Len() == 0 {
		return "", ""
	}
	return short(b.Member(string(AgentID)).Value()), short(b.Member(string(TurnID)).Value())
}

func short(id string) string {
	if len(id) > longestBaggage {
		return ""
	}
	return id
}

// Propagator reads and writes W3C trace context and the two ids of [WithTurn],
// and drops all other baggage in both directions. It is for messages among our
// own services; a request to a foreign host carries neither.
func Propagator() propagation.TextMapPropagator {
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, turnBaggage{})
}

type turnBaggage struct{ propagation.Baggage }

func (turnBaggage) Inject(ctx context.Context, carrier propagation.TextMapCarrier) {
	agent, turn := Turn(ctx)
	var b []byte
	for _, id := range []struct {
		key   attribute.Key
		value string
	}{{AgentID, agent}, {TurnID, turn}} {
		if id.value == "" {
			continue
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = appendEscaped(append(append(b, id.key...), '='), id.value)
	}
	if len(b) > 0 {
		carrier.Set("baggage", string(b))
	}
}

// appendEscaped appends a value as baggage wants it.
func appendEscaped(b []byte, v string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(v) {
		c := v[i]
		if c > ' ' && c < 0x7f && c != '"' && c != ',' && c != ';' && c != '\\' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return b
}

func (turnBaggage) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	header := carrier.Get("baggage")
	if header == "" {
		return ctx
	}
	var ids turnIDs
	for member := range strings.SplitSeq(header, ",") {
		member, _, _ = strings.Cut(member, ";") // properties
		key, value, _ := strings.Cut(member, "=")
		value = strings.TrimSpace(value)
		if strings.Contains(value, "%") {
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				continue
			}
		}
		switch strings.TrimSpace(key) {
		case string(AgentID):
			ids.agent = short(value)
		case string(TurnID):
			ids.turn = short(value)
		}
	}
	return WithTurn(ctx, ids.agent, ids.turn)
}
