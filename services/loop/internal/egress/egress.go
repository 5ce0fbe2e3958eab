// Package egress is the HTTP proxy through which sandboxed commands reach the public
// internet. The sandbox allows a command to connect only to the port of the proxy. The
// proxy refuses every address that is not public, checked after name resolution, and logs
// the requests. It must not decide whether an agent may use the network: the agent's
// definition and policy determine that.
package egress

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/safehttp"
)

// Timeouts of the proxy.
const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute // time without data in either direction after which a tunnel is closed
)

// Limits of the proxy. A command may have more files open than the service, which needs
// two for each tunnel.
const (
	maxConns    = 1024 // connections without a tunnel
	maxRequests = 256  // requests and tunnels of one agent
)

// Options are the options of a proxy. Log is required. The zero value of a limit means its
// default.
type Options struct {
	// Allow lists addresses that may be reached although they are not public, such as a
	// package mirror in the operator's network. Only the operator sets it.
	Allow []netip.Prefix
	Log   *slog.Logger

	MaxConns    int // connections without a tunnel; others are closed at once
	MaxRequests int // requests and tunnels of one agent; others are refused
}

// Proxy is an HTTP proxy on a loopback address. It serves requests that carry the secret
// of a [Proxy.Grant]. It is safe for concurrent use.
type Proxy struct {
	allow  []netip.Prefix
	log    *slog.Logger
	addr   netip.AddrPort
	server *http.Server
	dialer net.Dialer
	plain  *httputil.ReverseProxy
	served sync.WaitGroup
	end    context.CancelFunc // ends all tunnels

	maxRequests int

	mu     sync.Mutex
	closed bool
	grants map[string]string // secret → agent
	active map[string]int    // requests by agent
}

// Start returns a proxy that listens on a free port of 127.0.0.1. The caller must call
// Close.
func Start(ctx context.Context, o Options) (*Proxy, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("egress proxy: %w", err)
	}
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	p := &Proxy{
		allow: o.Allow, log: o.Log, end: end, maxRequests: cmp.Or(o.MaxRequests, maxRequests),
		grants: map[string]string{}, active: map[string]int{},
	}
	p.addr = netip.MustParseAddrPort(l.Addr().String())
	p.dialer = net.Dialer{Timeout: dialTimeout, Control: safehttp.Control(p.allowed)}
	transport := &http.Transport{DialContext: p.dialer.DialContext, ResponseHeaderTimeout: headerTimeout, IdleConnTimeout: time.Minute, MaxIdleConns: 128, MaxIdleConnsPerHost: 2}
	p.plain = &httputil.ReverseProxy{
		Transport:    transport,
		Rewrite:      func(r *httputil.ProxyRequest) { r.Out.Header.Del("Proxy-Authorization") },
		ErrorHandler: p.refuse,
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	p.server = &http.Server{
		Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: dialTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return base },
		ConnState:   atMost(cmp.Or(o.MaxConns, maxConns)),
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	p.served.Go(func() {
		_ = p.server.Serve(l) // returns when the proxy is closed
		transport.CloseIdleConnections()
	})
	return p, nil
}

// Close closes all connections and waits until their requests have ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	_ = p.server.Close() // the listener is closed in any case
	p.served.Wait()
}

// begin registers a request for [Proxy.Close] to wait for. It returns false if the proxy
// is closed.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.served.Add(1)
	}
	return !p.closed
}

// atMost returns a function for [http.Server] that closes new connections while there are
// more than most, not counting tunnels.
func atMost(most int) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > int64(most) {
				_ = c.Close() // the server then reports the state closed
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
}

// enter counts a request of an agent, for which the caller must call leave. It returns
// false if the agent has too many.
func (p *Proxy) enter(agent string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[agent] >= p.maxRequests {
		return false
	}
	p.active[agent]++
	return true
}

func (p *Proxy) leave(agent string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[agent]--; p.active[agent] == 0 {
		delete(p.active, agent)
	}
}

// Grant returns the URL with which a command of one agent uses the proxy until revoke is
// called, or "" if network is false. The URL contains a secret, so that other programs on
// this machine cannot use the proxy. A nil Proxy returns "".
func (p *Proxy) Grant(agent string, network bool) (proxy string, revoke func()) {
	if p == nil || !network {
		return "", func() {}
	}
	secret := rand.Text()
	p.mu.Lock()
	p.grants[secret] = agent
	p.mu.Unlock()
	u := url.URL{Scheme: "http", User: url.UserPassword("anima", secret), Host: p.addr.String()}
	return u.String(), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.grants, secret)
	}
}

