package host

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"github.com/anima-run/anima/pkg/api"
)

// edge is the HTTP API of the process.
type edge struct {
	mux   *http.ServeMux
	token [sha256.Size]byte
	open  bool // no token is configured: only Public routes are served
	names hostNames
	room  func() error
	ready func() bool // all services have added their routes

	spare       func() error        // for what strangers send
	strangers   *semaphore.Weighted // memory of their requests
	requests    requests
	crossOrigin http.CrossOriginProtection
}

func newEdge(c Config, st *status) *edge {
	return &edge{
		mux: http.NewServeMux(), room: st.room, ready: st.ready, token: sha256.Sum256([]byte(c.Token.Reveal())), open: c.Token.Reveal() == "",
		names: namesOf(c.HTTPAddr, c.Hosts), spare: st.spare, strangers: newStrangers(),
	}
}

// hostNames holds the accepted host names of a listener. The check prevents DNS
// rebinding, by which a page of another site makes a browser send requests here under a
// host name of that site.
type hostNames struct {
	names []string
	any   bool // listens on a public address, and no names are configured: any name is accepted
}

func namesOf(addr string, configured []string) hostNames {
	host, _, _ := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	local := host == "localhost" || ip != nil && ip.IsLoopback()
	return hostNames{names: append(slices.Clone(configured), host), any: !local && len(configured) == 0}
}

// known reports whether a Host header or the host of an origin is one of the names.
func (n hostNames) known(hostport string) bool {
	host := bareHost(hostport)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return true
	}
	return n.any || host != "" && slices.Contains(n.names, host) // without a host in the address one of names is empty
}

// bareHost returns a host without its port and, for IPv6, without its brackets.
func bareHost(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		hostport = h
	}
	return strings.Trim(hostport, "[]")
}

// wrongHost responds to a request for a host name that is not accepted.
func wrongHost(w http.ResponseWriter, host string) {
	WriteError(w, http.StatusForbidden, &api.Error{Code: api.Denied, Message: "this server does not accept the host " + strconv.Quote(host), Next: "use its address, or add the name to ANIMA_HOSTS"})
}

func (e *edge) Public(pattern string, h http.HandlerFunc) { e.mux.Handle(pattern, h) }

func (e *edge) Handle(pattern string, h http.HandlerFunc) { e.HandleAs(pattern, WriteError, h) }

func (e *edge) HandleAs(pattern string, refuse func(http.ResponseWriter, int, error), h http.HandlerFunc) {
	e.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := e.authorize(r); err != nil {
			refuse(w, http.StatusUnauthorized, err)
			return
		}
		h(w, r)
	})
}

func (e *edge) authorize(r *http.Request) error {
	if e.open {
		return &api.Error{Code: api.Denied, Message: "no operator's token is configured", Next: "set ANIMA_TOKEN_FILE and start again"}
	}
	given := Credential(r)
	sum := sha256.Sum256([]byte(given))
	if given == "" || subtle.ConstantTimeCompare(sum[:], e.token[:]) != 1 {
		return &api.Error{Code: api.Denied, Message: "the operator's token is missing or wrong", Next: "send Authorization: Bearer <token>; anima up writes the token into its data folder"}
	}
	return nil
}

// ServeHTTP refuses requests of wrong hosts and origins (DNS rebinding, cross-site
// requests), then routes.
func (e *edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !e.requests.begin() {
		WriteError(w, 0, &api.Error{Code: api.Unavailable, Message: "the server is stopping", Next: "try again: another replica, or the next start, serves the request", RetryAfter: 1000})
		return
	}
	defer e.requests.end()
	if !e.names.known(r.Host) {
		wrongHost(w, r.Host)
		return
	}
	if !e.sameSite(r) {
		WriteError(w, http.StatusForbidden, &api.Error{Code: api.Denied, Message: "requests from this origin are refused", Next: "call the API from a program, not from another site's page"})
		return
	}
	if !textual(r.URL) {
		WriteError(w, 0, &api.Error{Code: api.Invalid, Message: "the path or the query is not UTF-8 text without NUL, or has a wrong escape", Next: "encode it as a URL in UTF-8"})
		return
	}
	if h, pattern := e.mux.Handler(r); pattern == "" {
		// The mux responds with text; keep only its status and its Allow header.
		rec := &statusOnly{header: w.Header()}
		h.ServeHTTP(rec, r)
		w.Header().Del("X-Content-Type-Options")
		if !e.ready() { // 404 would be final for clients
			WriteError(w, 0, &api.Error{Code: api.Unavailable, Message: "the services are not ready", Next: "try again; GET /readyz on the ops port lists what they wait for", RetryAfter: 1000})
			return
		}
		code := api.NotFound
		if rec.status == http.StatusMethodNotAllowed {
			code = api.Invalid
		}
		WriteError(w, rec.status, &api.Error{Code: code, Message: r.Method + " " + r.URL.Path + " is not served here", Next: "see docs/http.md for the routes"})
		return
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		if err := e.room(); err != nil {
			WriteError(w, 0, err)
			return
		}
	}
	e.mux.ServeHTTP(w, r)
}

// textual reports whether the path and the query of a request are text that every database
// takes: Postgres has an error for a value with NUL or invalid UTF-8, and SQLite has not.
func textual(u *url.URL) bool {
	query, err := url.QueryUnescape(u.RawQuery)
	return err == nil && utf8.ValidString(u.Path) && utf8.ValidString(query) && !strings.ContainsRune(u.Path+query, 0)
}

