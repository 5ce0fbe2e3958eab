package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestMain lets the test program be kubectl: a proxy for an API server with three nodes.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "kubectl" {
		os.Exit(m.Run())
	}
	if err := fakeKubectl(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fakeKubectl(args []string) error {
	raw, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	socket, proxy := strings.CutPrefix(args[len(args)-1], "--unix-socket=")
	if !proxy {
		in, err := io.ReadAll(os.Stdin)
		fmt.Printf("%s %q %s", args, in, raw)
		return err
	}
	if strings.Contains(string(raw), "expired") {
		return errors.New("the certificate has expired")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "localhost" { // kubectl proxy accepts the names of this machine only
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		if r.URL.Path != "/api/v1/nodes" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"items":[
			{"metadata":{"name":"w2"}}, {"metadata":{"name":"w1"},"spec":{"taints":[{"effect":"PreferNoSchedule"}]}},
			{"metadata":{"name":"control-plane"},"spec":{"taints":[{"effect":"NoSchedule"}]}}]}`)
	}))
}

// program returns the path of the fake kubectl.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubectl")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func config(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// socketDir returns a folder whose path is short enough for a Unix socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "drill-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestConnect(t *testing.T) {
	t.Setenv("KUBECONFIG", config(t, "mine"))
	ctx, cancel := context.WithCancel(t.Context())
	c, err := connect(ctx, program(t), socketDir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if want := []string{"w1", "w2"}; !slices.Equal(c.nodes, want) {
		t.Errorf("nodes: got %v, want %v", c.nodes, want)
	}
	cancel() // the drill restores its changes after that
	if err := c.api.Get(t.Context(), "/none", nil); !absent(err) {
		t.Errorf("after the end of the context: got %v, want an answer of the server", err)
	}
	if out, err := c.kubectl(t.Context(), []byte("in"), "apply", "-f", "-"); err != nil || string(out) != `[apply -f -] "in" mine` {
		t.Errorf("kubectl: got %q, %v", out, err)
	}
	t.Setenv("KUBECONFIG", config(t, "expired"))
	if _, err := c.k(t.Context(), "get", "pods"); err != nil {
		t.Error(err)
	}
}

// TestConnectFails checks that the error has the words of kubectl.
func TestConnectFails(t *testing.T) {
	t.Setenv("KUBECONFIG", config(t, "expired"))
	if _, err := connect(t.Context(), program(t), socketDir(t)); err == nil || !strings.Contains(err.Error(), "the certificate has expired") {
		t.Errorf("got %v", err)
	}
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	there := config(t, "")
	for value, want := range map[string]string{
		"": "KUBECONFIG is not set", "/none": "does not exist", there: "", "/none:" + there: "", // as kubectl, which merges the files that exist
	} {
		err := kubeconfig(value)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", value, err, want)
		}
	}
}

// TestStart checks what ends the drill before its first step.
func TestStart(t *testing.T) {
	t.Setenv("PATH", filepath.Dir(program(t))+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", "")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"KUBECONFIG is not set", []string{"steady"}},
		{"there is no step", []string{"depoly"}},
		{"at least 1", []string{"-times", "0"}},
		{"want text or json", []string{"-o", "xml"}},
		{"{node} is missing", []string{"-node-stop", "true"}},
	} {
		if err := start(t.Context(), c.args, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.args, err, c.want)
		}
	}
	t.Setenv("KUBECONFIG", config(t, "mine"))
	t.Setenv("TMPDIR", socketDir(t))
	if err := start(t.Context(), []string{"steady"}, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "2 nodes for the services (w1 w2), and the drill needs 3") {
		t.Errorf("two nodes: got %v", err)
	}
}
