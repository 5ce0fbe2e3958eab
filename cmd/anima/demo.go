package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
)

//go:embed demo/nova.md
var novaMD string

type demoCmd struct {
	Keep bool `help:"Keep the demo's folder and print it."`
}

// demoSettings keep the demo apart from everything else on the machine: no port,
// no provider, no collector but one that is asked for.
var demoSettings = map[string]string{ //nolint:gochecknoglobals // a table
	"ANIMA_HTTP_ADDR": "", "ANIMA_OPS_ADDR": "", "ANIMA_DATABASE_URL": "", "ANIMA_LOG": "error",
	"ANIMA_INFERENCE_ROUTER_SIMULATED": "true", "ANIMA_TREASURY_FAUCET": "true",
}

// Run tells the whole story in a fresh folder and fails when any part of it did
// not happen.
func (c demoCmd) Run(ctx context.Context, a *app) error {
	dir, err := os.MkdirTemp("", "anima-demo-")
	if err != nil {
		return err
	}
	if c.Keep {
		defer fmt.Fprintln(a.Err, "the demo's data is in", dir)
	} else {
		defer func() { _ = os.RemoveAll(dir) }() // what cannot be removed is in the temporary folder
	}
	s, err := a.open(ctx, dir, "", demoSettings)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	told := errors.New("the story is told")
	d := &story{app: a, bus: s.bus, began: time.Now(), out: newProgress(a)}
	err = s.serve(ctx, func(ctx context.Context, _ host.Addrs) error {
		if err := d.tell(ctx); err != nil {
			return err
		}
		return told
	})
	d.out.done()
	if !errors.Is(err, told) {
		return err
	}
	return d.report()
}

// story is the demo as it is told.
type story struct {
	app   *app
	bus   *bus.Bus
	began time.Time
	out   *progress
	turns []api.Turn
	seen  map[string]bool
	sum   summary
}

