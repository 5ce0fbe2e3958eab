package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/services/loop/internal/egress"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// askName is the first argument of a helper process that requests a URL.
const askName = "anima-egress-ask"

func TestMain(m *testing.M) {
	sandbox.Init()
	if len(os.Args) == 3 && os.Args[1] == askName {
		os.Exit(ask(os.Args[2]))
	}
	os.Exit(m.Run())
}

// ask requests a URL through the proxy of its environment and prints the response.
func ask(address string) int {
	// Go does not use its proxy for loopback addresses; most other programs do.
	proxy, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}, Timeout: 20 * time.Second}
	res, err := client.Get(address)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(os.Stdout, res.Body)
	fmt.Println(res.StatusCode, err)
	return 0
}

// lines is a log buffer for concurrent use.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T, allow ...netip.Prefix) (*egress.Proxy, *lines) {
	t.Helper()
	log := &lines{}
	p, err := egress.Start(t.Context(), egress.Options{Allow: allow, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, log
}

// through requests a URL through a proxy.
func through(t *testing.T, proxy, address string) (int, string) {
	t.Helper()
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{Proxy: http.ProxyURL(at)}
	defer tr.CloseIdleConnections()
	client := http.Client{Transport: tr, Timeout: 20 * time.Second}
	res, err := client.Get(address)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

func hello(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "hello %s %s", r.URL.Path, r.Header.Get("Proxy-Authorization"))
}

// TestForwards tests that an allowed address is reached over http and through a tunnel,
// and that the proxy does not forward the secret.
func TestForwards(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(hello))
	t.Cleanup(plain.Close)
	p, log := start(t, loopback)
	proxy, revoke := p.Grant("ada", true)
	if status, body := through(t, proxy, plain.URL+"/a"); status != 200 || body != "hello /a " {
		t.Errorf("over http: got %d %q, want hello without the proxy's secret", status, body)
	}
	var d net.Dialer
	far, err := d.DialContext(t.Context(), "tcp", hostOf(t, proxy))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	secret, _ := at.User.Password()
	_, err = fmt.Fprintf(far, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %s\r\n\r\nGET /b HTTP/1.0\r\n\r\n",
		strings.TrimPrefix(plain.URL, "http://"), base64.StdEncoding.EncodeToString([]byte("anima:"+secret)))
	if err != nil {
		t.Fatal(err)
	}
	if err := far.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(far)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") || !strings.Contains(string(answer), "hello /b ") {
		t.Errorf("through a tunnel: got %q and error %v, want 200 and hello", answer, err)
	}
	if text := log.String(); !strings.Contains(text, "agent=ada") || !strings.Contains(text, "method=CONNECT") || strings.Contains(text, secret) {
		t.Errorf("the log is %q, want the agent and what it asked, without the secret", text)
	}
	revoke()
	if status, body := through(t, proxy, plain.URL+"/a"); status != http.StatusProxyAuthRequired {
		t.Errorf("after it was revoked: got %d %q, want 407", status, body)
	}
}

