package treasury

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// LimitConfig holds the limits of agents that have none of their own. The names and values
// are those of the treasury policy of existing agents; amounts are cents, and -1 is no
// limit (docs/limits.md, Defaults).
type LimitConfig struct {
	MaxSingleTransfer  int64         `env:"max_single_transfer_cents" help:"the most that one transfer of an agent may be; -1: no limit"`
	MaxHourlyTransfer  int64         `env:"max_hourly_transfer_cents" help:"the most that an agent may transfer in an hour; -1: no limit"`
	MaxDailyTransfer   int64         `env:"max_daily_transfer_cents" help:"the most that an agent may transfer in a day; -1: no limit"`
	MaxTransfers       int64         `env:"max_transfers_per_turn" help:"the most transfers in one turn; -1: no limit"`
	TransferCooldown   time.Duration `env:"transfer_cooldown" help:"the least time between two transfers of an agent"`
	MinimumReserve     int64         `env:"minimum_reserve_cents" help:"the credits that a transfer or an x402 payment must leave"`
	MaxX402Payment     int64         `env:"max_x402_payment_cents" help:"the most that one x402 payment may be; an hour may have 10 times, a day 50 times as much; -1: no limit"`
	X402AllowedDomains []string      `env:"x402_allowed_domains" help:"hosts that agents may pay over x402: names, or .suffixes; empty: every host"`
	MaxInferenceDaily  int64         `env:"max_inference_daily_cents" help:"the most that the model calls of an agent may cost in a day, and the payments of the category other; an hour may have a sixth; -1: no limit"`
	MaxPeersDaily      int64         `env:"max_peers_daily_cents" help:"the most that turns of an agent may pay in a day for messages of peers and strangers; -1: no limit"`
	ConfirmationAbove  int64         `env:"require_confirmation_above_cents" help:"a transfer or x402 payment above it needs an approval; -1: none does"`
	NewPayee           int64         `env:"max_new_payee_cents" help:"the most that the first payment to a payee may be; -1: no limit"`
}

// standardLimits returns the defaults of [LimitConfig]: those of spec-money for the values
// that it has, except the list of domains, none for new payees, and ten dollars a day for
// what peers cause.
func standardLimits() LimitConfig {
	return LimitConfig{
		MaxSingleTransfer: 5000, MaxHourlyTransfer: 10_000, MaxDailyTransfer: 25_000, MaxTransfers: 2, MinimumReserve: 1000,
		MaxX402Payment: 100, MaxInferenceDaily: 50_000, MaxPeersDaily: 1000,
		ConfirmationAbove: 1000, NewPayee: api.Unlimited,
	}
}

// maxCents keeps 50 times an amount within [api.MaxMicros].
const maxCents = int64(api.MaxMicros/api.Cent) / 50

func (c *LimitConfig) validate() error {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if n, ok := v.Field(i).Interface().(int64); ok && (n < api.Unlimited || n > maxCents) {
			return fmt.Errorf("%s of the limits is %d: use 0 to %d, or -1 for no limit", v.Type().Field(i).Tag.Get("env"), n, maxCents)
		}
	}
	if c.TransferCooldown < 0 || c.MinimumReserve < 0 {
		return fmt.Errorf("transfer_cooldown and minimum_reserve_cents cannot be negative")
	}
	l := c.limits()
	return l.Check()
}

func micros(cents int64) *api.Micros {
	if cents < 0 {
		return new(api.Micros(api.Unlimited))
	}
	return new(api.Micros(cents) * api.Cent)
}

// limits returns the limits in the form of the contract.
func (c *LimitConfig) limits() api.Limits {
	amount := func(w api.Window, category string, cents int64) api.WindowLimit {
		return api.WindowLimit{Window: w, Category: category, Amount: micros(cents)}
	}
	hourly := c.MaxInferenceDaily
	if hourly > 0 {
		hourly = (hourly + 5) / 6
	}
	return api.Limits{
		Windows: []api.WindowLimit{
			amount(api.WindowCall, api.CategoryTransfer, c.MaxSingleTransfer),
			amount(api.WindowHour, api.CategoryTransfer, c.MaxHourlyTransfer),
			amount(api.WindowDay, api.CategoryTransfer, c.MaxDailyTransfer),
			{Window: api.WindowTurn, Category: api.CategoryTransfer, Payments: new(c.MaxTransfers)},
			amount(api.WindowCall, api.CategoryX402, c.MaxX402Payment),
			amount(api.WindowHour, api.CategoryX402, max(c.MaxX402Payment, 10*c.MaxX402Payment)),
			amount(api.WindowDay, api.CategoryX402, max(c.MaxX402Payment, 50*c.MaxX402Payment)),
			amount(api.WindowHour, api.CategoryInference, hourly),
			amount(api.WindowDay, api.CategoryInference, c.MaxInferenceDaily),
			amount(api.WindowHour, api.CategoryOther, hourly),
			amount(api.WindowDay, api.CategoryOther, c.MaxInferenceDaily),
			amount(api.WindowDay, api.CategoryPeer, c.MaxPeersDaily),
		},
		Reserve: micros(c.MinimumReserve), NewPayee: micros(c.NewPayee), ApproveAbove: micros(c.ConfirmationAbove),
		CooldownMS: new(c.TransferCooldown.Milliseconds()), Domains: c.X402AllowedDomains,
	}
}

func (h *handlers) getLimits(ctx context.Context, m api.GetLimits) (api.AgentLimits, error) {
	s, err := h.ledger.Limits(ctx, m.Agent, m.Turn, m.Session)
	return agentLimits(m.Agent, s), err
}

// setLimits changes the limits of an agent. Only the operator has the permission to send
// the request; see [api.AccessOf].
func (h *handlers) setLimits(ctx context.Context, m api.SetLimits) (api.AgentLimits, error) {
	s, err := h.ledger.SetLimits(ctx, ledger.SetLimitsRequest{
		ID: m.ID, Agent: m.Agent, Limits: m.Limits, Revision: m.Revision, Parent: bus.TraceParent(ctx),
	})
	if err == nil {
		h.log.InfoContext(ctx, "limits of an agent set", "agent", m.Agent, "revision", s.Own.Revision)
	}
	return agentLimits(m.Agent, s), err
}

func agentLimits(agent string, s ledger.LimitState) api.AgentLimits {
	return api.AgentLimits{
		Agent: agent, Own: s.Own.Limits, Revision: s.Own.Revision, Effective: s.Effective, Available: s.Available, Usage: s.Usage, At: s.At,
	}
}

func (h *handlers) listApprovals(ctx context.Context, m api.ListApprovals) (api.Approvals, error) {
	all, err := h.ledger.Approvals(ctx, m.Agent, m.Status)
	list := api.Approvals{Approvals: make([]api.Approval, len(all))}
	for i, a := range all {
		list.Approvals[i] = api.Approval(a)
	}
	return list, err
}

// decideApproval approves or refuses a payment. A repeated request is a Conflict, because
// the request is not open any more.
func (h *handlers) decideApproval(ctx context.Context, m api.DecideApproval) (api.Approval, error) {
	a, err := h.ledger.Decide(ctx, m.ID, m.Approve)
	if err == nil {
		h.log.InfoContext(ctx, "approval decided", "id", a.ID, "agent", a.Agent, "status", a.Status, "amount", a.Amount)
	}
	return api.Approval(a), err
}
