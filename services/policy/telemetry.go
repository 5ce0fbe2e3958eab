package policy

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"
)

type instruments struct {
	decisions metric.Int64Counter
	duration  metric.Float64Histogram
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/policy")
	var t instruments
	var errs [2]error
	t.decisions, errs[0] = m.Int64Counter("anima.policy.decisions", metric.WithDescription("Decisions by action and code"))
	t.duration, errs[1] = m.Float64Histogram("anima.policy.evaluation.duration", metric.WithUnit("s"), metric.WithDescription("Duration of the evaluation of rules, without I/O"))
	return &t, errors.Join(errs[:]...)
}

func (t *instruments) decided(ctx context.Context, action api.Action, code string, d time.Duration) {
	t.decisions.Add(ctx, 1, metric.WithAttributes(attribute.String("action", string(action)), attribute.String("code", code)))
	t.duration.Record(ctx, d.Seconds())
}
