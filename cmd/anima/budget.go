package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type budgetCmd struct {
	Get       budgetGetCmd       `cmd:"" help:"Show the limits of an agent and what is spent of them."`
	Set       budgetSetCmd       `cmd:"" help:"Change the limits of an agent."`
	Approvals budgetApprovalsCmd `cmd:"" help:"List payments that wait for an approval."`
	Approve   budgetApproveCmd   `cmd:"" help:"Approve a payment that waits, once."`
	Refuse    budgetRefuseCmd    `cmd:"" help:"Refuse a payment that waits."`
}

type budgetGetCmd struct {
	watching
	Agent   string `arg:"" help:"The agent." predictor:"agent"`
	Turn    string `help:"Show what is spent in this turn."`
	Session string `help:"Show what is spent in this session." predictor:"session"`
}

func (c budgetGetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetLimits{Agent: strings.ToLower(c.Agent), Turn: c.Turn, Session: c.Session}, writeLimits)
}

// writeLimits writes limits and their usage as text.
func writeLimits(w io.Writer, v api.AgentLimits) {
	e := v.Effective
	fields(w, "agent", v.Agent, "available", v.Available.String())
	row(w, "reserve", limitText(*cmp.Or(e.Reserve, new(api.Micros))))
	row(w, "first payment", limitText(orUnlimited(e.NewPayee)))
	row(w, "approval above", limitText(orUnlimited(e.ApproveAbove)))
	if e.CooldownMS != nil && *e.CooldownMS > 0 {
		row(w, "cooldown", time.Duration(*e.CooldownMS)*time.Millisecond)
	}
	fields(w, "payees", strings.Join(e.Payees, " "), "domains", strings.Join(e.Domains, " "), "assets", strings.Join(e.Assets, " "),
		"facilitators", strings.Join(e.Facilitators, " "), "parent", e.Parent)
	fmt.Fprintln(w, "\nWINDOW\tCATEGORY\tLIMIT\tSPENT\tPAYMENTS\tUSED\tFREES")
	for _, u := range v.Usage {
		spent, payments, used := u.Spent.String(), strconv.FormatInt(u.Count, 10), ""
		if u.Payments >= 0 {
			payments += " of " + strconv.FormatInt(u.Payments, 10)
		}
		if u.Window == api.WindowCall {
			spent, payments = "-", "-"
		} else {
			used = bar(u)
		}
		row(w, u.Window, cmp.Or(u.Category, "all"), limitText(u.Amount), spent, payments, used, when(u.FreesAt))
	}
}

func orUnlimited(m *api.Micros) api.Micros {
	if m == nil {
		return api.Unlimited
	}
	return *m
}

func limitText(m api.Micros) string {
	if m < 0 {
		return "none"
	}
	return m.String()
}

// bar draws how much of a limit is used, of the amount or of the number of payments,
// whichever is more.
func bar(u api.LimitUsage) string {
	const width = 10
	share := func(used, limit int64) int64 {
		switch {
		case limit < 0:
			return 0
		case used >= limit:
			return 100
		}
		return int64(float64(used) / float64(limit) * 100)
	}
	percent := max(share(int64(u.Spent), int64(u.Amount)), share(u.Count, u.Payments))
	full := int((percent*width + 99) / 100)
	return "[" + strings.Repeat("#", full) + strings.Repeat("·", width-full) + "] " + strconv.FormatInt(percent, 10) + "%"
}

type budgetSetCmd struct {
	Agent        string   `arg:"" help:"The agent." predictor:"agent"`
	Call         []string `help:"Most that one payment may be." placeholder:"[CATEGORY=]DOLLARS"`
	Turn         []string `help:"Most that a turn may pay." placeholder:"[CATEGORY=]DOLLARS"`
	Session      []string `help:"Most that a session may pay." placeholder:"[CATEGORY=]DOLLARS"`
	Hour         []string `help:"Most in the last 60 minutes." placeholder:"[CATEGORY=]DOLLARS"`
	Day          []string `help:"Most in the last 24 hours." placeholder:"[CATEGORY=]DOLLARS"`
	Lineage      []string `help:"Most in the last 24 hours, with all descendants." placeholder:"[CATEGORY=]DOLLARS"`
	Payments     []string `help:"Most payments in a window." placeholder:"WINDOW[.CATEGORY]=NUMBER"`
	Reserve      string   `help:"Credits that a transfer or an x402 payment must leave." placeholder:"DOLLARS"`
	NewPayee     string   `help:"Most of the first payment to a payee." placeholder:"DOLLARS"`
	ApproveAbove string   `help:"Transfers and x402 payments above it need an approval." placeholder:"DOLLARS"`
	Cooldown     string   `help:"Least time between two transfers." placeholder:"DURATION"`
	Payee        []string `help:"Allow these payees only: agent:NAME, an address, or * for all."`
	Domain       []string `help:"Allow these domains only, for x402: a host, .suffix, or *."`
	Asset        []string `help:"Allow these assets only, for x402: ASSET@CHAIN, or *."`
	Facilitator  []string `help:"Allow these facilitators only, for x402, or *."`
	Parent       string   `help:"The agent in whose lineage the payments count; none for no parent." predictor:"agent"`
	Reset        bool     `help:"Begin with the limits of the configuration instead of the agent's own."`
}

