package model

import "math/bits"

// degrade makes a refused candidate usable with a lower output limit. With without it also
// drops the tools of the prompt if the model takes none. It changes nothing if the
// candidate stays refused.
func (r *Route) degrade(c *Candidate, without bool, q *Query) {
	switch c.Reason {
	case TooLong, OverCeiling, OverBudget:
	case NoTools:
		if !without {
			return
		}
	default:
		return
	}
	next := *c
	next.Without = c.Without || without && q.Tools > 0 && !c.Model.Tools
	next.Limit = r.lower(c)
	if next.Limit < min(minOutput, c.Limit) {
		return
	}
	next.Fewer = next.Limit < c.Limit
	if r.check(&next, q) == Usable {
		next.Reason = Usable
		*c = next
	}
}

// lower returns the highest output limit, at most the present one, with which a candidate
// fits the window, the ceiling and the budget. It is 0 or less if none does.
func (r *Route) lower(c *Candidate) int64 {
	limit := c.Limit
	if c.Model.ContextWindow > 0 {
		limit = min(limit, c.Model.ContextWindow-c.Prompt)
	}
	most := r.Ceiling
	if r.Budget != Unlimited && (most == Unlimited || r.Budget < most) {
		most = r.Budget
	}
	if limit <= 0 || most == Unlimited || c.Model.Free() || c.Model.dearestOutput() == 0 {
		return limit
	}
	rest := most - c.Model.Most(2*c.Prompt, 0)
	if rest < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(rest), pricedTokens)
	price := uint64(c.Model.dearestOutput())
	if hi >= price { // more tokens than int64 has
		return limit
	}
	enough, _ := bits.Div64(hi, lo, price)
	return int64(min(uint64(limit), enough))
}

// Lower returns the next lower output limit in tokens for a call that the available credits
// did not cover: a quarter, at least minOutput. A limit that cannot be lowered is returned
// unchanged.
func Lower(limit int64) int64 { return min(limit, max(minOutput, limit/4)) }
