package netpol

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/test/internal/kube"
)

// start runs an enforcer of n1 against an API server with one pod of that node, shop/web.
// It returns the enforcer and a channel with the applied rules. The server returns the
// list of pods only after release is closed.
func start(t *testing.T, release <-chan struct{}) (*Enforcer, <-chan string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		items := ""
		if r.URL.Path == "/api/v1/pods" {
			select {
			case <-release:
			case <-r.Context().Done():
				return
			}
			items = `{"metadata":{"namespace":"shop","name":"web"},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIP":"10.1.0.99"}}`
		}
		_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[%s]}`, items)
	}))
	e := New("n1", netip.MustParsePrefix("10.1.0.0/24"), kube.New(s.URL, s.Client()), slog.New(slog.DiscardHandler))
	applied := make(chan string, 16)
	e.apply = func(_ context.Context, rules string) error { applied <- rules; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.CloseClientConnections()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return e, applied
}

func TestNothingPassesBeforeTheClusterIsKnown(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	e, applied := start(t, release)
	first := <-applied
	for _, want := range []string{"ip saddr 10.1.0.0/24 counter name unknown drop", "ip daddr 10.1.0.0/24 counter name unknown reject"} {
		if !strings.Contains(first, want) {
			t.Errorf("the first rules lack %q:\n%s", want, first)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := e.Attach(ctx, Attachment{Container: "c", Namespace: "shop", Name: "web", IP: "10.1.0.2"}); err == nil {
		t.Error("a pod was attached before its policies were known")
	}
	close(release)
	if err := e.Attach(t.Context(), Attachment{Container: "c", Namespace: "shop", Name: "web", IP: "10.1.0.2"}); err != nil {
		t.Fatal(err)
	}
	var last string
	for !strings.Contains(last, "10.1.0.2") {
		last = <-applied
	}
	if strings.Contains(last, "10.1.0.99") {
		t.Errorf("the rules hold an address that the API remembers from before:\n%s", last)
	}
}

func TestAttachRefusesAForeignAddress(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	close(release)
	e, _ := start(t, release)
	for _, ip := range []string{"10.2.0.2", "", "x"} {
		if err := e.Attach(t.Context(), Attachment{Container: "c", Namespace: "shop", Name: "web", IP: ip}); err == nil {
			t.Errorf("%q: got no error", ip)
		}
	}
}

func TestPlugin(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	close(release)
	e, applied := start(t, release)
	dir, err := os.MkdirTemp("", "s") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx, socket) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	for { // the file exists before the socket accepts connections
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			break
		}
		<-time.After(time.Millisecond)
	}
	call := func(command, conf string) (string, int) {
		env := map[string]string{
			"CNI_COMMAND": command, "CNI_CONTAINERID": "c1",
			"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
		}
		var out bytes.Buffer
		code := RunPlugin(t.Context(), socket, func(k string) string { return env[k] }, strings.NewReader(conf), &out)
		return out.String(), code
	}
	prev := `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/24"}]}`
	if got, code := call("ADD", `{"prevResult":`+prev+`}`); code != 0 || got != prev {
		t.Errorf("ADD: got %d %s, want the result of the plugin before", code, got)
	}
	// The rules are in force when the plugin has answered.
	last := ""
	for len(applied) > 0 {
		last = <-applied
	}
	if !strings.Contains(last, "ip saddr { 10.1.0.7 } accept") {
		t.Errorf("rules after ADD:\n%s", last)
	}
	if got, code := call("ADD", `{}`); code == 0 || !strings.Contains(got, `"code":11`) {
		t.Errorf("ADD without an address: got %d %s, want an error that asks for another try", code, got)
	}
	if got, code := call("VERSION", ""); code != 0 || !strings.Contains(got, "1.0.0") {
		t.Errorf("VERSION: got %d %s", code, got)
	}
	if got, code := call("DEL", `{}`); code != 0 || got != "" {
		t.Errorf("DEL: got %d %s", code, got)
	}
	for strings.Contains(last, "10.1.0.7") {
		last = <-applied
	}
}

func TestPluginOfANodeThatIsDown(t *testing.T) {
	t.Parallel()
	env := func(command string) func(string) string {
		return func(k string) string { return map[string]string{"CNI_COMMAND": command}[k] }
	}
	socket := filepath.Join(t.TempDir(), "none")
	var out bytes.Buffer
	if code := RunPlugin(t.Context(), socket, env("DEL"), strings.NewReader("{}"), &out); code != 0 {
		t.Errorf("DEL: got %d %s; a sandbox could never be removed", code, out.String())
	}
	conf := `{"prevResult":{"ips":[{"address":"10.1.0.7/24"}]}}`
	if code := RunPlugin(t.Context(), socket, env("ADD"), strings.NewReader(conf), &out); code == 0 {
		t.Error("ADD: a pod started without its rules")
	}
}
