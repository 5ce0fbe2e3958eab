package limits

import (
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Sums are the sums that the limits of one policy are compared with. Those that
// [Policy.Scopes] does not name may be empty.
type Sums struct {
	Available api.Micros // of the account that pays
	Rolling   Meter
	Turn      Tally
	Session   Tally
	Payee     Tally
	Pool      Meter // of the agent and its descendants
	Approved  bool  // the creator has approved this payment
}

// Check returns nil if the payment is within all limits, and otherwise the first refusal,
// with every further one in its details. It does not compare the lineage windows; see
// [Policy.CheckPool].
//
// A refusal that waiting does not change has no RetryAfter. Otherwise RetryAfter is the
// longest of the waits.
func (p *Policy) Check(pay *Payment, s *Sums, now int64) *api.Error {
	c := check{pay: pay, class: pay.class(), now: now, owner: pay.Agent}
	p.lists(&c)
	for i := range p.Rules {
		if p.Rules[i].Window != api.WindowLineage {
			c.rule(&p.Rules[i], s)
		}
	}
	// The reserve keeps the agent thinking, so model calls and tools may use it.
	if pay.outgoing() && pay.Asset == "" && p.Reserve > 0 && s.Available-pay.Amount < p.Reserve {
		c.refuse(api.ReasonReserve, 0, "--reserve DOLLARS", "%s is available, and a payment must leave the reserve of %s", s.Available, p.Reserve)
	}
	if wait := time.Duration(s.Rolling.transfer-now)*time.Microsecond + p.Cooldown; pay.Category == api.CategoryTransfer && s.Rolling.transfer > 0 && wait > 0 {
		c.refuse(api.ReasonCooldown, wait, "--cooldown DURATION", "the last transfer was made less than %s ago", p.Cooldown)
	}
	if p.NewPayee != api.Unlimited && pay.outgoing() && s.Payee.Settled == 0 && pay.Amount > p.NewPayee {
		c.refuse(api.ReasonNewPayee, 0, "--new-payee DOLLARS", "the first payment to %.60q may be at most %s", pay.Payee, p.NewPayee)
	}
	if c.first == nil && !s.Approved && p.NeedsApproval(pay) { // nobody has to approve what another limit refuses
		c.refuse(api.ReasonApproval, 0, "--approve-above DOLLARS", "a payment above %s needs the creator's approval", p.ApproveAbove)
	}
	return c.first
}

// CheckPool compares the payment with the limits of p for their owner and its descendants,
// which share one pool. The owner is the agent that pays, or one of its parents.
func (p *Policy) CheckPool(pay *Payment, owner string, s *Sums, now int64) *api.Error {
	c := check{pay: pay, class: pay.class(), now: now, owner: owner}
	for i := range p.Rules {
		if p.Rules[i].Window == api.WindowLineage {
			c.rule(&p.Rules[i], s)
		}
	}
	return c.first
}

// check collects the refusals of one payment.
type check struct {
	pay   *Payment
	class Class
	now   int64
	owner string // agent that has the limits
	first *api.Error
}

// refuse adds a refusal. The flag is that of anima budget set which changes the limit, with
// placeholders: what the payment names is the agent's text, and people paste commands.
func (c *check) refuse(reason string, wait time.Duration, flag, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if c.first == nil {
		c.first = &api.Error{
			Code: api.Denied, Reason: reason, Message: fmt.Sprintf("agent %q cannot pay %s: %s", c.pay.Agent, c.pay.Amount, message),
			Next: "anima budget get " + c.owner + " shows the limits; anima budget set " + c.owner + " " + flag + " changes this one; docs/runbooks/limits.md",
		}
		if wait > 0 {
			c.first.Next = "wait " + wait.Round(time.Second).String() + "; " + c.first.Next
		}
	}
	c.first.Details = append(c.first.Details, reason+": "+message)
	c.first.RetryAfter = max(c.first.RetryAfter, (wait + time.Millisecond - 1).Milliseconds())
}

// rule compares the payment with one limit of amount and one of number.
func (c *check) rule(r *Rule, s *Sums) {
	if !c.class.in(r.Category) {
		return
	}
	spent, meter := r.spent(s, c.now)
	if r.Amount >= 0 && c.pay.Amount > r.Amount-spent.Amount {
		var wait time.Duration
		if c.pay.Amount <= r.Amount && meter != nil {
			wait = meter.frees(c.now, span(r.Window), r.Category, Sum{Amount: spent.Amount + c.pay.Amount - r.Amount})
		}
		if r.Window == api.WindowCall {
			c.refuse(api.ReasonCallLimit, 0, r.flag(), "one payment%s may be at most %s", forCategory(r.Category), r.Amount)
		} else {
			c.refuse(r.reason(), wait, r.flag(), "the limit of %s %s%s leaves %s: %s is spent", r.Amount, per[r.Window], forCategory(r.Category), max(0, r.Amount-spent.Amount), spent.Amount)
		}
	}
	if r.Payments >= 0 && r.Window != api.WindowCall && spent.Payments >= r.Payments {
		var wait time.Duration
		if r.Payments > 0 && meter != nil {
			wait = meter.frees(c.now, span(r.Window), r.Category, Sum{Payments: spent.Payments + 1 - r.Payments})
		}
		c.refuse(api.ReasonVelocity, wait, r.flagOfPayments(), "the limit of %d payments %s%s is reached", r.Payments, per[r.Window], forCategory(r.Category))
	}
}

// spent returns the sum that a rule is compared with, and the meter that it is from.
func (r *Rule) spent(s *Sums, now int64) (Sum, *Meter) {
	switch r.Window {
	case api.WindowTurn:
		return s.Turn.Of(r.Category), nil
	case api.WindowSession:
		return s.Session.Of(r.Category), nil
	case api.WindowHour, api.WindowDay:
		t := s.Rolling.Within(now, span(r.Window))
		return t.Of(r.Category), &s.Rolling
	case api.WindowLineage:
		t := s.Pool.Within(now, span(r.Window))
		return t.Of(r.Category), &s.Pool
	case api.WindowCall:
	}
	return Sum{}, nil
}

// flag returns the flag of anima budget set for the amount of a rule.
func (r *Rule) flag() string {
	if r.Category == "" {
		return "--" + string(r.Window) + " DOLLARS"
	}
	return "--" + string(r.Window) + " " + r.Category + "=DOLLARS"
}

// flagOfPayments returns the flag of anima budget set for the number of payments of a rule.
func (r *Rule) flagOfPayments() string {
	if r.Category == "" {
		return "--payments " + string(r.Window) + "=NUMBER"
	}
	return "--payments " + string(r.Window) + "." + r.Category + "=NUMBER"
}

func (r *Rule) reason() string {
	if r.Category == api.CategoryPeer {
		return api.ReasonPeerLimit
	}
	switch r.Window {
	case api.WindowTurn:
		return api.ReasonTurnLimit
	case api.WindowSession:
		return api.ReasonSessionLimit
	case api.WindowHour:
		return api.ReasonHourLimit
	case api.WindowDay:
		return api.ReasonDayLimit
	case api.WindowLineage:
		return api.ReasonLineageLimit
	case api.WindowCall:
	}
	return api.ReasonCallLimit
}

//nolint:gochecknoglobals // a constant table
var per = map[api.Window]string{
	api.WindowTurn: "for a turn", api.WindowSession: "for a session", api.WindowHour: "in an hour", api.WindowDay: "in a day",
	api.WindowLineage: "in a day for the agent and its children",
}

func forCategory(category string) string {
	switch category {
	case "":
		return ""
	case api.CategoryPeer:
		return " for what peers cause"
	}
	return " for " + category
}

// lists compares the payment with the allow-lists. A value that the payment does not name
// is not on a list.
func (p *Policy) lists(c *check) {
	pay := c.pay
	if !pay.outgoing() {
		return
	}
	// The account of an address outside this installation has the name of the address.
	outside, ok := strings.CutPrefix(pay.Payee, "agent:")
	if !allowed(p.Payees, pay.Payee, false) && (!ok || !api.IsAddress(outside) || !allowed(p.Payees, outside, false)) {
		c.refuse(api.ReasonPayee, 0, "--payee PAYEE,PAYEE", "the payee %.60q is not on its allow-list", pay.Payee)
	}
	if pay.Category != api.CategoryX402 {
		return
	}
	if !allowed(p.Domains, pay.Domain, true) {
		c.refuse(api.ReasonDomain, 0, "--domain DOMAIN,DOMAIN", "the domain %.60q is not on its allow-list", pay.Domain)
	}
	if asset := pay.Asset + "@" + pay.Chain; !allowed(p.Assets, strings.TrimPrefix(asset, "@"), false) {
		c.refuse(api.ReasonAsset, 0, "--asset ASSET@CHAIN,ASSET@CHAIN", "the asset %.60q is not on its allow-list", asset)
	}
	if !allowed(p.Facilitators, pay.Facilitator, false) {
		c.refuse(api.ReasonFacilitator, 0, "--facilitator HOST,HOST", "the facilitator %.60q is not on its allow-list", pay.Facilitator)
	}
}

// Usage returns what is spent of each limit of p, in the order of the limits. Sums of a
// turn and a session that are not given are zero.
func (p *Policy) Usage(s *Sums, now int64) []api.LimitUsage {
	all := make([]api.LimitUsage, 0, len(p.Rules))
	for i := range p.Rules {
		r := &p.Rules[i]
		spent, meter := r.spent(s, now)
		u := api.LimitUsage{Window: r.Window, Category: r.Category, Amount: r.Amount, Payments: r.Payments, Spent: spent.Amount, Count: spent.Payments}
		if meter != nil && spent != (Sum{}) {
			u.FreesAt = now + meter.frees(now, span(r.Window), r.Category, Sum{Amount: min(1, spent.Amount), Payments: min(1, spent.Payments)}).Microseconds()
		}
		all = append(all, u)
	}
	return all
}
