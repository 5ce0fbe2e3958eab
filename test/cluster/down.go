package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/anima-run/anima/test/cluster/internal/netns"
	"github.com/anima-run/anima/test/internal/kube"
)

// down ends the lab's processes, then removes its namespaces and control groups, and
// checks that all of them are gone.
func (l *lab) down(ctx context.Context, wipe bool) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	s := newSteps()
	names, err := l.procs().Names()
	if err != nil {
		return err
	}
	// Nodes are stopped before the control plane, because they wait for it when it is
	// gone.
	slices.SortFunc(names, func(a, b string) int { return stopOrder(a) - stopOrder(b) })
	for _, name := range names {
		sig, grace := syscall.SIGTERM, 5*time.Second
		if strings.HasPrefix(name, "node") {
			sig = syscall.SIGKILL // process 1 of the node: the kernel kills all its processes, too
		}
		if err := l.procs().Stop(ctx, name, sig, grace); err != nil {
			return err
		}
	}
	s.done("%d processes ended", len(names))
	all, err := filepath.Glob(netns.Path(labName + "*"))
	if err != nil {
		return err
	}
	for _, p := range all {
		if _, err := command(ctx, "ip", "netns", "del", filepath.Base(p)); err != nil {
			return err
		}
	}
	if err := cgroups.Remove(ctx, labName, 20*time.Second); err != nil {
		return err
	}
	s.done("%d network namespaces and the control groups removed", len(all))
	if wipe {
		// The folder must not contain mounts, through which files of this machine could
		// be deleted. Those of the nodes have ended with their namespaces.
		raw, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			return err
		}
		if strings.Contains(string(raw), " "+l.dir+"/") {
			return fmt.Errorf("something is still mounted below %s; not wiped", l.dir)
		}
		if err := os.RemoveAll(l.dir); err != nil {
			return err
		}
		l.conf = conf{}
		s.done("state wiped")
	}
	return nil
}

func stopOrder(name string) int {
	if i := slices.Index([]string{"kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"}, name); i >= 0 {
		return i + 1
	}
	return 0
}

// node kills a node or starts it again.
func (l *lab) node(ctx context.Context, args []string) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	if len(args) != 2 {
		return errors.New("want: node kill N, or node start N")
	}
	n, err := nodeNumber(args[1:])
	if err != nil {
		return err
	}
	if n > l.Nodes {
		return fmt.Errorf("the lab has %d nodes", l.Nodes)
	}
	s := newSteps()
	api, err := l.api(labName)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	switch args[0] {
	case "kill":
		if err := l.procs().Stop(ctx, nodeName(n), syscall.SIGKILL, 5*time.Second); err != nil {
			return err
		}
		s.done("%s killed; the cluster notices within 20 s", nodeName(n))
		return nil
	case "start":
		if _, alive := l.procs().Get(nodeName(n)); alive {
			return fmt.Errorf("%s runs", nodeName(n))
		}
		// The last stored condition may still be ready: wait for a newer one.
		before, err := readyCondition(ctx, api, n)
		if err != nil {
			return err
		}
		if err := l.startNode(ctx, n); err != nil {
			return err
		}
		err = poll(ctx, 200*time.Millisecond, func() error {
			if _, alive := l.procs().Get(nodeName(n)); !alive {
				cancel()
				return fmt.Errorf("it ended; see %s", l.path("log", nodeName(n)+".log"))
			}
			c, err := readyCondition(ctx, api, n)
			if err != nil {
				return err
			}
			if c.Status != "True" || c.LastHeartbeatTime.Equal(before.LastHeartbeatTime) {
				return errors.New(nodeName(n) + " is not ready")
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.done("%s ready", nodeName(n))
		return nil
	default:
		return fmt.Errorf("node %s: want kill or start", args[0])
	}
}

// condition is a condition of a node, set by its kubelet or by the controllers.
type condition struct {
	Type              string
	Status            string
	LastHeartbeatTime time.Time
}

func readyCondition(ctx context.Context, api *kube.Client, n int) (condition, error) {
	var node struct {
		Status struct{ Conditions []condition }
	}
	if err := api.Get(ctx, "/api/v1/nodes/"+nodeName(n), &node); err != nil {
		return condition{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			return c, nil
		}
	}
	return condition{}, nil
}

func nodeReady(ctx context.Context, api *kube.Client, n int) (bool, error) {
	c, err := readyCondition(ctx, api, n)
	return c.Status == "True", err
}

// status prints the processes of the lab and the state of the cluster.
func (l *lab) status(ctx context.Context) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	names, err := l.procs().Names()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		fmt.Println("the lab is down; its state would be in", l.dir)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	api, apiErr := l.api(labName)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, name := range names {
		r, alive := l.procs().Get(name)
		state := "runs"
		if !alive {
			state = "DEAD"
		}
		word := ""
		if n := 0; apiErr == nil {
			if _, err := fmt.Sscanf(name, "node%d", &n); err == nil {
				if ok, err := nodeReady(ctx, api, n); err != nil {
					word = err.Error()
				} else if ok {
					word = "ready"
				} else {
					word = "not ready"
				}
			}
		}
		fmt.Fprintf(w, "%s\tprocess %d\t%s\t%s\n", name, r.PID, state, word)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for n := 1; n <= l.Nodes; n++ {
		c := exec.CommandContext(ctx, "nft", "list", "counters", "table", "inet", "anima_netpol")
		var out strings.Builder
		c.Stdout = &out
		if err := netns.Do(nodeNetns(n), c.Run); err == nil {
			fmt.Printf("%s refused by network policies since the last change: %s\n", nodeName(n), counters(out.String()))
		}
	}
	files, err := l.archives()
	if err != nil {
		return err
	}
	for _, tag := range sortedKeys(l.Images) {
		fmt.Println("image", tag)
	}
	fmt.Printf("%d loaded images; state in %s; kubeconfig %s (inside the lab's network only)\n", len(files)-len(l.Images), l.dir, l.kubeconfig("admin"))
	return nil
}

// counters reduces nft's list of counters to NAME PACKETS.
func counters(text string) string {
	var out []string
	f := strings.Fields(text)
	for i, w := range f {
		if w == "counter" && i+4 < len(f) {
			out = append(out, f[i+1]+" "+f[i+4])
		}
	}
	return strings.Join(out, ", ")
}