func (c budgetSetCmd) Run(ctx context.Context, a *app, parsed *kong.Context) error {
	if err := givesLimits(parsed.Selected().Flags); err != nil {
		return err
	}
	agent := strings.ToLower(c.Agent)
	was, err := ask[api.AgentLimits](ctx, a, api.GetLimits{Agent: agent})
	if err != nil {
		return err
	}
	own := was.Own
	if c.Reset {
		own = api.Limits{}
	}
	if err := c.change(&own); err != nil {
		return err
	}
	req := api.SetLimits{ID: "limits-" + uuid.NewString(), Agent: agent, Limits: own, Revision: was.Revision}
	return show(ctx, a, req, writeLimits)
}

// givesLimits checks that at least one of the command's flags is given and that none is
// empty: with a variable of the shell that is not set the command would change nothing.
func givesLimits(flags []*kong.Flag) error {
	const next = "write an amount, none or default, as in --day 5"
	given := false
	for _, f := range flags {
		switch {
		case !f.Set:
		case !f.IsBool() && f.Target.Len() == 0:
			return failure(api.Invalid, "--"+f.Name+" is empty", next)
		default:
			given = true
		}
	}
	if !given {
		return failure(api.Invalid, "no limit is named", next)
	}
	return nil
}

// Words that flags accept besides a value.
const (
	wordNone    = "none"    // no limit
	wordDefault = "default" // the value of the configuration
)

// change applies the flags to limits.
func (c *budgetSetCmd) change(l *api.Limits) error {
	for _, w := range []struct {
		window api.Window
		values []string
	}{
		{api.WindowCall, c.Call},
		{api.WindowTurn, c.Turn},
		{api.WindowSession, c.Session},
		{api.WindowHour, c.Hour},
		{api.WindowDay, c.Day},
		{api.WindowLineage, c.Lineage},
	} {
		for _, text := range w.values {
			category, value, ok := strings.Cut(text, "=")
			if !ok {
				category, value = "", text
			}
			if err := setAmount(&limitOf(l, w.window, category).Amount, value); err != nil {
				return err
			}
		}
	}
	for _, text := range c.Payments {
		if err := setPayments(l, text); err != nil {
			return err
		}
	}
	l.Windows = slices.DeleteFunc(l.Windows, func(w api.WindowLimit) bool { return w.Amount == nil && w.Payments == nil })
	for _, f := range []struct {
		value string
		to    **api.Micros
	}{{c.Reserve, &l.Reserve}, {c.NewPayee, &l.NewPayee}, {c.ApproveAbove, &l.ApproveAbove}} {
		if f.value == "" {
			continue
		}
		if err := setAmount(f.to, f.value); err != nil {
			return err
		}
	}
	if l.Reserve != nil && *l.Reserve < 0 {
		l.Reserve = new(api.Micros)
	}
	for _, f := range []struct {
		values []string
		to     *[]string
	}{{c.Payee, &l.Payees}, {c.Domain, &l.Domains}, {c.Asset, &l.Assets}, {c.Facilitator, &l.Facilitators}} {
		if err := setList(f.to, f.values); err != nil {
			return err
		}
	}
	switch c.Parent {
	case "":
	case wordNone, wordDefault:
		l.Parent = ""
	default:
		l.Parent = strings.ToLower(c.Parent)
	}
	return setCooldown(&l.CooldownMS, c.Cooldown)
}

