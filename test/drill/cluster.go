package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/anima-run/anima/test/internal/kube"
)

// minNodes is the number of nodes that the drill needs: each of three NATS servers has
// its own.
const minNodes = 3

// cluster is the cluster that KUBECONFIG names. It is accessed by kubectl only, which
// supports every kind of credentials. Its methods may be called concurrently.
type cluster struct {
	program string       // path of kubectl
	api     *kube.Client // through the proxy
	nodes   []string     // names of the nodes for the services, sorted
	close   func()       // ends the proxy
}

// kubeconfig returns an error unless KUBECONFIG names a file. The default file of kubectl
// is not used, because the drill deletes a namespace of the cluster.
func kubeconfig(value string) error {
	if value == "" {
		return errors.New("KUBECONFIG is not set; set it to the file of the cluster, whose namespace " + namespace + " the drill deletes")
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	if !slices.ContainsFunc(filepath.SplitList(value), exists) {
		return fmt.Errorf("KUBECONFIG=%s: the file does not exist", value)
	}
	return nil
}

// connect starts kubectl proxy on a socket in dir and lists the nodes. The caller closes
// the cluster; the end of ctx does not, so that a stopped drill can restore its changes.
func connect(ctx context.Context, program, dir string) (*cluster, error) {
	socket := filepath.Join(dir, "api")
	var said bytes.Buffer
	proxy := exec.CommandContext(context.WithoutCancel(ctx), program, "proxy", "--unix-socket="+socket)
	proxy.Stdout, proxy.Stderr = &said, &said
	proxy.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal must not end it
	if err := proxy.Start(); err != nil {
		return nil, fmt.Errorf("kubectl proxy: %w", err)
	}
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended(fmt.Errorf("kubectl proxy: %w", proxy.Wait()))
	}()
	c := &cluster{program: program}
	c.close = func() {
		_ = proxy.Process.Signal(syscall.SIGTERM) // it may have ended
		<-done
	}
	c.api = kube.New("http://localhost", &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}})
	err := poll(ctx, 20*time.Second, 100*time.Millisecond, func(ctx context.Context) (err error) {
		c.nodes, err = c.list(ctx)
		return err
	})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("%w: %s", err, tail(said.String(), 500))
	}
	return c, nil
}

// list returns the names of the nodes that accept pods without tolerations.
func (c *cluster) list(ctx context.Context) ([]string, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				Taints []struct{ Effect string }
			}
		}
	}
	if err := c.api.Get(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, err
	}
	var names []string
	for _, n := range list.Items {
		if !slices.ContainsFunc(n.Spec.Taints, func(t struct{ Effect string }) bool { return t.Effect != "PreferNoSchedule" }) {
			names = append(names, n.Metadata.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// kubectl runs kubectl with in as its input and returns its output.
func (c *cluster) kubectl(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	p := exec.CommandContext(ctx, c.program, args...)
	var out, errs bytes.Buffer
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(in), &out, &errs
	if err := p.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("kubectl: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// k runs kubectl in the namespace.
func (c *cluster) k(ctx context.Context, args ...string) (string, error) {
	out, err := c.kubectl(ctx, nil, append([]string{"-n", namespace}, args...)...)
	return string(out), err
}
