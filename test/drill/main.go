// Command drill runs the six services in the cluster that KUBECONFIG names and causes
// failures while messages are sent: it restarts every pod, NATS and Postgres, drains and
// kills nodes, and upgrades the release. Each step checks that no run was lost or failed
// and that no completion was paid twice. Negative controls check that the drill detects
// failures. It changes only the namespace anima and what its commands change, and it must
// use no evidence but that of a client of anima, the API server and Jaeger. What needs the
// machines below the cluster, such as killing a node, is a command given by a flag; a step
// without its command is reported as not run. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := start(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "drill:", err)
		os.Exit(1)
	}
}

// start runs the drill with the settings of args. A failed check of the drill is an
// error, too.
func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := Options{commands: newCommands()}
	fs := flag.NewFlagSet("drill", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "usage: drill [FLAG…] [STEP…]\n\nSteps, by default all:\n"+describe()+"\nFlags:\n")
		fs.PrintDefaults()
	}
	fs.IntVar(&o.Agents, "agents", 16, "agents of a load, each with one message in progress")
	fs.IntVar(&o.Times, "times", 3, "how often nodes are drained and killed, each time another one")
	fs.Float64Var(&o.Rate, "rate", 0, "turns a second that the steady load must reach; the goal is 100, which takes more than two cores")
	fs.StringVar(&o.From, "from", "HEAD~1", "the `commit` to upgrade from")
	fs.StringVar(&o.Root, "root", ".", "the root `folder` of the repository")
	fs.StringVar(&o.Overlay, "overlay", "deploy/k8s/overlays/lab", "the `folder` in the repository that is deployed")
	fs.StringVar(&o.Outside, "outside", "", "`IP:PORT` outside of the cluster that accepts connections from pods")
	for _, c := range o.commands {
		fs.Var(c, c.flag, c.usage())
	}
	prepare := fs.Bool("prepare", false, "only build the images that the step upgrade needs; needs no cluster")
	some := fs.String("steps", "", "`steps`, separated by commas; the same as naming them after the flags")
	junit := fs.String("junit", "", "a `file` for the report as JUnit has it")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *output != "text" && *output != "json" {
		return fmt.Errorf("output %q: want text or json", *output)
	}
	o.Steps = append(strings.FieldsFunc(*some, func(r rune) bool { return r == ',' }), fs.Args()...)
	var err error
	if o.Root, err = filepath.Abs(o.Root); err != nil {
		return err
	}
	if *prepare {
		return prepareUpgrade(ctx, o)
	}
	lines := stdout
	if *output == "json" {
		lines = stderr // the report must not be mixed with the lines
	}
	report, err := run(ctx, o, lines)
	if report == nil {
		return err
	}
	if *output == "json" {
		err = errors.Join(err, report.JSON(stdout))
	}
	if *junit != "" {
		err = errors.Join(err, writeWith(*junit, report.JUnit))
	}
	_, _ = fmt.Fprintln(lines, report.Summary()) // the counts are in the report, too
	if err == nil && report.Count(Failed) > 0 {
		err = fmt.Errorf("%d checks failed", report.Count(Failed))
	}
	return err
}

func writeWith(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