// limitOf returns the limit of a window and a category, which it adds if there is none.
func limitOf(l *api.Limits, w api.Window, category string) *api.WindowLimit {
	i := slices.IndexFunc(l.Windows, func(x api.WindowLimit) bool { return x.Window == w && x.Category == category })
	if i < 0 {
		i = len(l.Windows)
		l.Windows = append(l.Windows, api.WindowLimit{Window: w, Category: category})
	}
	return &l.Windows[i]
}

func setAmount(to **api.Micros, value string) error {
	switch value {
	case wordNone:
		*to = new(api.Micros(api.Unlimited))
		return nil
	case wordDefault:
		*to = nil
		return nil
	}
	amount, err := api.ParseMicros(value)
	if err != nil {
		return failure(api.Invalid, fmt.Sprintf("%.40q is not an amount", value), "write dollars, like 5 or 0.25, none or default; for one category transfer=5")
	}
	*to = &amount
	return nil
}

func setPayments(l *api.Limits, text string) error {
	name, value, _ := strings.Cut(text, "=")
	window, category, _ := strings.Cut(name, ".")
	to := &limitOf(l, api.Window(window), category).Payments
	switch value {
	case wordNone:
		*to = new(int64(api.Unlimited))
		return nil
	case wordDefault:
		*to = nil
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return failure(api.Invalid, fmt.Sprintf("%.40q is not a number of payments", text), "write hour=10, hour.transfer=3, hour=none or hour=default")
	}
	*to = &n
	return nil
}

func setCooldown(to **int64, value string) error {
	switch value {
	case "":
		return nil
	case wordNone:
		*to = new(int64)
		return nil
	case wordDefault:
		*to = nil
		return nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return failure(api.Invalid, fmt.Sprintf("%.40q is not a duration", value), "write 30s, 10m, 1h, none or default")
	}
	*to = new(d.Milliseconds())
	return nil
}

func setList(to *[]string, values []string) error {
	word := slices.ContainsFunc(values, func(v string) bool { return v == wordNone || v == wordDefault })
	switch {
	case len(values) == 0:
	case word && len(values) > 1:
		return failure(api.Invalid, fmt.Sprintf("%.80q has a word and entries of a list", strings.Join(values, ",")), "write entries, or one of none and default alone")
	case values[0] == wordNone:
		*to = []string{"*"} // an empty list would be that of the configuration
	case values[0] == wordDefault:
		*to = nil
	default:
		*to = values
	}
	return nil
}

type budgetApprovalsCmd struct {
	Agent  string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	Status string `help:"Only these: open, approved, refused or used." enum:"open,approved,refused,used" default:"open"`
}

func (c budgetApprovalsCmd) Run(ctx context.Context, a *app) error {
	req := api.ListApprovals{Agent: strings.ToLower(c.Agent), Status: api.ApprovalStatus(c.Status)}
	return listOf(ctx, a, req.Agent, req, func(v api.Approvals) int { return len(v.Approvals) }, func(w io.Writer, v api.Approvals) {
		table(w, "ID\tASKED\tAGENT\tAMOUNT\tCATEGORY\tPAYEE\tSTATUS", v.Approvals, api.Page{}, func(p api.Approval) []any {
			return []any{p.ID, when(p.AskedAt), p.Agent, p.Amount, p.Category, cmp.Or(p.Domain, p.Payee, "-"), p.Status}
		})
	})
}

type budgetApproveCmd struct {
	ID string `arg:"" help:"Id of the request."`
}

func (c budgetApproveCmd) Run(ctx context.Context, a *app) error {
	return decide(ctx, a, api.DecideApproval{ID: c.ID, Approve: true})
}

type budgetRefuseCmd struct {
	ID string `arg:"" help:"Id of the request."`
}

func (c budgetRefuseCmd) Run(ctx context.Context, a *app) error {
	return decide(ctx, a, api.DecideApproval{ID: c.ID})
}

func decide(ctx context.Context, a *app, req api.DecideApproval) error {
	return show(ctx, a, req, func(w io.Writer, v api.Approval) {
		fmt.Fprintf(w, "%s of %s by %s to %s is %s\n", v.Category, v.Amount, v.Agent, cmp.Or(v.Domain, v.Payee, "-"), v.Status)
		if v.EndsAt != 0 {
			fmt.Fprintf(w, "the agent may make it once until %s\n", when(v.EndsAt))
		}
	})
}
