package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

type ledgerReportCmd struct {
	Agents []string `arg:"" optional:"" help:"The agents of the group; all without one." predictor:"agent"`
	Since  string   `help:"From this time: 2026-11-21T08:00:00Z, 2026-11-21, 36h or 7d, which is before now." default:"24h" placeholder:"TIME"`
	Until  string   `help:"Before this time; the default is now." placeholder:"TIME"`
	Parts  int      `help:"Bars of the chart, at most 366." default:"24"`
	CSV    bool     `name:"csv" help:"Print the parts of the period as CSV."`
}

// ledgerReport is the output of the command.
type ledgerReport struct {
	api.Economics
	Members  []api.Economics `json:"members,omitempty"`  // of a group
	Outcomes []outcomeCost   `json:"outcomes,omitempty"` // of the turns of one agent
}

// outcomeCost is the cost of the turns that ended in one way.
type outcomeCost struct {
	Finish string     `json:"finish"`
	Turns  int64      `json:"turns"`
	Cost   api.Micros `json:"cost"`
}

func (c ledgerReportCmd) Run(ctx context.Context, a *app) error {
	now := time.Now()
	since, errSince := past(c.Since, now)
	until, errUntil := past(c.Until, now)
	if err := errors.Join(errSince, errUntil); err != nil {
		return err
	}
	agents := slices.Clone(c.Agents)
	for i := range agents {
		agents[i] = strings.ToLower(agents[i])
	}
	if len(agents) == 0 {
		var err error
		if agents, err = allAgents(ctx, a); err != nil {
			return err
		}
		if len(agents) == 0 {
			return failure(api.NotFound, "there is no agent to report", "anima agent apply creates one")
		}
	}
	req := api.GetEconomics{Agents: agents, Since: since, Until: cmp.Or(until, now.UnixMicro()), Buckets: c.Parts}
	e, err := ask[api.Economics](ctx, a, req)
	if err != nil {
		return err
	}
	r := ledgerReport{Economics: e}
	if len(e.Agents) == 1 {
		r.Outcomes, err = outcomes(ctx, a, e.Agents[0], e.Since, e.Until)
	} else {
		r.Members, err = members(ctx, a, req)
	}
	if err != nil {
		return err
	}
	if c.CSV {
		return r.csv(a.Out)
	}
	return a.print(r, r.text)
}

// allAgents returns the ids of all agents, which it reads page by page.
func allAgents(ctx context.Context, a *app) ([]string, error) {
	var agents []string
	for page := (api.Agents{Page: api.Page{More: true}}); page.More; {
		var err error
		if page, err = ask[api.Agents](ctx, a, api.ListAgents{After: page.Next}); err != nil {
			return nil, err
		}
		agents = append(agents, agentIDs(page)...)
	}
	return agents, nil
}

// members asks for the report of each agent of a group.
func members(ctx context.Context, a *app, req api.GetEconomics) ([]api.Economics, error) {
	var all []api.Economics
	for _, agent := range req.Agents {
		one := req
		one.Agents, one.Buckets = []string{agent}, 1
		e, err := ask[api.Economics](ctx, a, one)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// outcomes adds up the turns of an agent in a period by how they ended. The list has the
// latest turn first.
func outcomes(ctx context.Context, a *app, agent string, since, until int64) ([]outcomeCost, error) {
	sums := map[string]outcomeCost{}
	req := api.ListTurns{Agent: agent, Limit: 200}
	for {
		page, err := ask[api.Turns](ctx, a, req)
		if err != nil {
			return nil, err
		}
		for i := range page.Turns {
			t := &page.Turns[i]
			if t.StartedAt < since {
				page.More = false
				break
			}
			if t.StartedAt >= until {
				continue
			}
			o := sums[t.Finish]
			sums[t.Finish] = outcomeCost{Finish: t.Finish, Turns: o.Turns + 1, Cost: o.Cost + t.Cost}
		}
		if !page.More {
			return slices.SortedFunc(maps.Values(sums), func(a, b outcomeCost) int {
				return cmp.Or(-cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Finish, b.Finish))
			}), nil
		}
		req.Before = page.Next
	}
}

func (r ledgerReport) text(w io.Writer) {
	row(w, "agents", strings.Join(r.Agents, " "))
	row(w, "period", when(r.Since)+" to "+when(r.Until))
	row(w, "credits", r.Balance)
	runway := "nothing is spent"
	if r.Runway >= 0 {
		runway = (time.Duration(min(r.Runway, int64(365*24*time.Hour/time.Second))) * time.Second).String()
	}
	row(w, "burn", r.BurnPerHour.String()+" an hour")
	row(w, "runway", runway)
	row(w, "profit", r.Profit)
	for _, s := range r.Spent {
		row(w, "  "+s.Category, -s.Amount)
	}
	for _, line := range []struct {
		name   string
		amount api.Micros
	}{
		{"transfers out", -r.TransfersOut},
		{"transfers in", r.TransfersIn},
		{"earned", r.Earned},
		{"exchange", r.Exchange},
		{"reversed", r.Reversed},
	} {
		if line.amount != 0 {
			row(w, "  "+line.name, line.amount)
		}
	}
	row(w, "deposits", r.Deposits)
	row(w, "turns", fmt.Sprintf("%d, %s each", r.Turns, r.CostPerTurn))
	for _, o := range r.Outcomes {
		row(w, "  "+line(o.Finish, 30), fmt.Sprintf("%d, %s each", o.Turns, o.Cost/api.Micros(o.Turns)))
	}
	for _, h := range r.Holds {
		row(w, "holds "+string(h.Status), fmt.Sprintf("%d, %s of %s paid", h.Holds, h.Paid, h.Amount))
	}
	r.chart(w)
	if len(r.Members) > 0 {
		fmt.Fprintln(w, "\nAGENT\tCREDITS\tPROFIT\tBURN AN HOUR\tTURNS\tA TURN")
		for _, m := range r.Members {
			row(w, m.Agents[0], m.Balance, m.Profit, m.BurnPerHour, m.Turns, m.CostPerTurn)
		}
	}
}

// chartWidth is the length of the longest bar, in characters.
const chartWidth = 40

// chart writes a bar for what was spent in each part of the period.
func (r ledgerReport) chart(w io.Writer) {
	var most api.Micros
	for _, b := range r.Buckets {
		most = max(most, b.Spent)
	}
	if most <= 0 {
		return
	}
	fmt.Fprintln(w, "\nFROM\tSPENT")
	for _, b := range r.Buckets {
		row(w, when(b.At), strings.Repeat("█", int(max(b.Spent, 0)*chartWidth/most))+" "+b.Spent.String())
	}
}

func (r ledgerReport) csv(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"from", "spent_micros", "income_micros"}}
	for _, b := range r.Buckets {
		rows = append(rows, []string{
			time.UnixMicro(b.At).UTC().Format(time.RFC3339), strconv.FormatInt(int64(b.Spent), 10), strconv.FormatInt(int64(b.Income), 10),
		})
	}
	return out.WriteAll(rows)
}