// granted returns the agent of the grant that a request carries, or "".
func (p *Proxy) granted(r *http.Request) string {
	scheme, value, _ := strings.Cut(r.Header.Get("Proxy-Authorization"), " ")
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
	if !strings.EqualFold(scheme, "Basic") || err != nil {
		return ""
	}
	_, given, _ := strings.Cut(string(text), ":")
	p.mu.Lock()
	defer p.mu.Unlock()
	for secret, agent := range p.grants {
		if subtle.ConstantTimeCompare([]byte(secret), []byte(given)) == 1 {
			return agent
		}
	}
	return ""
}

// allowed reports whether commands may connect to an address.
func (p *Proxy) allowed(ip netip.Addr) bool {
	return slices.ContainsFunc(p.allow, func(allowed netip.Prefix) bool { return allowed.Contains(ip) }) || safehttp.Public(ip) && !ours(ip)
}

// ours reports whether an address belongs to this machine, on which services of this
// installation may listen. If the addresses cannot be listed, it returns true.
func ours(ip netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == ip
	})
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		http.Error(w, "the service is stopping", http.StatusServiceUnavailable)
		return
	}
	defer p.served.Done()
	agent := p.granted(r)
	if agent == "" {
		w.Header().Set("Proxy-Authenticate", `Basic realm="anima"`)
		http.Error(w, "anima's egress proxy serves the commands of its agents only", http.StatusProxyAuthRequired)
		return
	}
	if !p.enter(agent) {
		http.Error(w, fmt.Sprintf("the commands of this agent have %d requests already", p.maxRequests), http.StatusTooManyRequests)
		return
	}
	defer p.leave(agent)
	target := r.Host
	if r.Method != http.MethodConnect {
		target = r.URL.Host
	}
	p.log.InfoContext(r.Context(), "egress requested", "agent", agent, "method", r.Method, "host", target)
	switch {
	case r.Method == http.MethodConnect:
		p.tunnel(w, r)
	case r.URL.Scheme != "http" || r.URL.Host == "":
		http.Error(w, "anima's egress proxy takes CONNECT, and requests for http:// addresses", http.StatusBadRequest)
	default:
		p.plain.ServeHTTP(w, r)
	}
}

// refuse answers a request whose address was refused or could not be reached.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, safehttp.ErrPrivate) {
		p.log.WarnContext(r.Context(), "egress refused", "host", r.Host)
		http.Error(w, "refused: "+safehttp.ErrPrivate.Error()+"; commands of agents reach public addresses only", http.StatusForbidden)
		return
	}
	http.Error(w, "the address cannot be reached", http.StatusBadGateway)
}

// tunnel connects the command to the address that the request names.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	far, err := p.dialer.DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		p.refuse(w, r, err)
		return
	}
	defer func() { _ = far.Close() }() // may be closed already
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "this connection cannot become a tunnel", http.StatusInternalServerError)
		return
	}
	defer func() { _ = near.Close() }() // may be closed already
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	join(near, buffered.Reader, far)
}

// join copies data between near and far in both directions, near's through a reader,
// until both have ended or neither has sent data for idleTimeout. One direction may be
// idle longer, as the upload is during a download.
func join(near net.Conn, sent io.Reader, far net.Conn) {
	idle := time.AfterFunc(idleTimeout, func() { _, _ = near.Close(), far.Close() })
	defer idle.Stop()
	var both sync.WaitGroup
	both.Go(func() { pipe(far, sent, near, idle) })
	pipe(near, far, far, idle)
	both.Wait()
}

// pipe copies from, which reads from the connection source, to the other side until EOF
// or an error. It passes EOF on, and closes both sides after an error.
func pipe(to net.Conn, from io.Reader, source net.Conn, idle *time.Timer) {
	_, err := io.Copy(to, alive{from, idle})
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite() // the other side may still send data
		return
	}
	_, _ = to.Close(), source.Close()
}

// alive restarts the timer of a tunnel when data arrives.
type alive struct {
	io.Reader
	idle *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.idle.Reset(idleTimeout)
	}
	return n, err
}
