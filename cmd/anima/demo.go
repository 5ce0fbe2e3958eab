package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
)

//go:embed demo/nova.md
var novaMD string

type demoCmd struct {
	Keep bool `help:"Keep the demo's folder and print it."`
}

// Run executes the demo in a new folder. It fails if any step did not happen.
func (c demoCmd) Run(ctx context.Context, a *app) error {
	dir, err := os.MkdirTemp("", "anima-demo-")
	if err != nil {
		return err
	}
	if c.Keep {
		defer fmt.Fprintln(a.Err, "the demo's data is in", dir)
	} else {
		defer func() { _ = os.RemoveAll(dir) }() // a remainder is in the temporary folder
	}
	s, err := a.open(ctx, dir, demoLookup(a.Lookup), false)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &demo{app: a, bus: s.bus, began: time.Now(), out: newProgress(a), events: make(chan bus.Stored, 64), subscriptionErr: make(chan error, 1)}
	completed := false
	err = s.serve(ctx, func(ctx context.Context, _ host.Addrs) error {
		err := d.run(ctx)
		completed = err == nil
		return cmp.Or(err, errStop)
	})
	d.out.clear()
	switch {
	case err != nil:
		return fmt.Errorf("demo: %w", err)
	case !completed:
		return failure(api.Unavailable, "interrupted before the demo ended", "run it again")
	}
	return d.report()
}

// demo is the state of the demo.
type demo struct {
	app             *app
	bus             *bus.Bus
	began           time.Time
	out             *progress
	events          chan bus.Stored
	subscriptionErr chan error // the error that ended the subscription to events
	ends            []api.LoopEnd
	turns           []api.Turn // turns that were printed
	given           api.Micros // credits that the agents got
	sum             summary
}

// summary is the output of the demo with -o json.
type summary struct {
	Turns     []demoTurn       `json:"turns"`
	Balances  []api.Balance    `json:"balances"`
	Purchases []demoPurchase   `json:"purchases"`
	Ledger    api.LedgerReport `json:"ledger"`
	Denied    []api.Decision   `json:"denied"`
	Trace     string           `json:"trace"`
	ElapsedMS int64            `json:"elapsedMs"`
}

type demoTurn struct {
	ID    string     `json:"id"`
	Agent string     `json:"agent"`
	Trace string     `json:"trace"`
	Cost  api.Micros `json:"cost"`
}

func (d *demo) run(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		d.subscriptionErr <- d.bus.Events(following, 0, func(m bus.Stored) error {
			select {
			case d.events <- m:
			case <-following.Done():
			}
			return following.Err()
		}, api.LoopEnd{}.Subject(), api.ToolStart{}.Subject(), api.ToolEnd{}.Subject(), api.LoopError{}.Subject())
	})

	d.out.head("Two agents are created and get a dollar each")
	lucky, err := d.createAgent(ctx, luckyMD, api.Dollar)
	if err != nil {
		return err
	}
	nova, err := d.createAgent(ctx, novaMD, api.Dollar)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		head, agent, text, run string
		wakes                  string // run of Lucky that the run causes; "" if none
	}{
		{
			"You ask Lucky to work",
			lucky.ID, "Write a short note about what you are, count its words, and remember the count.", "Lucky's work", "",
		},
		{
			"You ask Nova to greet Lucky; the message wakes Lucky",
			nova.ID, "Greet " + lucky.Address + ": hello neighbour, how are you?", "Nova's greeting", "Lucky, woken by the greeting",
		},
		{
			"You ask for something forbidden; policy refuses the call",
			lucky.ID, "Do something forbidden: delete everything.", "the refusal", "",
		},
		{
			"Lucky sleeps for a second and is woken by its alarm",
			lucky.ID, "Go to sleep for a second.", "the sleep", "Lucky, woken by its alarm",
		},
	} {
		d.out.head(step.head)
		before := len(d.ends)
		acc, err := bus.Call[api.Accepted](ctx, d.bus, api.SendMessage{Agent: step.agent, Content: step.text})
		if err != nil {
			return err
		}
		d.out.line("you → %s: %s", step.agent, step.text)
		if err := d.waitForRun(ctx, before, step.run, func(e api.LoopEnd) bool { return e.Run == acc.Run }); err != nil {
			return err
		}
		if step.wakes == "" {
			continue
		}
		woken := func(e api.LoopEnd) bool { return e.Agent == lucky.ID && e.Run != acc.Run }
		if err := d.waitForRun(ctx, before, step.wakes, woken); err != nil {
			return err
		}
	}
	penny, err := d.topUp(ctx)
	if err != nil {
		return err
	}
	return d.check(ctx, lucky, nova, penny)
}

