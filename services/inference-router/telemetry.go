package router

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"
)

type instruments struct {
	calls    metric.Int64Counter
	cost     metric.Int64Counter
	duration metric.Float64Histogram
	tokens   metric.Int64Histogram
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/inference-router")
	var t instruments
	var errs [4]error
	t.calls, errs[0] = m.Int64Counter("anima.inference.calls", metric.WithDescription("Model calls by model and outcome"))
	t.cost, errs[1] = m.Int64Counter("anima.inference.cost", metric.WithUnit("{micro-USD}"), metric.WithDescription("What model calls cost"))
	t.duration, errs[2] = m.Float64Histogram("gen_ai.client.operation.duration", metric.WithUnit("s"), metric.WithDescription("Time of a model call"))
	t.tokens, errs[3] = m.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"), metric.WithDescription("Tokens of a model call"))
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("instrument: %w", err)
		}
	}
	return &t, nil
}

// call records one call to a provider; a failed one has no cost.
func (t *instruments) call(ctx context.Context, provider, model, outcome string, d time.Duration, input, output int64, cost api.Micros) {
	who := []attribute.KeyValue{
		attribute.String("gen_ai.provider.name", provider), attribute.String("gen_ai.request.model", model),
		attribute.String("gen_ai.operation.name", "chat"),
	}
	t.calls.Add(ctx, 1, metric.WithAttributes(append(who, attribute.String("outcome", outcome))...))
	t.duration.Record(ctx, d.Seconds(), metric.WithAttributes(who...))
	if outcome != "ok" {
		return
	}
	t.cost.Add(ctx, int64(cost), metric.WithAttributes(who...))
	t.tokens.Record(ctx, input, metric.WithAttributes(append(who, attribute.String("gen_ai.token.type", "input"))...))
	t.tokens.Record(ctx, output, metric.WithAttributes(append(who, attribute.String("gen_ai.token.type", "output"))...))
}
