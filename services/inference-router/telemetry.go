package router

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"

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
	t.cost, errs[1] = m.Int64Counter("anima.inference.cost", metric.WithUnit("{micro-USD}"), metric.WithDescription("Cost of model calls"))
	t.duration, errs[2] = m.Float64Histogram(genaiconv.ClientOperationDuration{}.Name(), metric.WithUnit("s"), metric.WithDescription("Time of a call to a model"))
	t.tokens, errs[3] = m.Int64Histogram(genaiconv.ClientTokenUsage{}.Name(), metric.WithUnit("{token}"), metric.WithDescription("Tokens of a call to a model"))
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("instrument: %w", err)
		}
	}
	return &t, nil
}

// call records one call to a provider. Its tokens and its cost are counted only if outcome
// is "ok".
func (t *instruments) call(ctx context.Context, provider, model, outcome string, d time.Duration, input, output int64, cost api.Micros) {
	attrs := []attribute.KeyValue{semconv.GenAIOperationNameChat, semconv.GenAIProviderNameKey.String(provider), semconv.GenAIRequestModel(model)}
	with := func(more attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributes(append(attrs[:len(attrs):len(attrs)], more)...)
	}
	t.calls.Add(ctx, 1, with(attribute.String("outcome", outcome)))
	if outcome != "ok" {
		t.duration.Record(ctx, d.Seconds(), with(semconv.ErrorTypeKey.String(outcome)))
		return
	}
	call := metric.WithAttributes(attrs...)
	t.duration.Record(ctx, d.Seconds(), call)
	t.tokens.Record(ctx, input, with(semconv.GenAITokenTypeInput))
	t.tokens.Record(ctx, output, with(semconv.GenAITokenTypeOutput))
	t.cost.Add(ctx, int64(cost), call)
}
