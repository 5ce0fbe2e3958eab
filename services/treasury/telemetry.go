package treasury

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// instruments holds the instruments of the service. None has the agent as an attribute:
// balances are queried, not exported as metrics.
type instruments struct {
	transactions metric.Int64Counter
	holds        metric.Int64Counter
	settlements  metric.Int64Counter
	overdrafts   metric.Int64Counter
	limited      metric.Int64Counter
	spent        metric.Int64Counter
	tiers        metric.Int64Counter
	received     metric.Int64Counter
	group        metric.Int64Histogram
	passes       metric.Int64Counter
	deposits     metric.Int64Counter
	freezes      metric.Int64Counter
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/treasury")
	var t instruments
	var errs [12]error
	t.transactions, errs[0] = m.Int64Counter("anima.treasury.transactions", metric.WithDescription("Transactions posted, by kind"))
	t.holds, errs[1] = m.Int64Counter("anima.treasury.holds", metric.WithDescription("Requests to create a hold, by outcome"))
	t.settlements, errs[2] = m.Int64Counter("anima.treasury.settlements", metric.WithDescription("Requests to settle a hold, by outcome"))
	t.overdrafts, errs[3] = m.Int64Counter("anima.treasury.overdrafts", metric.WithDescription("Requests refused because the account cannot pay"))
	t.spent, errs[4] = m.Int64Counter("anima.treasury.spent.micros", metric.WithDescription("Amounts settled from holds, in micro-USD, by category"))
	t.tiers, errs[5] = m.Int64Counter("anima.treasury.tier.changes", metric.WithDescription("Changes of an agent's tier, by the new one"))
	t.received, errs[11] = m.Int64Counter("anima.treasury.received.micros",
		metric.WithDescription("Amounts that agents received by deposits and purchases, in micro-USD, by kind and asset"))
	t.group, errs[6] = m.Int64Histogram("anima.treasury.group.size", metric.WithDescription("Operations that shared a commit"),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64))
	t.limited, errs[7] = m.Int64Counter("anima.treasury.limited", metric.WithDescription("Payments refused by a limit of their agent, by reason and category"))
	t.passes, errs[8] = m.Int64Counter("anima.treasury.chain.passes", metric.WithDescription("Reads of the chain, by outcome"))
	t.deposits, errs[9] = m.Int64Counter("anima.treasury.chain.deposits", metric.WithDescription("Deposits of USDC, by the state that they have got"))
	t.freezes, errs[10] = m.Int64Counter("anima.treasury.chain.freezes", metric.WithDescription("Agents whose USDC was frozen, because the ledger and the chain differ"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("instrument: %w", err)
	}
	// The counters of the chain begin at 0, so that the first value is an increase.
	t.freezes.Add(context.Background(), 0)
	t.passes.Add(context.Background(), 0, outcome(nil))
	t.deposits.Add(context.Background(), 0, metric.WithAttributes(attribute.String("state", string(chain.Included))))
	return &t, nil
}

// committed counts the changes of a group. ctx belongs to none of its requests.
func (t *instruments) committed(ctx context.Context, c ledger.Changes, operations int) {
	t.group.Record(ctx, int64(operations))
	for i := range c.Transactions {
		x := &c.Transactions[i]
		t.transactions.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", string(x.Kind))))
		if asset, amount := x.Received(); amount > 0 {
			t.received.Add(ctx, int64(amount), metric.WithAttributes(attribute.String("kind", string(x.Kind)), attribute.String("asset", cmp.Or(string(asset), "credits"))))
		}
	}
	for i := range c.Holds {
		if h := &c.Holds[i]; h.Status == api.HoldSettled {
			t.spent.Add(ctx, int64(h.Settled), metric.WithAttributes(attribute.String("category", category(h.Category))))
		}
	}
	for i := range c.Tiers {
		t.tiers.Add(ctx, 1, metric.WithAttributes(attribute.String("tier", string(c.Tiers[i].To))))
	}
}

// category maps a category to an attribute value (docs/reference/treasury.md, Categories).
func category(s string) string {
	switch s {
	case "inference", "transfer", "x402":
		return s
	}
	return "other"
}

func (t *instruments) held(ctx context.Context, of string, err error) {
	t.holds.Add(ctx, 1, outcome(err))
	if reason := api.ReasonOf(err); api.OverLimit(reason) {
		t.limited.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", reason), attribute.String("category", category(of))))
	}
	t.overdraft(ctx, "hold", err)
}

func (t *instruments) settled(ctx context.Context, err error) {
	t.settlements.Add(ctx, 1, outcome(err))
}

func (t *instruments) transferred(ctx context.Context, err error) { t.overdraft(ctx, "transfer", err) }

func (t *instruments) overdraft(ctx context.Context, operation string, err error) {
	if api.ReasonOf(err) == api.ReasonInsufficient {
		t.overdrafts.Add(ctx, 1, metric.WithAttributes(attribute.String("operation", operation)))
	}
}

func (t *instruments) chainPass(ctx context.Context, err error) { t.passes.Add(ctx, 1, outcome(err)) }

func (t *instruments) chainDeposit(ctx context.Context, d chain.Deposit) {
	t.deposits.Add(ctx, 1, metric.WithAttributes(attribute.String("state", string(d.State))))
}

func (t *instruments) frozen(ctx context.Context, _ chain.Account) { t.freezes.Add(ctx, 1) }

func outcome(err error) metric.MeasurementOption {
	o := "ok"
	if err != nil {
		o = string(api.CodeOf(err))
	}
	return metric.WithAttributes(attribute.String("outcome", o))
}
