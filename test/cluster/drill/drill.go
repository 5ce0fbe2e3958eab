// Package drill runs the six services in the lab and causes failures while messages are
// sent: it restarts every pod, NATS and Postgres, drains and kills nodes, and upgrades
// the release. Each step checks that no run was lost or failed and that no completion was
// paid twice. Negative controls check that the drill detects failures. It changes only
// the namespace anima and what it names in the lab, and it must use no evidence but that
// of a client of anima, the API server and Jaeger.
package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/test/cluster/internal/kube"
)

// Lab holds the functions of the lab that the drill uses. All fields are required except
// Runbooks.
type Lab struct {
	Root  string       // root of the repository
	Nodes int          // number of nodes, at least 3
	API   *kube.Client // with the administrator's certificate

	// Kubectl runs kubectl with in as its input and returns its output.
	Kubectl func(ctx context.Context, in []byte, args ...string) ([]byte, error)
	// Inside starts a program in the lab's network; the caller waits for it.
	Inside func(c *exec.Cmd) error
	// Listen listens in the network between the nodes, at an address outside of the
	// cluster. Closing the listener removes the address.
	Listen func(ctx context.Context, addr string) (io.Closer, error)
	// Dial connects from the network between the nodes.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Node kills ("kill") or starts ("start") a node; the first is 1.
	Node func(ctx context.Context, verb string, n int) error
	// Load imports an image archive on every node under a name.
	Load func(ctx context.Context, name, file string) error
	// Images imports the images that were built for the lab and are missing on a node.
	Images func(ctx context.Context) error
	// FreeVolumes empties the volumes whose claim was deleted.
	FreeVolumes func(ctx context.Context) error
	// KEDA installs KEDA. built reports whether its programs were built before; otherwise
	// it does nothing.
	KEDA func(ctx context.Context) (built bool, err error)
	// Cache is the folder for built programs and images, outside of the clone.
	Cache string
	// Runbooks runs the commands of docs/runbooks; nil if there is no such test.
	Runbooks func(ctx context.Context) error
}

// Options are the settings of a drill. The zero value of each field is its default.
type Options struct {
	Steps  []string // names of steps, run in the order of the table; default all
	Agents int      // agents of a load, each with one message in progress; default 16
	Times  int      // how often nodes are drained and killed, each time another one; default 3
	Rate   float64  // turns per second that the steady load must reach; 0 means no minimum
	From   string   // commit to upgrade from; default HEAD~1
}

// step is one step of the drill. An error of run is a failed check.
type step struct {
	name, proves string
	run          func(context.Context, *world) error
}

// steps returns the steps in their order. Each step restores the state before it.
func steps() []step {
	return []step{
		{"deploy", "one apply brings an empty cluster up in a minute, without a restart", deploy},
		{"steady", "what the services do while nothing is taken away: later steps are compared with it", steady},
		{"services", "rolling updates of the six services and of Jaeger lose and double nothing", services},
		{"control", "with draining off the same rollout is noticed: the drill can say no", control},
		{"nats", "a rolling update of NATS loses and doubles nothing", rollNATS},
		{"apart", "no run is lost while the queue of runs and its durable have their leaders on different servers and the processors are full", apart},
		{"postgres", "Postgres may go away and come back: turns wait", postgres},
		{"drain", "any node may be drained", drain},
		{"kill", "any node may die", kill},
		{"scale", "five routers do four times the work of one", scale},
		{"autoscale", "KEDA adds replicas by the lag, and takes them away one by one", autoscale},
		{"policies", "who may speak with whom, allowed and denied both seen", policies},
		{"upgrade", "from the previous commit and back, under load; the migration runs twice", upgrade},
		{"traces", "a turn is one trace over six services, before, during and after a rollout", traces},
		{"runbooks", "the commands of docs/runbooks", runbooks},
	}
}

// Names returns the names of the steps in their order.
func Names() []string {
	var out []string
	for _, s := range steps() {
		out = append(out, s.name)
	}
	return out
}

// Describe returns the steps with what each proves, one per line.
func Describe() string {
	var b strings.Builder
	for _, s := range steps() {
		fmt.Fprintf(&b, "  %-10s %s\n", s.name, s.proves)
	}
	return b.String()
}

// Run runs the steps and writes a line for each check to out. Its error means that the
// drill could not begin; failed checks are in the report.
func Run(ctx context.Context, lab Lab, o Options, out io.Writer) (*Report, error) {
	if o.Agents == 0 {
		o.Agents = 16
	}
	if o.Times == 0 {
		o.Times = 3
	}
	if o.From == "" {
		o.From = "HEAD~1"
	}
	if o.Agents < 1 || o.Times < 1 {
		return nil, errors.New("agents and times are at least 1")
	}
	chosen, err := choose(o.Steps)
	if err != nil {
		return nil, err
	}
	if lab.Nodes < 3 {
		return nil, fmt.Errorf("the lab has %d nodes, and the drill needs 3: run up -nodes 3", lab.Nodes)
	}
	dir, err := os.MkdirTemp("", "drill-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a remainder is in the temporary folder
	w := &world{Lab: lab, Options: o, dir: dir, report: &Report{began: time.Now(), out: out}}
	for _, s := range chosen {
		w.report.begin(s)
		if err := s.run(ctx, w); err != nil {
			w.report.add(Failed, "the step ends", err.Error())
		}
		w.report.end()
		if ctx.Err() != nil {
			return w.report, context.Cause(ctx)
		}
	}
	return w.report, nil
}

func choose(names []string) ([]step, error) {
	all := steps()
	if len(names) == 0 {
		return all, nil
	}
	for _, n := range names {
		if !slices.ContainsFunc(all, func(s step) bool { return s.name == n }) {
			return nil, fmt.Errorf("there is no step %q; there are %s", n, strings.Join(Names(), " "))
		}
	}
	return slices.DeleteFunc(all, func(s step) bool { return !slices.Contains(names, s.name) }), nil
}
