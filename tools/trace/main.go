// Command trace examines turns in a Jaeger: it checks the rules of docs/tracing.md
// (check) and waits until a trace is complete (wait). It exits with 1 if a rule is broken,
// and with 2 if a check was not possible. It must not change anything in Jaeger.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/anima-run/anima/tools/trace/query"
	"github.com/anima-run/anima/tools/trace/rules"
)

const usage = `usage: trace check [-turn ID | -trace ID | -all -since 1h] [flags]   PASS or FAIL for each rule of docs/tracing.md
       trace wait  [-turn ID | -trace ID] [flags]                   wait until the trace is complete

Flags of each: trace COMMAND -h.
`

// errBroken is the error of a broken rule, after the report was printed.
var errBroken = errors.New("a rule is broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.LookupEnv)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errBroken):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "trace:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, out io.Writer, lookup func(string) (string, bool)) error {
	if len(args) == 0 {
		args = []string{""}
	}
	var o options
	f := o.flags(args[0], lookup)
	if f == nil {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("there is no command %q", args[0])
	}
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected %q", f.Args())
	}
	if err := o.check(args[0]); err != nil {
		return err
	}
	c := query.Client{Base: o.jaeger}
	switch args[0] {
	case "wait":
		t, err := o.wait(ctx, c)
		if err == nil {
			_, err = fmt.Fprintln(out, t.ID)
		}
		return err
	default:
		return o.report(ctx, c, out)
	}
}

type options struct {
	jaeger, turn, trace string
	all                 bool
	since, patience     time.Duration
	skew                time.Duration
	services            string
	output              string
}

const defaultJaeger = "http://127.0.0.1:16686"

func (o *options) flags(cmd string, lookup func(string) (string, bool)) *flag.FlagSet {
	f := flag.NewFlagSet(cmd, flag.ContinueOnError)
	base := defaultJaeger
	if v, ok := lookup("ANIMA_JAEGER_URL"); ok && v != "" {
		base = v
	}
	f.StringVar(&o.jaeger, "jaeger", base, "`URL` of Jaeger's API; ANIMA_JAEGER_URL sets it, too")
	f.StringVar(&o.turn, "turn", "", "the turn's `id`, as anima turn list prints it")
	f.StringVar(&o.trace, "trace", "", "the trace's `id`")
	f.DurationVar(&o.skew, "skew", 2*time.Millisecond, "how much the clocks of machines may differ")
	switch cmd {
	case "check":
		f.BoolVar(&o.all, "all", false, "every trace of every service")
		f.DurationVar(&o.since, "since", time.Hour, "with -all: how far back")
		f.StringVar(&o.services, "services", strings.Join(rules.All(), ","), "services that must have spans, in the turn or in a linked trace")
		f.StringVar(&o.output, "o", "text", "text or json")
		f.DurationVar(&o.patience, "wait", 0, "repeat the check until it passes, for at most this long: spans arrive a second or two late")
	case "wait":
		f.DurationVar(&o.patience, "timeout", 30*time.Second, "maximum time to wait")
	default:
		return nil
	}
	return f
}

func (o *options) check(cmd string) error {
	named := 0
	for _, set := range []bool{o.turn != "", o.trace != "", o.all} {
		if set {
			named++
		}
	}
	switch {
	case named != 1 && cmd == "check":
		return errors.New("no trace is selected: give -turn ID, -trace ID or -all")
	case named != 1:
		return errors.New("no trace is selected: give -turn ID or -trace ID")
	case cmd == "check" && o.output != "text" && o.output != "json":
		return fmt.Errorf("output %q: want text or json", o.output)
	}
	if o.turn != "" {
		o.trace = query.TurnTrace(o.turn)
	}
	return nil
}

func (o *options) want() []string {
	return slices.DeleteFunc(strings.Split(o.services, ","), func(s string) bool { return strings.TrimSpace(s) == "" })
}

// retry repeats try until it is done, it fails with an error other than
// query.ErrNotFound, or o.patience expires.
func (o *options) retry(ctx context.Context, try func() (done bool, err error)) error {
	end := time.Now().Add(o.patience)
	for tick := time.NewTicker(250 * time.Millisecond); ; {
		done, err := try()
		if done || err != nil && !errors.Is(err, query.ErrNotFound) || time.Now().After(end) {
			tick.Stop()
			return err
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// wait repeats the request for the trace until it passes the rules or the time expires.
func (o *options) wait(ctx context.Context, c query.Client) (t query.Trace, err error) {
	whole := false
	err = o.retry(ctx, func() (_ bool, err error) {
		if t, err = c.Trace(ctx, o.trace); err != nil {
			return false, err
		}
		r, err := rules.Check(ctx, t, c, rules.Options{Skew: o.skew})
		whole = r.OK()
		return whole, err
	})
	if err == nil && !whole {
		err = fmt.Errorf("trace %s is incomplete; trace check -trace %s shows the faults", o.trace, o.trace)
	}
	return t, err
}

func (o *options) report(ctx context.Context, c query.Client, out io.Writer) error {
	opts := rules.Options{Services: o.want(), Skew: o.skew}
	if o.all {
		var sum rules.Summary
		err := o.retry(ctx, func() (_ bool, err error) {
			all, err := everything(ctx, c, o.since)
			if err != nil {
				return false, err
			}
			sum, err = rules.CheckAll(ctx, all, c, opts)
			return sum.OK(), err
		})
		if err != nil {
			return err
		}
		head := fmt.Sprintf("%d traces, %d turns, %d spans", sum.Traces, sum.Turns, sum.Spans)
		return o.print(out, head, sum, sum.Verdicts, sum.OK())
	}
	var r rules.Report
	err := o.retry(ctx, func() (bool, error) {
		t, err := c.Trace(ctx, o.trace)
		if err != nil {
			return false, err
		}
		r, err = rules.Check(ctx, t, c, opts)
		return r.OK(), err
	})
	if err != nil {
		return err
	}
	return o.print(out, fmt.Sprintf("trace %s, %d spans", r.Trace, r.Spans), r, r.Verdicts, r.OK())
}

// everything returns all traces of the period that Jaeger has, each of them once.
func everything(ctx context.Context, c query.Client, since time.Duration) ([]query.Trace, error) {
	services, err := c.Services(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var all []query.Trace
	seen := map[string]bool{}
	for _, s := range services {
		some, err := c.Since(ctx, s, now.Add(-since), now.Add(time.Minute))
		if err != nil {
			return nil, err
		}
		for _, t := range some {
			if !seen[t.ID] {
				seen[t.ID] = true
				all = append(all, t)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no trace of the last %s: %w", since, query.ErrNotFound)
	}
	return all, nil
}

func (o *options) print(out io.Writer, head string, v any, verdicts []rules.Verdict, ok bool) error {
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, head)
		for _, v := range verdicts {
			word := "PASS"
			if !v.Pass {
				word = fmt.Sprintf("FAIL %d", v.Count)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", word, v.Rule, v.Note)
			for _, f := range v.Faults {
				fmt.Fprintf(w, "\t\t%s\n", f)
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if !ok {
		return errBroken
	}
	return nil
}