// summary is what the demo prints with -o json.
type summary struct {
	Turns     []demoTurn       `json:"turns"`
	Balances  []api.Balance    `json:"balances"`
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

func (d *story) tell(ctx context.Context) error {
	d.seen = map[string]bool{}
	events := make(chan bus.Stored, 1024)
	following, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	lost := make(chan error, 1)
	wg.Go(func() {
		lost <- d.bus.Follow(following, 0, func(m bus.Stored) error { events <- m; return nil },
			api.LoopEnd{}.Subject().All(), api.ToolStart{}.Subject().All(), api.ToolEnd{}.Subject().All(), api.LoopError{}.Subject().All())
	})
	until := func(what string, fits func(api.LoopEnd) bool) (api.LoopEnd, error) {
		return d.until(ctx, events, lost, what, fits)
	}

	d.out.head("Two agents are born and given a dollar each")
	lucky, err := d.birth(ctx, luckyMD)
	if err != nil {
		return err
	}
	nova, err := d.birth(ctx, novaMD)
	if err != nil {
		return err
	}

	d.out.head("You ask Lucky to work")
	run, err := d.send(ctx, lucky.ID, "Write a short note about what you are, count its words, and remember the count.")
	if err != nil {
		return err
	}
	if _, err := until("Lucky's work", of(run)); err != nil {
		return err
	}

	d.out.head("You ask Nova to greet Lucky; the message wakes Lucky")
	run, err = d.send(ctx, nova.ID, "Greet "+lucky.Address+": hello neighbour, how are you?")
	if err != nil {
		return err
	}
	if _, err := until("Nova's greeting", of(run)); err != nil {
		return err
	}
	if _, err := until("Lucky, woken by the greeting", func(e api.LoopEnd) bool { return e.Agent == lucky.ID && e.Run != run }); err != nil {
		return err
	}

	d.out.head("You ask for something forbidden; policy refuses the call")
	run, err = d.send(ctx, lucky.ID, "Do something forbidden: delete everything.")
	if err != nil {
		return err
	}
	if _, err := until("the refusal", of(run)); err != nil {
		return err
	}

	d.out.head("Lucky sleeps for a second and is woken by its alarm")
	run, err = d.send(ctx, lucky.ID, "Go to sleep for a second.")
	if err != nil {
		return err
	}
	if _, err := until("the sleep", of(run)); err != nil {
		return err
	}
	if g, err := bus.Call[api.Agent](ctx, d.bus, api.GetAgent{Agent: lucky.ID}); err != nil || g.State != api.StateSleeping && g.State != api.StateRunning {
		return errors.Join(err, fmt.Errorf("lucky is %s, not asleep", g.State))
	}
	if _, err := until("Lucky, woken by its alarm", func(e api.LoopEnd) bool { return e.Agent == lucky.ID && e.Run != run }); err != nil {
		return err
	}
	return d.check(ctx, lucky, nova)
}

func of(run string) func(api.LoopEnd) bool {
	return func(e api.LoopEnd) bool { return e.Run == run }
}

func (d *story) birth(ctx context.Context, source string) (api.Agent, error) {
	g, err := bus.Call[api.Agent](ctx, d.bus, api.ApplyAgent{Source: source})
	if err != nil {
		return g, err
	}
	if _, err := bus.Call[api.Posted](ctx, d.bus, api.Deposit{ID: "demo-" + g.ID, Agent: g.ID, Amount: api.Dollar, Source: "faucet"}); err != nil {
		return g, err
	}
	d.out.line("%s lives at %s with %s", g.Name, g.Address, api.Dollar)
	return g, nil
}

func (d *story) send(ctx context.Context, agent, text string) (string, error) {
	acc, err := bus.Call[api.Accepted](ctx, d.bus, api.SendMessage{Agent: agent, Content: text})
	if err != nil {
		return "", err
	}
	d.out.line("you → %s: %s", agent, text)
	return acc.Run, nil
}

// until prints what happens until the run ends that fits.
func (d *story) until(ctx context.Context, events <-chan bus.Stored, lost <-chan error, what string, fits func(api.LoopEnd) bool) (api.LoopEnd, error) {
	for {
		d.out.waiting(what)
		select {
		case <-ctx.Done():
			return api.LoopEnd{}, fmt.Errorf("%s did not come: %w", what, ctx.Err())
		case err := <-lost:
			return api.LoopEnd{}, fmt.Errorf("%s: %w", what, err)
		case m := <-events:
			e, err := eventOf(m)
			if err != nil {
				return api.LoopEnd{}, err
			}
			if e.name != "loop_end" {
				d.out.line("%s", e.text())
				continue
			}
			var end api.LoopEnd
			if err := api.Decode(m.Data, &end); err != nil {
				return end, err
			}
			if err := d.show(ctx, end); err != nil {
				return end, err
			}
			if !end.Success {
				return end, fmt.Errorf("%s: the run %s failed", what, end.Run)
			}
			if fits(end) {
				return end, nil
			}
		}
	}
}

// show prints the turns of a run that ended.
func (d *story) show(ctx context.Context, end api.LoopEnd) error {
	turns, err := bus.Call[api.Turns](ctx, d.bus, api.ListTurns{Run: end.Run})
	if err != nil {
		return err
	}
	for i := len(turns.Turns) - 1; i >= 0; i-- {
		t := turns.Turns[i]
		if d.seen[t.ID] {
			continue
		}
		d.seen[t.ID] = true
		d.turns = append(d.turns, t)
		words := line(t.Thinking, 90)
		if words == "" {
			words = fmt.Sprintf("(%d calls)", len(t.Calls))
		}
		d.out.line("%s, turn %d: %s   %s", end.Agent, t.Number, words, t.Cost)
	}
	return nil
}

// check proves that all of it happened, from the services' own books.
func (d *story) check(ctx context.Context, agents ...api.Agent) error {
	var paid api.Micros
	calls := map[string]api.Outcome{}
	for _, t := range d.turns {
		paid += t.Cost
		d.sum.Turns = append(d.sum.Turns, demoTurn{ID: t.ID, Agent: t.Agent, Trace: t.Trace, Cost: t.Cost})
		for _, c := range t.Calls {
			calls[c.Tool+"/"+string(c.Outcome)] = c.Outcome
		}
	}
	for _, want := range []string{"write_file/ok", "exec/ok", "check_credits/ok", "remember_fact/ok", "send_message/ok", "exec/denied", "sleep/ok"} {
		if _, ok := calls[want]; !ok {
			return fmt.Errorf("no call ended as %s", want)
		}
	}
	var left api.Micros
	for _, g := range agents {
		b, err := bus.Call[api.Balance](ctx, d.bus, api.GetBalance{Agent: g.ID})
		if err != nil {
			return err
		}
		if b.Held != 0 {
			return fmt.Errorf("%s has %s held with nothing to do", g.ID, b.Held)
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
	if given := api.Micros(len(agents)) * api.Dollar; given != left+paid {
		return fmt.Errorf("%s was given, %s is left and %s was paid: the books do not add up", given, left, paid)
	}
	if len(d.sum.Denied) == 0 {
		return errors.New("policy recorded no refusal")
	}
	var err error
	if d.sum.Ledger, err = bus.Call[api.LedgerReport](ctx, d.bus, api.VerifyLedger{}); err != nil {
		return err
	}
	if !d.sum.Ledger.OK {
		return fmt.Errorf("the ledger is not right: %v", d.sum.Ledger.Faults)
	}
	d.sum.Trace = d.turns[0].Trace
	d.sum.ElapsedMS = time.Since(d.began).Milliseconds()
	return nil
}

func (d *story) report() error {
	return d.app.print(d.sum, func(w io.Writer) {
		fmt.Fprintf(w, "\nThe money\n")
		for _, b := range d.sum.Balances {
			fmt.Fprintf(w, "  %s\t%s left\ttier %s\n", b.Agent, b.Available, b.Tier)
		}
		fmt.Fprintf(w, "  ledger\t%d transactions, sums and chain right, %d holds open\n", d.sum.Ledger.Transactions, d.sum.Ledger.ActiveHolds)
		for _, x := range d.sum.Denied {
			fmt.Fprintf(w, "Refused by policy\n  %s\t%s: %s\n", x.Tool, x.Code, line(x.Message, 80))
		}
		fmt.Fprintf(w, "The turns\n")
		for _, t := range d.sum.Turns {
			fmt.Fprintf(w, "  %s\ttrace %s\t%s\t%s\n", t.Agent, t.Trace, t.Cost, t.ID)
		}
		fmt.Fprintf(w, "trace of the first turn: %s\n%d turns in %.1f s\n", d.sum.Trace, len(d.sum.Turns), float64(d.sum.ElapsedMS)/1000)
	})
}

// progress prints lines; on a terminal it also says what it waits for.
type progress struct {
	w     io.Writer
	live  bool
	shown bool
}

func newProgress(a *app) *progress {
	w := a.Out
	if a.cli.Output == "json" {
		w = a.Err // the output is one JSON value
	}
	f, ok := w.(*os.File)
	return &progress{w: w, live: ok && term.IsTerminal(int(f.Fd()))}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) head(s string) {
	p.clear()
	fmt.Fprintf(p.w, "\n%s\n", s)
}

func (p *progress) line(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, "  "+format+"\n", args...)
}

func (p *progress) waiting(what string) {
	if p.live {
		p.clear()
		fmt.Fprintf(p.w, "  … %s", what)
		p.shown = true
	}
}

func (p *progress) done() { p.clear() }
