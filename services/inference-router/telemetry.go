package router

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

type instruments struct {
	calls metric.Int64Counter
	cost  metric.Int64Counter
	genAI *telemetry.GenAI
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/inference-router")
	var t instruments
	var errs [3]error
	t.calls, errs[0] = m.Int64Counter("anima.inference.calls", metric.WithDescription("Model calls by model and outcome"))
	t.cost, errs[1] = m.Int64Counter("anima.inference.cost", metric.WithUnit("{micro-USD}"), metric.WithDescription("What model calls cost"))
	t.genAI, errs[2] = telemetry.NewGenAI(p)
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("instrument: %w", err)
		}
	}
	return &t, nil
}

// call records one call to a provider. Its cost is counted only if outcome is "ok".
func (t *instruments) call(ctx context.Context, provider, model, outcome string, d time.Duration, input, output int64, cost api.Micros) {
	c := telemetry.Call{Operation: telemetry.OperationChat, Provider: provider, Model: model, Duration: d, Usage: telemetry.Usage{Input: input, Output: output}}
	if outcome != "ok" {
		c.ErrorType = outcome
	}
	t.genAI.Call(ctx, c)
	who := []attribute.KeyValue{
		telemetry.GenAIProviderName.String(provider), telemetry.GenAIRequestModel.String(model), telemetry.GenAIOperationName.String(c.Operation),
	}
	t.calls.Add(ctx, 1, metric.WithAttributes(append(who, attribute.String("outcome", outcome))...))
	if outcome == "ok" {
		t.cost.Add(ctx, int64(cost), metric.WithAttributes(who...))
	}
}
