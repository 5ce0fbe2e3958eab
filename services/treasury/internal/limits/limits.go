// Package limits decides whether a payment is within the limits of an agent. It holds the
// limits, and the sums by which they are decided. It must do no I/O and must not know the
// clock, accounts or SQL: package ledger calls it in the transaction that makes the hold,
// so that a decision and its effect on the sums are one step.
package limits

import (
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Payment is what a decision depends on.
type Payment struct {
	Agent    string
	Amount   api.Micros
	Category string // one of the Category constants of package api, anything else counts as other
	Turn     string
	Session  string
	By       api.PrincipalKind // principal of the turn; "": unknown, not counted as a peer's

	Payee       string // "agent:<id>" or an address
	Domain      string // host that is paid
	Asset       string // "": credits
	Chain       string // CAIP-2
	Facilitator string
}

// class returns the class of the payment's sums.
func (p *Payment) class() Class { return ClassOf(p.Category, p.By) }

// outgoing reports whether the payment gives value to another party than the provider of
// a model or a service of treasury.
func (p *Payment) outgoing() bool {
	return p.Category == api.CategoryTransfer || p.Category == api.CategoryX402
}

// Policy is the resolved form of an agent's limits. The zero value limits nothing.
type Policy struct {
	Rules        []Rule
	Reserve      api.Micros
	NewPayee     api.Micros // [api.Unlimited]: no cap
	ApproveAbove api.Micros // [api.Unlimited]: no approval
	Cooldown     time.Duration
	Payees       []string
	Domains      []string
	Assets       []string
	Facilitators []string
	Parent       string
}

// Rule limits the payments of one window. Amount and Payments are [api.Unlimited] where
// there is no limit.
type Rule struct {
	Window   api.Window
	Category string
	Amount   api.Micros
	Payments int64
}

// None returns a policy without limits.
func None() Policy { return Policy{NewPayee: api.Unlimited, ApproveAbove: api.Unlimited} }

// Resolve returns the policy of the first limits, each overridden by the values that the
// later ones set. Nil members are skipped.
func Resolve(all ...*api.Limits) Policy {
	p := None()
	for _, l := range all {
		if l == nil {
			continue
		}
		for _, w := range l.Windows {
			p.set(w)
		}
		override(&p.Reserve, l.Reserve)
		override(&p.NewPayee, l.NewPayee)
		override(&p.ApproveAbove, l.ApproveAbove)
		if l.CooldownMS != nil {
			p.Cooldown = time.Duration(*l.CooldownMS) * time.Millisecond
		}
		list(&p.Payees, l.Payees)
		list(&p.Domains, l.Domains)
		list(&p.Assets, l.Assets)
		list(&p.Facilitators, l.Facilitators)
		if l.Parent != "" {
			p.Parent = l.Parent
		}
	}
	p.Rules = slices.DeleteFunc(p.Rules, func(r Rule) bool { return r.Amount < 0 && r.Payments < 0 })
	return p
}

func (p *Policy) set(w api.WindowLimit) {
	i := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Window == w.Window && r.Category == w.Category })
	if i < 0 {
		i = len(p.Rules)
		p.Rules = append(p.Rules, Rule{Window: w.Window, Category: w.Category, Amount: api.Unlimited, Payments: api.Unlimited})
	}
	override(&p.Rules[i].Amount, w.Amount)
	override(&p.Rules[i].Payments, w.Payments)
}

func override[T any](to, value *T) {
	if value != nil {
		*to = *value
	}
}

func list(to *[]string, value []string) {
	if value != nil {
		*to = value
	}
}

// Limits returns the policy in the form of the contract, with each value set.
func (p *Policy) Limits() api.Limits {
	l := api.Limits{
		Reserve: &p.Reserve, NewPayee: &p.NewPayee, ApproveAbove: &p.ApproveAbove, CooldownMS: new(p.Cooldown.Milliseconds()),
		Payees: p.Payees, Domains: p.Domains, Assets: p.Assets, Facilitators: p.Facilitators, Parent: p.Parent,
	}
	for i := range p.Rules {
		r := p.Rules[i]
		l.Windows = append(l.Windows, api.WindowLimit{Window: r.Window, Category: r.Category, Amount: &r.Amount, Payments: &r.Payments})
	}
	return l
}

// Scopes are the sums that a payment is counted in.
type Scopes struct {
	Rolling bool // the meter of the agent
	Turn    bool
	Session bool
	Payee   bool
}

// Scopes returns the sums that the limits of p need for a payment.
func (p *Policy) Scopes(of *Payment) Scopes {
	s := Scopes{
		Rolling: p.Cooldown > 0 && of.Category == api.CategoryTransfer,
		Payee:   p.NewPayee != api.Unlimited && of.outgoing() && of.Payee != "",
	}
	class := of.class()
	for i := range p.Rules {
		r := &p.Rules[i]
		switch r.Window {
		case api.WindowHour, api.WindowDay: // of every category, so that a change of the limits finds complete sums
			s.Rolling = true
		case api.WindowTurn:
			s.Turn = s.Turn || of.Turn != "" && class.in(r.Category)
		case api.WindowSession:
			s.Session = s.Session || of.Session != "" && class.in(r.Category)
		case api.WindowCall, api.WindowLineage:
		}
	}
	return s
}

// NeedsApproval reports whether a payment needs an approval of the creator.
func (p *Policy) NeedsApproval(pay *Payment) bool {
	return p.ApproveAbove != api.Unlimited && pay.outgoing() && pay.Amount > p.ApproveAbove
}

// Pooled reports whether p limits the payments of the agent and its descendants together.
func (p *Policy) Pooled() bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Window == api.WindowLineage })
}

// span returns the length of a rolling window, and 0 for the others.
func span(w api.Window) time.Duration {
	switch w {
	case api.WindowHour:
		return time.Hour
	case api.WindowDay, api.WindowLineage:
		return 24 * time.Hour
	case api.WindowCall, api.WindowTurn, api.WindowSession:
	}
	return 0
}

// allowed reports whether an allow-list has a value. An empty list and the entry "*" allow
// everything. Letter case is not significant. With dotted, an entry that begins with a dot
// also allows the domains that end in it.
func allowed(list []string, value string, dotted bool) bool {
	if len(list) == 0 {
		return true
	}
	value = strings.ToLower(value)
	return slices.ContainsFunc(list, func(entry string) bool {
		entry = strings.ToLower(entry)
		switch {
		case entry == "*":
			return true
		case value == "":
			return false
		case dotted && strings.HasPrefix(entry, "."):
			return strings.HasSuffix(value, entry) && len(value) > len(entry)
		}
		return entry == value
	})
}
