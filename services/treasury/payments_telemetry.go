package treasury

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
)

// paymentInstruments holds the instruments of payments over HTTP 402.
type paymentInstruments struct {
	payments metric.Int64Counter
	sales    metric.Int64Counter
}

func newPaymentInstruments(p metric.MeterProvider) (*paymentInstruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/treasury")
	var t paymentInstruments
	var errs [2]error
	t.payments, errs[0] = m.Int64Counter("anima.treasury.payments", metric.WithDescription("Changes of the state of payments that agents make, by the new state"))
	t.sales, errs[1] = m.Int64Counter("anima.treasury.paywall.requests", metric.WithDescription("Requests to routes that cost money, by outcome"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("instrument: %w", err)
	}
	// Both begin at 0, so that a rate is known from the first payment on.
	t.payments.Add(context.Background(), 0, metric.WithAttributes(attribute.String("state", string(api.PaymentSettled))))
	t.sales.Add(context.Background(), 0, metric.WithAttributes(attribute.String("outcome", paywall.OutcomeServed)))
	return &t, nil
}

func (t *paymentInstruments) changed(ctx context.Context, p *pay.Payment) {
	t.payments.Add(ctx, 1, metric.WithAttributes(attribute.String("state", string(p.State))))
}

func (t *paymentInstruments) sold(ctx context.Context, outcome string) {
	t.sales.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}
