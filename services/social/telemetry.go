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
	signIns  metric.Int64Counter
	keys     metric.Int64Counter
}

func newInstruments(p metric.MeterProvider) (t instruments, _ error) {
	m := p.Meter("github.com/anima-run/anima/services/social")
	var errs [4]error
	t.messages, errs[0] = m.Int64Counter("anima.social.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages received, by outcome: received, duplicate or refused."))
	t.claimed, errs[1] = m.Int64Counter("anima.social.claimed", metric.WithUnit("{message}"),
		metric.WithDescription("Messages claimed by runs, including repeated claims."))
	t.signIns, errs[2] = m.Int64Counter("anima.social.sign_ins", metric.WithUnit("{sign-in}"),
		metric.WithDescription("Sign-ins of wallets, by outcome: accepted or refused."))
	t.keys, errs[3] = m.Int64Counter("anima.social.key_checks", metric.WithUnit("{check}"),
		metric.WithDescription("Checks of API keys that the HTTP edges had not cached, by outcome: accepted or refused."))
	return t, errors.Join(errs[:]...)
}

func (t instruments) received(ctx context.Context, outcome string) {
	t.messages.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

func (t instruments) claims(ctx context.Context, n int) { t.claimed.Add(ctx, int64(n)) }

func (t instruments) signedIn(ctx context.Context, err error)      { count(ctx, t.signIns, err) }
func (t instruments) authenticated(ctx context.Context, err error) { count(ctx, t.keys, err) }

func count(ctx context.Context, c metric.Int64Counter, err error) {
	outcome := "accepted"
	if err != nil {
		outcome = "refused"
	}
	c.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}
