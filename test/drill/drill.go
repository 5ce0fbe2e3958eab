package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Options are the settings of a drill.
type Options struct {
	Root    string   // root of the repository, absolute
	Overlay string   // folder in Root that is deployed
	Steps   []string // names of steps, run in the order of the table; empty means all
	Agents  int      // agents of a load, each with one message in progress
	Times   int      // how often nodes are drained and killed, each time another one
	Rate    float64  // turns per second that the steady load must reach; 0 means no minimum
	From    string   // commit to upgrade from
	Outside string   // IP:PORT outside of the cluster that accepts connections; may be empty

	commands []*command
}

// step is one step of the drill. An error of run is a failed check. If a command of needs
// is missing, the step is not run, and the report says so.
type step struct {
	name, proves string
	run          func(context.Context, *world) error
	needs        []string
}

// steps returns the steps in their order. Each step restores the state before it.
func steps() []step {
	return []step{
		{"deploy", "one apply brings an empty cluster up in a minute, without a restart", deploy, nil},
		{"steady", "what the services do while nothing is taken away: later steps are compared with it", steady, nil},
		{"services", "rolling updates of the six services and of Jaeger lose and double nothing", services, nil},
		{"control", "with draining off the same rollout is noticed: the drill can say no", control, nil},
		{"nats", "a rolling update of NATS loses and doubles nothing", rollNATS, nil},
		{"apart", "no run is lost while the queue of runs and its durable have their leaders on different servers and the processors are full", apart, []string{"busy"}},
		{"postgres", "Postgres may go away and come back: turns wait", postgres, nil},
		{"drain", "any node may be drained", drain, nil},
		{"kill", "any node may crash", kill, []string{"node-stop", "node-start"}},
		{"scale", "five routers do four times the work of one", scale, nil},
		{"autoscale", "KEDA adds replicas by the lag, and takes them away one by one", autoscale, nil},
		{"policies", "who may speak with whom, allowed and denied both seen", policies, nil},
		{"upgrade", "from the previous commit and back, under load; the migration runs twice", upgrade, []string{"load"}},
		{"traces", "a turn is one trace over six services, before, during and after a rollout", traces, nil},
		{"runbooks", "the commands of docs/runbooks", runbooks, []string{"runbooks"}},
	}
}

// names returns the names of the steps in their order.
func names() []string {
	var out []string
	for _, s := range steps() {
		out = append(out, s.name)
	}
	return out
}

// describe returns the steps with what each proves and the flags of its commands, one per
// line.
func describe() string {
	var b strings.Builder
	for _, s := range steps() {
		fmt.Fprintf(&b, "  %-10s %s", s.name, s.proves)
		if len(s.needs) > 0 {
			b.WriteString(" (needs -" + strings.Join(s.needs, ", -") + ")")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// run runs the steps and writes a line for each check to out. Its error means that the
// drill could not begin; failed checks are in the report.
func run(ctx context.Context, o Options, out io.Writer) (*Report, error) {
	if o.Agents < 1 || o.Times < 1 {
		return nil, errors.New("agents and times are at least 1")
	}
	chosen, err := choose(o.Steps)
	if err != nil {
		return nil, err
	}
	if err := kubeconfig(os.Getenv("KUBECONFIG")); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "drill-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a remainder is in the temporary folder
	c, err := connect(ctx, "kubectl", dir)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if len(c.nodes) < minNodes {
		return nil, fmt.Errorf("the cluster has %d nodes for the services (%s), and the drill needs %d", len(c.nodes), strings.Join(c.nodes, " "), minNodes)
	}
	w := &world{cluster: c, Options: o, dir: dir, report: newReport(out)}
	for _, s := range chosen {
		w.step(ctx, s)
		if ctx.Err() != nil {
			return w.report, context.Cause(ctx)
		}
	}
	return w.report, nil
}

// step runs one step, unless a command that it needs is missing.
func (w *world) step(ctx context.Context, s step) {
	w.report.begin(s)
	defer w.report.end()
	if why := w.missing(s.needs...); why != "" {
		w.notRun(s.proves, why)
		return
	}
	err := s.run(ctx, w)
	var no notRun
	switch {
	case errors.As(err, &no):
		w.notRun(s.proves, no.Error())
	case err != nil:
		w.report.add(Failed, "the step ends", err.Error())
	}
}

func choose(wanted []string) ([]step, error) {
	all := steps()
	if len(wanted) == 0 {
		return all, nil
	}
	for _, n := range wanted {
		if !slices.Contains(names(), n) {
			return nil, fmt.Errorf("there is no step %q; there are %s", n, strings.Join(names(), " "))
		}
	}
	return slices.DeleteFunc(all, func(s step) bool { return !slices.Contains(wanted, s.name) }), nil
}