// sameSite reports whether a request comes from a program or from a page of an accepted
// host. [http.CrossOriginProtection] finds the requests of browsers that name no origin.
// Its rule for origins is not used: it permits reads from every origin, and refuses pages
// of another port of this machine.
func (e *edge) sameSite(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return e.crossOrigin.Check(r) == nil
	}
	u, err := url.Parse(origin)
	return err == nil && e.names.known(u.Host)
}

type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(code int)        { s.status = code }

// StatusOf returns the HTTP status of an error. 404 is used only for a resource that does
// not exist, because existing clients retry it (docs/reference/platform.md, HTTP access).
func StatusOf(err error) int {
	switch api.CodeOf(err) {
	case "":
		return http.StatusOK
	case api.Invalid:
		switch api.ReasonOf(err) {
		case api.ReasonTooLarge:
			return http.StatusRequestEntityTooLarge
		case api.ReasonTooSlow:
			return http.StatusRequestTimeout
		}
		return http.StatusBadRequest
	case api.NotFound:
		return http.StatusNotFound
	case api.Conflict:
		return http.StatusConflict
	case api.Denied:
		return statusOfDenied(api.Wire(err))
	case api.Unavailable:
		switch api.ReasonOf(err) {
		case api.ReasonLimit, api.ReasonBusy:
			return http.StatusTooManyRequests
		case api.ReasonNoSpace:
			return http.StatusInsufficientStorage
		}
		return http.StatusServiceUnavailable
	case api.Internal:
	}
	return http.StatusInternalServerError
}

// statusOfDenied returns 402 for a payment that the funds or a limit of the agent do not
// allow, 429 if waiting helps, and 403 for everything else that is denied.
func statusOfDenied(e *api.Error) int {
	switch e.Reason {
	case api.ReasonPayee, api.ReasonDomain, api.ReasonAsset, api.ReasonFacilitator, api.ReasonApproval:
		return http.StatusForbidden
	case api.ReasonInsufficient, api.ReasonLimit:
		return http.StatusPaymentRequired
	}
	switch {
	case !api.OverLimit(e.Reason):
		return http.StatusForbidden
	case e.RetryAfter > 0:
		return http.StatusTooManyRequests
	}
	return http.StatusPaymentRequired
}

// WriteError responds with err as JSON: a code, a cause and what to do next. If status is
// 0, it is [StatusOf] the error.
func WriteError(w http.ResponseWriter, status int, err error) {
	e := api.Wire(err)
	if status == 0 {
		status = StatusOf(err)
	}
	SetRetryAfter(w, status, e)
	told := *e
	told.Next = api.Advice(e)
	writeJSON(w, status, map[string]*api.Error{"error": &told})
}

// SetRetryAfter sets the header Retry-After of an answer with a status after which the
// request may be repeated: the time that err has, at least a second.
func SetRetryAfter(w http.ResponseWriter, status int, err error) {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		after := max(1, (api.Wire(err).RetryAfter+999)/1000)
		w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	}
}

// WriteJSON responds with status 200 and v, or with err if it is not nil.
func WriteJSON(w http.ResponseWriter, v any, err error) {
	if err != nil {
		WriteError(w, 0, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

// server is one listener of the process.
type server struct {
	http  *http.Server
	ln    net.Listener
	drain time.Duration
}

func listen(p Process, e *edge, st *status) ([]server, Addrs, error) {
	var servers []server
	var addrs Addrs
	add := func(addr, variable string, h http.Handler) (string, error) {
		var lc net.ListenConfig
		ln, err := lc.Listen(context.Background(), "tcp", addr)
		if err != nil {
			for _, s := range servers {
				err = errors.Join(err, s.ln.Close())
			}
			next := "set " + variable + " to an address of this machine"
			if errors.Is(err, syscall.EADDRINUSE) {
				next = "another program listens there: stop it, or set " + variable + " to another address"
			}
			return "", fmt.Errorf("listen on %s: %w; %s", addr, err, next)
		}
		servers = append(servers, server{
			ln: ln, drain: p.Config.Drain,
			http: &http.Server{
				Handler: limitWrites(p.Config.WriteTimeout, h), ReadHeaderTimeout: min(10*time.Second, p.Config.ReadTimeout), IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
				// The deadline is removed when the body has been read, so it does not
				// limit event streams.
				ReadTimeout: p.Config.ReadTimeout,
			},
		})
		return ln.Addr().String(), nil
	}
	var err error
	if p.Config.HTTPAddr != "" {
		if addrs.HTTP, err = add(p.Config.HTTPAddr, "ANIMA_HTTP_ADDR", e); err != nil {
			return nil, addrs, err
		}
	}
	if p.Config.OpsAddr != "" {
		if addrs.Ops, err = add(p.Config.OpsAddr, "ANIMA_OPS_ADDR", opsHosts(p.Config, ops(p, st))); err != nil {
			return nil, addrs, err
		}
	}
	return servers, addrs, nil
}

// serve serves until ctx ends. Then it accepts no connection, and requests in progress have
// most of the drain to end by themselves.
func (s server) serve(ctx context.Context) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	following, stop := context.WithCancel(base)
	defer stop()
	base = context.WithValue(base, stopKey{}, following)
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	stopped := make(chan struct{})
	running := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace := time.AfterFunc(min(s.drain, followGrace), stop)
		defer grace.Stop()
		limit := cutOff(s.drain)
		ending, over := context.WithTimeout(base, limit)
		defer over()
		if s.http.Shutdown(ending) != nil {
			cancel()
			reporting, over := context.WithTimeout(context.WithoutCancel(base), s.drain-limit)
			defer over()
			_ = s.http.Shutdown(reporting) // Close ends the remaining connections
		}
		_ = s.http.Close() // returns an error for the listener, which Shutdown has closed
	})
	err := s.http.Serve(s.ln)
	if !running() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("http: %w", err)
}
