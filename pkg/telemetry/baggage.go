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

// longestBaggage is the length of the longest id, in bytes, that is accepted from
// baggage: baggage arrives with messages and is repeated on every span and log line.
const longestBaggage = 128

// WithTurn stores the agent and the turn as the baggage of ctx, in place of any other
// baggage. They are added to every span, log line and message that uses the context. An
// id that is empty or not valid UTF-8 is left out.
//
// The ids are W3C baggage on the wire and two strings in the process: every message has
// them, and the general form costs ten times as much.
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

type turnKey struct{} // value: turnIDs

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

// Propagator returns a propagator of W3C trace context and the two ids of [WithTurn],
// which drops all other baggage in both directions. It is for messages between the
// services; requests to other hosts carry neither, see [NewTransport].
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

// appendEscaped appends a value, percent-encoded as W3C baggage requires.
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
		member, _, _ = strings.Cut(member, ";") // drop the properties
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
