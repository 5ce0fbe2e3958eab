package social

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type instruments struct {
	messages metric.Int64Counter
	claimed  metric.Int64Counter
}

func newInstruments(p metric.MeterProvider) (t instruments, _ error) {
	m := p.Meter("github.com/anima-run/anima/services/social")
	var errs [2]error
	t.messages, errs[0] = m.Int64Counter("anima.social.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages received, by outcome: received, duplicate or refused."))
	t.claimed, errs[1] = m.Int64Counter("anima.social.claimed", metric.WithUnit("{message}"),
		metric.WithDescription("Messages claimed by runs, including repeated claims."))
	return t, errors.Join(errs[:]...)
}

func (t instruments) received(ctx context.Context, outcome string) {
	t.messages.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

func (t instruments) claims(ctx context.Context, n int) { t.claimed.Add(ctx, int64(n)) }
