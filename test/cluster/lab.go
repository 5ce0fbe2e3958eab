package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/anima-run/anima/test/cluster/internal/netns"
	"github.com/anima-run/anima/test/cluster/internal/pki"
	"github.com/anima-run/anima/test/cluster/internal/proc"
	"github.com/anima-run/anima/test/internal/kube"
)

// Names and addresses of the lab. The addresses exist only inside its network namespaces,
// so they cannot conflict with those of the machine.
const (
	labName  = "anima-lab" // name of namespaces and control groups
	maxNodes = 9
	volumes  = 20

	lan       = "10.99.0" // node N has the address .10+N
	apiIP     = lan + ".1"
	apiServer = "https://" + apiIP + ":6443"
	services  = "10.96.0.0/16"
	serviceIP = "10.96.0.1"
	dnsIP     = "10.96.0.10"
	podNet    = "10.244" // node N has the subnet .N.0/24
)

// lab is one lab on this machine, with the folder that holds its state:
//
//	lab.json     its configuration
//	bin/         this program, for the nodes
//	pki/ conf/   certificates; kubeconfigs
//	run/ log/    process records; output of the processes
//	etcd/        data of the cluster
//	nodes/       one folder for each node
//	volumes/     persistent volumes
//	images/      loaded images
type lab struct {
	dir string
	conf
}

// conf is the content of lab.json.
type conf struct {
	Nodes  int               `json:"nodes"`
	Bin    string            `json:"bin"`    // folder of the programs of Kubernetes
	Images map[string]string `json:"images"` // NAME:TAG to archive, of the images that build has made
}

func open() (*lab, error) {
	l := &lab{dir: os.Getenv("ANIMA_LAB")}
	if l.dir == "" {
		l.dir = "/var/lib/" + labName
	}
	var err error
	if l.dir, err = filepath.Abs(l.dir); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(l.path("lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &l.conf); err != nil {
		return nil, fmt.Errorf("%s: %w; run down -wipe", l.path("lab.json"), err)
	}
	return l, nil
}

func (l *lab) save() error {
	raw, err := json.MarshalIndent(l.conf, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.path("lab.json"), append(raw, '\n'), 0o644)
}

func (l *lab) path(elem ...string) string {
	return filepath.Join(append([]string{l.dir}, elem...)...)
}

func (l *lab) pki() pki.Dir               { return pki.Dir(l.path("pki")) }
func (l *lab) procs() proc.Dir            { return proc.Dir(l.path("run")) }
func (l *lab) kubeconfig(u string) string { return l.path("conf", u+".conf") }
func (l *lab) self() string               { return l.path("bin", labName) }

func nodeName(n int) string  { return fmt.Sprintf("node%d", n) }
func nodeIP(n int) string    { return fmt.Sprintf("%s.%d", lan, 10+n) }
func nodeNetns(n int) string { return fmt.Sprintf("%s-n%d", labName, n) }
func nodeSubnet(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("%s.%d.0/24", podNet, n))
}

// api returns a client that dials from the network namespace ns; empty means the current
// namespace.
func (l *lab) api(ns string) (*kube.Client, error) {
	var dial func(ctx context.Context, network, addr string) (net.Conn, error)
	if ns != "" {
		dial = netns.Dialer(ns)
	}
	p := l.pki()
	h, err := kube.HTTPClient(p.Path("ca.crt"), p.Path("admin.crt"), p.Path("admin.key"), dial)
	if err != nil {
		return nil, err
	}
	return kube.New(apiServer, h), nil
}

// env returns the environment of programs that use the cluster.
func (l *lab) env() []string {
	return append(os.Environ(), "KUBECONFIG="+l.kubeconfig("admin"), "PATH="+l.Bin+":"+os.Getenv("PATH"))
}

// kubectl runs kubectl with in as its input and returns its output.
func (l *lab) kubectl(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, filepath.Join(l.Bin, "kubectl"), args...)
	c.Env = l.env()
	return inside(c, in)
}

// exec replaces this program by args inside the lab's network.
func (l *lab) exec(args []string) error {
	if len(args) == 0 {
		return errors.New("say what to run: exec -- CMD")
	}
	if err := mustBeRoot(); err != nil {
		return err
	}
	if l.Bin == "" {
		return errors.New("there is no lab; run up first")
	}
	env := l.env()
	path := filepath.Join(l.Bin, args[0])
	if _, err := os.Stat(path); err != nil || filepath.Base(args[0]) != args[0] {
		var err error
		if path, err = exec.LookPath(args[0]); err != nil {
			return err
		}
	}
	return netns.Exec(labName, append([]string{path}, args[1:]...), env)
}

// poll calls f at intervals until it returns nil. If ctx ends before, poll returns f's
// last error.
func poll(ctx context.Context, every time.Duration, f func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// steps prints completed steps with their durations.
type steps struct{ start, last time.Time }

func newSteps() *steps { now := time.Now(); return &steps{now, now} }

func (s *steps) done(format string, a ...any) {
	now := time.Now()
	fmt.Printf("%6.1f s  +%5.1f s  %s\n", now.Sub(s.start).Seconds(), now.Sub(s.last).Seconds(), fmt.Sprintf(format, a...))
	s.last = now
}
