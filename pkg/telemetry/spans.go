package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of every span of a turn. They are also the keys of its baggage. They must
// not be attributes of metrics, which have closed sets of values.
const (
	AgentID = attribute.Key("automaton.agent.id")
	TurnID  = attribute.Key("automaton.turn.id")
)

// PaymentID is the attribute of the span of a payment. Collectors that sample keep its trace.
const PaymentID = attribute.Key("automaton.payment.id")

// MarkPayment records the id of a payment on the span in ctx.
func MarkPayment(ctx context.Context, id string) {
	trace.SpanFromContext(ctx).SetAttributes(PaymentID.String(id))
}

// Chat returns the name and the options of the span of one call to a model. Each retry
// and each fallback is a separate span. Attributes that samplers use are set at the
// start, as the conventions require.
func Chat(provider, model string) (string, []trace.SpanStartOption) {
	return "chat " + model, []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.GenAIOperationNameChat, semconv.GenAIProviderNameKey.String(provider), semconv.GenAIRequestModel(model)),
	}
}

// Fail marks the span as failed. errType is one of a closed set, such as policy_denied;
// reason is for operators and must contain neither content nor secrets. A span that
// succeeded keeps its status unset.
func Fail(span trace.Span, errType, reason string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(errType))
	span.SetStatus(codes.Error, reason)
}
