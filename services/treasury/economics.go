package treasury

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

const (
	defaultBuckets = 24
	maxBuckets     = 366
)

func (h *handlers) getEconomics(ctx context.Context, m api.GetEconomics) (api.Economics, error) {
	p := ledger.Period{Since: m.Since, Until: m.Until, Buckets: m.Buckets}
	if p.Until == 0 {
		p.Until = h.now().UnixMicro()
	}
	if p.Since == 0 {
		p.Since = p.Until - (24 * time.Hour).Microseconds()
	}
	if p.Buckets == 0 {
		p.Buckets = defaultBuckets
	}
	agents := slices.Compact(slices.Sorted(slices.Values(m.Agents)))
	if n := len(agents); n == 0 || n > api.MaxEconomicsAgents || p.Since <= 0 || p.Since >= p.Until || p.Buckets < 1 || p.Buckets > maxBuckets {
		return api.Economics{}, &api.Error{
			Code: api.Invalid, Message: "the agents or the period cannot be reported",
			Next: fmt.Sprintf("name 1 to %d agents, a period that ends after its begin, and at most %d buckets", api.MaxEconomicsAgents, maxBuckets),
		}
	}
	wallets, err := h.walletsOf(ctx, agents)
	if err != nil {
		return api.Economics{}, err
	}
	e, err := h.ledger.Economics(ctx, agents, wallets, p)
	if err != nil {
		return api.Economics{}, err
	}
	return economics(agents, p, &e), nil
}

// walletsOf returns the addresses of the present and earlier wallets of agents, in lower
// case.
func (h *handlers) walletsOf(ctx context.Context, agents []string) (map[string]bool, error) {
	owners, err := h.directory.Wallets(ctx)
	all := map[string]bool{}
	for address, owner := range owners {
		if _, found := slices.BinarySearch(agents, owner.Agent); found {
			all[strings.ToLower(address.Hex())] = true
		}
	}
	return all, err
}

// economics computes the rates of an answer.
func economics(agents []string, p ledger.Period, e *ledger.Economics) api.Economics {
	a := api.Economics{
		Agents: agents, Since: p.Since, Until: p.Until, Balance: e.Balance, Spent: []api.CategorySpent{}, Earned: e.Earned,
		TransfersIn: e.TransfersIn, TransfersOut: e.TransfersOut, Deposits: e.Deposits, Exchange: e.Exchange, Reversed: e.Reversed,
		Turns: e.Turns, Runway: -1, Holds: []api.HoldsEnded{}, Buckets: make([]api.EconomicsPart, len(e.Buckets)),
	}
	spent := e.TransfersOut
	for _, category := range slices.Sorted(maps.Keys(e.Spent)) {
		spent += e.Spent[category]
		a.Spent = append(a.Spent, api.CategorySpent{Category: category, Amount: e.Spent[category]})
	}
	a.Profit = e.Earned + e.TransfersIn + e.Exchange + e.Reversed - spent
	if e.Turns > 0 {
		a.CostPerTurn = e.TurnCost / api.Micros(e.Turns)
	}
	// A new agent has not had the whole period to spend; one hour is the least, so that one
	// payment just now is not taken for a rate.
	elapsed := max(p.Until-max(p.Since, e.First), time.Hour.Microseconds())
	if spent > 0 {
		a.BurnPerHour = api.Micros(ratio(int64(spent), time.Hour.Microseconds(), elapsed))
		a.Runway = ratio(int64(max(e.Balance, 0)), elapsed, int64(spent)) / time.Second.Microseconds()
	}
	for _, status := range []api.HoldStatus{api.HoldSettled, api.HoldReleased, api.HoldExpired} {
		if t := e.Ended[status]; t.Holds > 0 {
			a.Holds = append(a.Holds, api.HoldsEnded{Status: status, Holds: t.Holds, Amount: t.Amount, Paid: t.Settled})
		}
	}
	for i, b := range e.Buckets {
		a.Buckets[i] = api.EconomicsPart(b)
	}
	return a
}

// ratio returns a * b / c, rounded down, for a and b of at least 0 and c above 0. A result
// that does not fit is the largest number.
func ratio(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // not negative
	if high >= uint64(c) {                        //nolint:gosec // above 0
		return math.MaxInt64
	}
	q, _ := bits.Div64(high, low, uint64(c)) //nolint:gosec // above 0
	return int64(min(q, math.MaxInt64))      //nolint:gosec // bounded
}
