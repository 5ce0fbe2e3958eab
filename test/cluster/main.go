// Command cluster is the lab: a real Kubernetes with up to nine nodes on one Linux
// machine, without a registry, a container engine or a separate init system. It builds
// every program from pinned Go modules and runs them in network namespaces without a
// connection to other networks. It must end only processes that it has started. See
// README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/anima-run/anima/test/cluster/internal/netpol"
)

const usage = `usage: go run . COMMAND

  build [core|addons|nats|postgres|jaeger|keda]...   build what is missing (default: all but keda)
  up [-nodes N] [-wipe] [-keda]    bring the cluster up; 3 nodes, or NODES; 0 is the control plane alone
  load [NAME:TAG] FILE.tar...      import image archives on every node
  addon keda [-built]              install KEDA; -built: unless it would have to be built
  kubectl ...                      kubectl, as the administrator
  exec -- CMD...                   run a program inside the lab's network, with KUBECONFIG set
  node kill|start N                crash a node, by its number or name; bring it back
  runbook [FILE...]                run docs/runbooks; all, or the named ones
  volumes                          empty the volumes that no claim uses any more
  status                           what runs
  path NAME                        where a built program is
  down [-wipe]                     end everything; -wipe also deletes all state
`

// notRun is the error of a machine that cannot run the lab: a suite that needs the lab
// was not run, which is neither a success nor a failure.
type notRun string

func (e notRun) Error() string { return string(e) }

// exitNotRun is the exit code for notRun.
const exitNotRun = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if filepath.Base(os.Args[0]) == netpol.Plugin {
		os.Exit(netpol.RunPlugin(ctx, nodeSocket, os.Getenv, os.Stdin, os.Stdout))
	}
	err := run(ctx, os.Args[1:])
	var no notRun
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &no):
		fmt.Fprintln(os.Stderr, "NOT RUN:", err)
		os.Exit(exitNotRun)
	case errors.As(err, &exit) && exit.ExitCode() > 0 && len(exit.Stderr) == 0:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command; try help")
	}
	l, err := open()
	if err != nil {
		return err
	}
	cmd, args := args[0], args[1:]
	switch cmd {
	case "build":
		return build(ctx, args)
	case "up":
		n, err := envNodes()
		if err != nil {
			return err
		}
		fs := flag.NewFlagSet("up", flag.ContinueOnError)
		nodes := fs.Int("nodes", n, "how many nodes, 0 to 9")
		wipe := fs.Bool("wipe", false, "forget all state first")
		keda := fs.Bool("keda", false, "install KEDA too")
		if err := fs.Parse(args); err != nil {
			return err
		}
		return l.up(ctx, *nodes, *wipe, *keda)
	case "load":
		return l.load(ctx, args)
	case "addon":
		return l.addon(ctx, args)
	case "kubectl":
		return l.exec(append([]string{"kubectl"}, args...))
	case "exec":
		if len(args) > 0 && args[0] == "--" {
			args = args[1:]
		}
		return l.exec(args)
	case "node":
		return l.node(ctx, args)
	case "runbook":
		return runbooks(ctx, args)
	case "volumes":
		return l.freeVolumes(ctx)
	case "status":
		return l.status(ctx)
	case "path":
		return printPath(ctx, args)
	case "down":
		fs := flag.NewFlagSet("down", flag.ContinueOnError)
		wipe := fs.Bool("wipe", false, "forget all state")
		if err := fs.Parse(args); err != nil {
			return err
		}
		return l.down(ctx, *wipe)
	case "outside": // called by this program only
		return serveOutside(ctx, net.JoinHostPort(outsideIP, outsidePort))
	case "node-init", "node-agent": // called by this program only
		n, err := nodeNumber(args)
		if err != nil {
			return err
		}
		if cmd == "node-init" {
			return l.nodeInit(n)
		}
		return l.nodeAgent(ctx, n)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	default:
		return fmt.Errorf("unknown command %q; try help", cmd)
	}
}

func envNodes() (int, error) {
	v, ok := os.LookupEnv("NODES")
	if !ok || v == "" {
		return 3, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("NODES=%s is no number", v)
	}
	return n, nil
}

func nodeNumber(args []string) (int, error) {
	if len(args) != 1 {
		return 0, errors.New("say which node, by its number")
	}
	n, err := strconv.Atoi(strings.TrimPrefix(args[0], "node"))
	if err != nil || n < 1 || n > maxNodes {
		return 0, fmt.Errorf("node %q: want a number from 1 to %d", args[0], maxNodes)
	}
	return n, nil
}