// TestLimits tests that an agent cannot take all connections of the service.
func TestLimits(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(hello))
	t.Cleanup(plain.Close)
	const most = 3
	p, err := egress.Start(t.Context(), egress.Options{Allow: []netip.Prefix{loopback}, Log: slog.New(slog.DiscardHandler), MaxConns: most, MaxRequests: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	dial := func(proxy string) (net.Conn, *bufio.Reader) {
		t.Helper()
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", hostOf(t, proxy))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	// tunnel returns the status of the answer to a request for a tunnel.
	tunnel := func(proxy string) string {
		t.Helper()
		at, err := url.Parse(proxy)
		if err != nil {
			t.Fatal(err)
		}
		secret, _ := at.User.Password()
		c, r := dial(proxy)
		if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %s\r\n\r\n",
			strings.TrimPrefix(plain.URL, "http://"), base64.StdEncoding.EncodeToString([]byte("anima:"+secret))); err != nil {
			t.Fatal(err)
		}
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(line)[1]
	}
	ada, revoke := p.Grant("ada", true)
	defer revoke()
	again, revokeAgain := p.Grant("ada", true) // a second command of the agent
	defer revokeAgain()
	bob, revokeBob := p.Grant("bob", true)
	defer revokeBob()
	for i := range most {
		if got := tunnel(ada); got != "200" {
			t.Fatalf("tunnel %d: %s, want 200", i, got)
		}
	}
	if got := tunnel(again); got != "429" {
		t.Errorf("one more tunnel: %s, want 429", got)
	}
	if got := tunnel(bob); got != "200" {
		t.Errorf("a tunnel of another agent: %s, want 200", got)
	}
	for range most { // connections without a request
		dial(ada)
	}
	c, r := dial(ada)
	if _, err := fmt.Fprint(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"); err == nil {
		if line, err := r.ReadString('\n'); err == nil {
			t.Errorf("one more connection was answered %q, want it closed", line)
		}
	}
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// TestRefuses tests that an address that is not public is refused after name resolution,
// and that a client without a grant is refused before it.
func TestRefuses(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 100)
	inside := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.Host }))
	t.Cleanup(inside.Close)
	port := inside.Listener.Addr().(*net.TCPAddr).Port
	p, _ := start(t)
	proxy, _ := p.Grant("ada", true)
	for _, host := range []string{
		"127.0.0.1", "127.1.2.3", "localhost", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "10.0.0.1", "172.16.0.1", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "[fe80::1]", "[fc00::1]", "[64:ff9b::7f00:1]", "224.0.0.1", "255.255.255.255",
	} {
		if status, body := through(t, proxy, fmt.Sprintf("http://%s:%d/", host, port)); status != http.StatusForbidden {
			t.Errorf("%s: got %d %q, want 403", host, status, body)
		}
		if _, body := through(t, proxy, fmt.Sprintf("https://%s:%d/", host, port)); !strings.Contains(body, "Forbidden") {
			t.Errorf("%s through a tunnel: got %q, want it forbidden", host, body)
		}
	}
	bare := "http://" + hostOf(t, proxy)
	for _, without := range []string{bare, strings.Replace(bare, "http://", "http://anima:wrong@", 1)} {
		if status, _ := through(t, without, inside.URL); status != http.StatusProxyAuthRequired {
			t.Errorf("without a grant: got %d, want 407", status)
		}
	}
	select {
	case host := <-reached:
		t.Errorf("a request for %s was let through", host)
	default:
	}
	if proxy, revoke := p.Grant("ada", false); proxy != "" {
		t.Errorf("an agent without a network has the proxy %q", proxy)
	} else {
		revoke()
	}
	var none *egress.Proxy
	if proxy, revoke := none.Grant("ada", true); proxy != "" {
		t.Errorf("no proxy granted %q", proxy)
	} else {
		revoke()
	}
}

// TestSandboxReachesProxyAlone tests that a sandboxed command reaches a server through
// the proxy and not directly.
func TestSandboxReachesProxyAlone(t *testing.T) {
	t.Parallel()
	if held := sandbox.Probe(t.Context()); !held.Egress() {
		fmt.Fprintf(os.Stderr, "egress: NOT TESTED: %s, since the kernel lends only %+v\n", t.Name(), held)
		return
	}
	server := httptest.NewServer(http.HandlerFunc(hello))
	t.Cleanup(server.Close)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := start(t, loopback)
	run := func(proxy, command string) sandbox.Result {
		t.Helper()
		res, err := sandbox.Run(context.WithoutCancel(t.Context()), sandbox.Spec{
			Dir: t.TempDir(), Command: command, ReadOnly: []string{exe}, Proxy: proxy,
			Limits: sandbox.Limits{AddressSpace: 1 << 62}, // the race detector reserves terabytes of address space
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	proxy, revoke := p.Grant("ada", true)
	defer revoke()
	ask := exe + " " + askName + " " + server.URL + "/x"
	if res := run(proxy, ask); !strings.Contains(res.Stdout, "hello /x") {
		t.Errorf("through the proxy: %+v, want hello", res)
	}
	if res := run(proxy, "HTTP_PROXY="+server.URL+" "+ask); strings.Contains(res.Stdout, "hello") || !strings.Contains(res.Stdout, "permission denied") {
		t.Errorf("past the proxy: %+v, want permission denied", res)
	}
	if res := run("", "HTTP_PROXY="+proxy+" "+ask); strings.Contains(res.Stdout, "hello") {
		t.Errorf("without a network: %+v, want no answer", res)
	}
}
