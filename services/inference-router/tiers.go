package router

import (
	"context"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

const (
	tierFor  = 2 * time.Second // how long the tier of a settlement is used for the next calls of its agent
	maxTiers = 4096            // the most agents whose tier is kept; a full cache is emptied

	// balanceTimeout is how long a call waits for the tier of its agent. Without it the call
	// is routed like one of an agent with an unknown balance.
	balanceTimeout = 2 * time.Second
)

// tiers holds the tiers that treasury has reported with settlements. The tier only selects
// models: treasury decides each payment by the balance itself. The zero value is ready to
// use.
type tiers struct {
	mu  sync.Mutex
	all map[string]knownTier // by agent
}

type knownTier struct {
	tier api.Tier
	at   time.Time
}

// set records the tier of an agent at a time.
func (t *tiers) set(agent string, tier api.Tier, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.all[agent]; t.all == nil || !ok && len(t.all) >= maxTiers {
		t.all = map[string]knownTier{}
	}
	t.all[agent] = knownTier{tier, at}
}

// get returns the tier of an agent, and false if none was recorded in the last [tierFor].
func (t *tiers) get(agent string, now time.Time) (api.Tier, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.all[agent]
	return k.tier, ok && now.Sub(k.at) < tierFor
}

// tierOf returns the tier of an agent: that of its latest settlement if it is recent, else
// that of its balance. If the balance cannot be read, the tier is unknown. The error is
// Invalid for an agent without an account.
func (h *handlers) tierOf(ctx context.Context, agent string) (api.Tier, error) {
	if tier, ok := h.tiers.get(agent, h.now()); ok {
		return tier, nil
	}
	asking, cancel := context.WithTimeout(ctx, balanceTimeout)
	defer cancel()
	funds, err := bus.Call[api.Balance](asking, h.bus, api.GetBalance{Agent: agent})
	switch {
	case err == nil:
		return funds.Tier, nil
	case api.CodeOf(err) == api.NotFound: // not 404, which clients take for a wrong address and retry
		return api.TierUnknown, &api.Error{Code: api.Invalid, Message: "the agent " + agent + " has no account", Next: "anima agent list shows the agents"}
	}
	h.log.WarnContext(ctx, "balance not read, the tier is unknown", "agent", agent, "err", err)
	return api.TierUnknown, nil
}
