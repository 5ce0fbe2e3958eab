package router

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/admission"
)

type instruments struct {
	meter    metric.Meter
	calls    metric.Int64Counter
	cost     metric.Int64Counter
	duration metric.Float64Histogram
	tokens   metric.Int64Histogram
	refusals metric.Int64Counter
	matrices metric.Int64Counter
	hedges   metric.Int64Counter

	options sync.Map // of callKey: *callOptions
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/inference-router")
	t := instruments{meter: m}
	var errs [7]error
	t.calls, errs[0] = m.Int64Counter("anima.inference.calls", metric.WithDescription("Model calls by model and outcome"))
	t.cost, errs[1] = m.Int64Counter("anima.inference.cost", metric.WithUnit("{micro-USD}"), metric.WithDescription("Cost of model calls"))
	t.duration, errs[2] = m.Float64Histogram(genaiconv.ClientOperationDuration{}.Name(), metric.WithUnit("s"), metric.WithDescription("Time of a call to a model"))
	t.tokens, errs[3] = m.Int64Histogram(genaiconv.ClientTokenUsage{}.Name(), metric.WithUnit("{token}"), metric.WithDescription("Tokens of a call to a model"))
	t.refusals, errs[4] = m.Int64Counter("anima.inference.refusals", metric.WithDescription("Model calls that were refused because too many waited or their requests would need too much memory"))
	t.matrices, errs[5] = m.Int64Counter("anima.inference.matrix", metric.WithDescription("Stored routing matrices by outcome: used, or refused as invalid"))
	t.hedges, errs[6] = m.Int64Counter("anima.inference.hedges", metric.WithDescription("Second attempts of model calls by the provider of the first attempt and outcome: made, and then won or lost if it or the first attempt had content first; or the reason why none was made"))
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
	key := callKey{provider, model, outcome}
	found, ok := t.options.Load(key)
	if !ok {
		found, _ = t.options.LoadOrStore(key, key.options())
	}
	o := found.(*callOptions) //nolint:forcetypeassert // the map has no other type
	t.calls.Add(ctx, 1, o.outcome)
	t.duration.Record(ctx, d.Seconds(), o.duration)
	if outcome == "ok" {
		t.tokens.Record(ctx, input, o.input)
		t.tokens.Record(ctx, output, o.output)
		t.cost.Add(ctx, int64(cost), o.duration)
	}
}

// callKey is what the attributes of the metrics of a call depend on. There are as many keys
// as time series.
type callKey struct{ provider, model, outcome string }

// callOptions holds the attributes of the metrics of a call, which are made once: they cost
// more than the metrics.
type callOptions struct{ outcome, duration, input, output metric.MeasurementOption }

func (k callKey) options() *callOptions {
	attrs := []attribute.KeyValue{semconv.GenAIOperationNameChat, semconv.GenAIProviderNameKey.String(k.provider), semconv.GenAIRequestModel(k.model)}
	with := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(slices.Clone(attrs), more...)...))
	}
	o := &callOptions{outcome: with(attribute.String("outcome", k.outcome)), duration: with(), input: with(semconv.GenAITokenTypeInput), output: with(semconv.GenAITokenTypeOutput)}
	if k.outcome != "ok" {
		o.duration = with(semconv.ErrorTypeKey.String(k.outcome))
	}
	return o
}

// observe reports the calls in progress and those that wait for their beginning.
func (t *instruments) observe(g *admission.Gate) error {
	active, waiting := metric.WithAttributes(attribute.String("state", "active")), metric.WithAttributes(attribute.String("state", "waiting"))
	_, err := t.meter.Int64ObservableGauge("anima.inference.load", metric.WithDescription("Model calls in progress and waiting for their beginning"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			a, w := g.Load()
			o.Observe(int64(a), active)
			o.Observe(int64(w), waiting)
			return nil
		}))
	if err != nil {
		return fmt.Errorf("instrument: %w", err)
	}
	for _, p := range []admission.Priority{admission.Normal, admission.Urgent, admission.Background} {
		t.refusals.Add(context.Background(), 0, refusedBy(p)) // so that the first refusal is an increase
	}
	return nil
}

func refusedBy(p admission.Priority) metric.MeasurementOption {
	return metric.WithAttributes(attribute.Stringer("priority", p))
}

// refused counts a refused call.
func (t *instruments) refused(p admission.Priority) {
	t.refusals.Add(context.Background(), 1, refusedBy(p))
}

// hedge records n second attempts of calls, or why none was made. provider is that of the
// first attempt.
func (t *instruments) hedge(ctx context.Context, provider, outcome string, n int64) {
	t.hedges.Add(ctx, n, metric.WithAttributes(semconv.GenAIProviderNameKey.String(provider), attribute.String("outcome", outcome)))
}

// matrix records that a stored routing matrix was used or refused.
func (t *instruments) matrix(ctx context.Context, outcome string) {
	t.matrices.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}