func (d *demo) createAgent(ctx context.Context, source string, credits api.Micros) (api.Agent, error) {
	g, err := bus.Call[api.Agent](ctx, d.bus, api.ApplyAgent{Source: source})
	if err != nil {
		return g, err
	}
	if _, err := bus.Call[api.Posted](ctx, d.bus, api.Deposit{ID: "demo-" + g.ID, Agent: g.ID, Amount: credits, Source: "faucet"}); err != nil {
		return g, err
	}
	d.given += credits
	d.out.line("%s is created at %s with %s", g.Name, g.Address, credits)
	return g, nil
}

// waitForRun prints events until the end of a run fits. It examines the ends from index first
// on, because runs of two agents may end in any order.
func (d *demo) waitForRun(ctx context.Context, first int, what string, fits func(api.LoopEnd) bool) error {
	for slices.IndexFunc(d.ends[first:], fits) < 0 {
		d.out.waiting(what)
		select {
		case <-ctx.Done():
			return fmt.Errorf("no end of %s: %w", what, ctx.Err())
		case err := <-d.subscriptionErr:
			return fmt.Errorf("%s: %w", what, err)
		case m := <-d.events:
			if err := d.event(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return nil
}

// event prints an event. The end of a run that failed is an error.
func (d *demo) event(ctx context.Context, m bus.Stored) error {
	e, err := eventOf(m)
	if err != nil {
		return err
	}
	switch e.name {
	case "tool_start":
		return showAs(e, func(v api.ToolStart) { d.out.line("  → %s %s", v.ToolName, line(string(v.Arguments), 100)) })
	case "tool_end":
		return showAs(e, func(v api.ToolEnd) {
			d.out.line("  ← %s %s: %s (%d ms)", v.ToolName, v.Outcome, line(v.Result, 100), v.Duration)
		})
	case "loop_error":
		return showAs(e, func(v api.LoopError) { d.out.line("  ✗ %s: %s", v.Code, plain(v.Error)) })
	}
	var end api.LoopEnd
	if err := api.Decode(m.Data, &end); err != nil {
		return err
	}
	if err := d.show(ctx, end); err != nil {
		return err
	}
	if !end.Success {
		return fmt.Errorf("the run %s failed", end.Run)
	}
	d.ends = append(d.ends, end)
	return nil
}

// show prints the turns of a run that ended.
func (d *demo) show(ctx context.Context, end api.LoopEnd) error {
	turns, err := bus.Call[api.Turns](ctx, d.bus, api.ListTurns{Run: end.Run})
	if err != nil {
		return err
	}
	for _, t := range slices.Backward(turns.Turns) {
		if !slices.ContainsFunc(d.turns, func(shown api.Turn) bool { return shown.ID == t.ID }) {
			d.turns = append(d.turns, t)
			words := cmp.Or(line(t.Thinking, 90), fmt.Sprintf("(%d calls)", len(t.Calls)))
			d.out.line("%s, turn %d: %s   %s", end.Agent, t.Number, words, t.Cost)
		}
	}
	return nil
}

// check verifies the outcome of the demo by the services' own records.
func (d *demo) check(ctx context.Context, agents ...api.Agent) error {
	var paid api.Micros
	calls := map[string]bool{}
	var bad []string
	for _, t := range d.turns {
		paid += t.Cost
		d.sum.Turns = append(d.sum.Turns, demoTurn{ID: t.ID, Agent: t.Agent, Trace: t.Trace, Cost: t.Cost})
		for _, c := range t.Calls {
			calls[c.Tool+"/"+string(c.Outcome)] = true
			if c.Outcome != api.OutcomeOK && c.Outcome != api.OutcomeDenied {
				bad = append(bad, fmt.Sprintf("%s ended as %s: %s", c.Tool, c.Outcome, line(c.Result+c.Error, 200)))
			}
		}
	}
	for _, want := range []string{"write_file/ok", "exec/ok", "check_credits/ok", "remember_fact/ok", "send_message/ok", "exec/denied", "sleep/ok"} {
		if !calls[want] {
			return fmt.Errorf("no call ended as %s; %s", want, strings.Join(append(bad, "the demo requires this call"), "; "))
		}
	}
	var left api.Micros
	for _, g := range agents {
		b, err := bus.Call[api.Balance](ctx, d.bus, api.GetBalance{Agent: g.ID})
		if err != nil {
			return err
		}
		if b.Held != 0 {
			return fmt.Errorf("%s has %s held although no run is in progress", g.ID, b.Held)
		}
		left += b.Available
		d.sum.Balances = append(d.sum.Balances, b)
		decisions, err := bus.Call[api.Decisions](ctx, d.bus, api.ListDecisions{Agent: g.ID})
		if err != nil {
			return err
		}
		for _, x := range decisions.Decisions {
			if x.Action == api.Deny {
				d.sum.Denied = append(d.sum.Denied, x)
			}
		}
	}
	if d.given != left+paid {
		return fmt.Errorf("%s was deposited and bought, but %s is left and %s was paid: the sums differ", d.given, left, paid)
	}
	if len(d.sum.Denied) == 0 {
		return errors.New("policy recorded no refusal")
	}
	report, err := bus.Call[api.LedgerReport](ctx, d.bus, api.VerifyLedger{})
	if err != nil {
		return err
	}
	if !report.OK {
		return fmt.Errorf("the ledger is inconsistent: %v", report.Faults)
	}
	d.sum.Ledger, d.sum.Trace, d.sum.ElapsedMS = report, d.turns[0].Trace, time.Since(d.began).Milliseconds()
	return nil
}

func (d *demo) report() error {
	return d.app.print(d.sum, func(w io.Writer) {
		fmt.Fprintf(w, "\nThe money\n")
		for _, b := range d.sum.Balances {
			fmt.Fprintf(w, "  %s\t%s left\ttier %s\n", b.Agent, b.Available, b.Tier)
		}
		for _, p := range d.sum.Purchases {
			fmt.Fprintf(w, "  %s\tbought %s for USDC in %s, %s of USDC left on the chain and in the ledger\n", p.Agent, p.Credits, p.Transaction, p.OnChain)
		}
		fmt.Fprintf(w, "  ledger\t%d transactions, sums and chain right, %d holds open\n", d.sum.Ledger.Transactions, d.sum.Ledger.ActiveHolds)
		fmt.Fprintf(w, "\nRefused by policy\n")
		for _, x := range d.sum.Denied {
			fmt.Fprintf(w, "  %s\t%s: %s\n", x.Tool, x.Code, line(x.Message, 80))
		}
		fmt.Fprintf(w, "\nThe turns\n")
		for _, t := range d.sum.Turns {
			fmt.Fprintf(w, "  %s\ttrace %s\t%s\t%s\n", t.Agent, t.Trace, t.Cost, t.ID)
		}
		fmt.Fprintf(w, "\ntrace of the first turn: %s\n%d turns in %.1f s\n", d.sum.Trace, len(d.sum.Turns), float64(d.sum.ElapsedMS)/1000)
	})
}
