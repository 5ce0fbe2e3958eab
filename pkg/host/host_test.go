package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/telemetry"
)

type settings struct {
	Size int `env:"size" help:"how large"`
}

func (s *settings) Validate() error {
	if s.Size < 0 {
		return errors.New("ANIMA_PROBE_SIZE is negative: name a size")
	}
	return nil
}

// probe is a service with one bus route and a few HTTP routes.
func probe(began, release chan struct{}) host.Service {
	return host.Define("probe", settings{Size: 7}, nil, func(ctx context.Context, env *host.Env, cfg settings) error {
		env.HTTP.Handle("GET /size", func(w http.ResponseWriter, _ *http.Request) { host.WriteJSON(w, cfg.Size, nil) })
		env.HTTP.Public("GET /open", func(w http.ResponseWriter, _ *http.Request) { host.WriteJSON(w, "open", nil) })
		env.HTTP.Handle("GET /full", func(w http.ResponseWriter, _ *http.Request) {
			host.WriteJSON(w, nil, &api.Error{Code: api.Unavailable, Reason: api.ReasonLimit, Message: "full", RetryAfter: 1500})
		})
		env.HTTP.Handle("GET /broken", func(w http.ResponseWriter, _ *http.Request) { host.WriteJSON(w, nil, errors.New("password=hunter2")) })
		env.HTTP.Handle("POST /body", func(w http.ResponseWriter, r *http.Request) {
			var v struct {
				A int `json:"a"`
			}
			err := host.ReadJSON(w, r, 16, &v)
			host.WriteJSON(w, v.A, err)
		})
		return env.Serve(ctx, bus.Reply(func(ctx context.Context, _ api.ListRules) (api.Rules, error) {
			if began != nil {
				began <- struct{}{}
				select {
				case <-release:
				case <-ctx.Done():
					return api.Rules{}, ctx.Err()
				}
			}
			return api.Rules{Version: "probe"}, nil
		}))
	})
}

func get(t *testing.T, method, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(data)
}

func TestEdge(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_PROBE_SIZE": "9"}}, probe(nil, nil))
	auth := "Bearer " + w.Token
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		want                     string
	}{
		{"with the token", "GET", "/size", "", []string{"Authorization", auth}, 200, "9"},
		{"with the bare token", "GET", "/size", "", []string{"Authorization", w.Token}, 200, "9"},
		{"with another case of the scheme", "GET", "/size", "", []string{"Authorization", "bEARER  " + w.Token}, 200, "9"},
		{"with another scheme", "GET", "/size", "", []string{"Authorization", "Basic " + w.Token}, 401, `"code":"denied"`},
		{"with the scheme alone", "GET", "/size", "", []string{"Authorization", "Bearer"}, 401, `"code":"denied"`},
		{"without a token", "GET", "/size", "", nil, 401, `"code":"denied"`},
		{"with a wrong token", "GET", "/size", "", []string{"Authorization", auth + "x"}, 401, `"code":"denied"`},
		{"a public route", "GET", "/open", "", nil, 200, `"open"`},
		{"by another name", "GET", "/open", "", []string{"Host", "evil.example"}, 403, "does not accept the host"},
		{"from another site", "GET", "/open", "", []string{"Origin", "https://evil.example"}, 403, "origin"},
		{"from this host", "GET", "/open", "", []string{"Origin", "http://localhost:8080"}, 200, `"open"`},
		{"from another site without an origin", "POST", "/body", `{"a":3}`, []string{"Authorization", auth, "Sec-Fetch-Site", "cross-site"}, 403, "origin"},
		{"from this site without an origin", "POST", "/body", `{"a":3}`, []string{"Authorization", auth, "Sec-Fetch-Site", "same-origin"}, 200, "3"},
		{"an unknown path", "GET", "/nothing", "", nil, 404, `"code":"not_found"`},
		{"a wrong method", "DELETE", "/open", "", nil, 405, `"code":"invalid"`},
		{"a foreign error", "GET", "/broken", "", []string{"Authorization", auth}, 500, `"code":"internal"`},
		{"a body", "POST", "/body", `{"a":3}`, []string{"Authorization", auth}, 200, "3"},
		{"an unknown field", "POST", "/body", `{"b":3}`, []string{"Authorization", auth}, 400, "unknown field"},
		{"a body that is no object", "POST", "/body", `[]`, []string{"Authorization", auth}, 400, "takes: the value cannot be of type array"},
		{"an empty body", "POST", "/body", ``, []string{"Authorization", auth}, 400, "takes: it is empty"},
		{"half a body", "POST", "/body", `{"a":`, []string{"Authorization", auth}, 400, "takes: it ends within a value"},
		{"a field of another type", "POST", "/body", `{"a":"3"}`, []string{"Authorization", auth}, 400, "takes: a cannot be of type string"},
		{"a large body", "POST", "/body", `{"a":                    3}`, []string{"Authorization", auth}, 413, "larger than 16 bytes"},
		{"two values", "POST", "/body", `{"a":3}{"a":4}`, []string{"Authorization", auth}, 400, "more than one"},
		{"a body that is not UTF-8", "POST", "/body", "{\"a\":3} \xff", []string{"Authorization", auth}, 400, "not UTF-8"},
	} {
		status, _, body := get(t, c.method, w.HTTP+c.path, c.body, c.header...)
		if status != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "hunter2") {
			t.Errorf("%s: got %d %s, want %d and %s", c.name, status, body, c.status, c.want)
		}
	}
	status, header, _ := get(t, "GET", w.HTTP+"/full", "", "Authorization", auth)
	if status != 429 || header.Get("Retry-After") != "2" {
		t.Errorf("a full queue: %d, Retry-After %q, want 429 and 2", status, header.Get("Retry-After"))
	}
}

// TestEdgeWithoutToken checks that a process without a token serves only Public routes,
// and does not accept an empty token.
func TestEdgeWithoutToken(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_TOKEN": ""}}, probe(nil, nil))
	for _, auth := range []string{"", "Bearer", "Bearer ", " ", w.Token} {
		if status, _, body := get(t, "GET", w.HTTP+"/size", "", "Authorization", auth); status != 401 || !strings.Contains(body, "ANIMA_TOKEN_FILE") {
			t.Errorf("Authorization %q: got %d %s, want 401 and what to set", auth, status, body)
		}
	}
	if status, _, _ := get(t, "GET", w.HTTP+"/open", ""); status != 200 {
		t.Errorf("a public route: got %d, want 200", status)
	}
}

// TestSlowBody checks that a client that sends the head of a request and no body gets an
// error after the read timeout, and that its connection is closed.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_HTTP_READ_TIMEOUT": "1s"}}, probe(nil, nil))
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.HTTP, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "POST /body HTTP/1.1\r\nHost: localhost\r\nAuthorization: "+w.Token+"\r\nContent-Length: 8\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn) // until the connection is closed
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408 ") || !strings.Contains(string(answer), api.ReasonTooSlow) {
		t.Errorf("got %q, error %v, want 408 with reason %s and an end", answer, err, api.ReasonTooSlow)
	}
}

// TestBodyThenStream checks that the read timeout does not limit the response, and that
// the server still detects the client's disconnection after it.
func TestBodyThenStream(t *testing.T) {
	t.Parallel()
	const most = 500 * time.Millisecond
	gone := make(chan struct{})
	slow := host.Define("slow", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		env.HTTP.Public("POST /slow", func(w http.ResponseWriter, r *http.Request) {
			var v struct{}
			if err := host.ReadJSON(w, r, 16, &v); err != nil {
				host.WriteError(w, 0, err)
				return
			}
			select {
			case <-time.After(3 * most): // longer than the read timeout
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(gone)
		})
		return env.Serve(ctx)
	})
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_HTTP_READ_TIMEOUT": most.String()}}, slow)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.HTTP+"/slow", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	begun := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, begun); err != nil || string(begun) != "begun" {
		t.Fatalf("got %q and error %v, want an answer that begins", begun, err)
	}
	leave()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the server did not notice that the client has gone")
	}
}

// TestOpsHost checks that the ops port accepts IP addresses and configured names as host,
// and refuses other names.
func TestOpsHost(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_HOSTS": "anima.example"}}, probe(nil, nil))
	for name, want := range map[string]int{
		"": 200, "localhost": 200, "127.0.0.1:9090": 200, "[::1]:9090": 200, "10.2.3.4:9090": 200, "anima.example:9090": 200,
		"evil.example": 403, "evil.example:9090": 403, "127.0.0.1.evil.example": 403,
	} {
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			var header []string
			if name != "" {
				header = []string{"Host", name}
			}
			if status, _, body := get(t, "GET", w.Ops+path, "", header...); status != want {
				t.Errorf("%s by %q: got %d %.80s, want %d", path, name, status, body, want)
			}
		}
	}
}

// TestOneDiagnosis checks that the ops port examines the stores for one request at a time.
func TestOneDiagnosis(t *testing.T) {
	t.Parallel()
	var began atomic.Int64
	first, release := make(chan struct{}, 1), make(chan struct{})
	s := host.Define("stored", struct{}{}, fstest.MapFS{"0001_make_t.sql": {Data: []byte("create table t (a text)")}}, func(ctx context.Context, env *host.Env, _ struct{}) error {
		db, err := env.DB(ctx)
		if err != nil {
			return err
		}
		return errors.Join(env.Serve(ctx), db.Close())
	}).Examining(func(context.Context, *sqldb.DB, *bus.Bus, time.Time) ([]host.Finding, error) {
		if began.Add(1) == 1 {
			first <- struct{}{}
			<-release
		}
		return []host.Finding{{Check: "stored", Text: "examined"}}, nil
	})
	w := apptest.Start(t, apptest.Options{}, s)
	done := make(chan error, 1)
	ask := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Ops+"/diagnose", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(res.Body)
		if err == nil && !strings.Contains(string(body), "examined") {
			err = fmt.Errorf("got %s", body)
		}
		return errors.Join(err, res.Body.Close())
	}
	go func() { done <- ask(t.Context()) }()
	select {
	case <-first:
	case err := <-done:
		t.Fatal("no examination", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := ask(short); !errors.Is(err, context.DeadlineExceeded) || began.Load() != 1 {
		t.Errorf("during an examination: got %v after %d examinations, want to wait after one", err, began.Load())
	}
	close(release)
	if err := errors.Join(<-done, ask(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestStatusOf checks that every code has a status, and that business errors are not 404.
func TestStatusOf(t *testing.T) {
	t.Parallel()
	for want, err := range map[int]error{
		200: nil, 400: api.Errorf(api.Invalid, "x"), 413: &api.Error{Code: api.Invalid, Reason: api.ReasonTooLarge},
		408: &api.Error{Code: api.Invalid, Reason: api.ReasonTooSlow}, 404: api.Errorf(api.NotFound, "x"), 409: api.Errorf(api.Conflict, "x"),
		403: api.Errorf(api.Denied, "x"), 402: &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient},
		503: api.Errorf(api.Unavailable, "x"), 429: &api.Error{Code: api.Unavailable, Reason: api.ReasonBusy}, 500: errors.New("x"),
	} {
		if got := host.StatusOf(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}

// alone runs a service as its program does and returns its output.
func alone(t *testing.T, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	err = host.Alone(probe(nil, nil), args, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, &out, &log)
	return out.String(), log.String(), err
}

func TestAlone(t *testing.T) {
	t.Parallel()
	if out, _, err := alone(t, nil, "-version"); err != nil || !strings.HasPrefix(out, "probe 0.0.0") {
		t.Errorf("version: %q, %v", out, err)
	}
	if _, help, err := alone(t, nil, "-h"); err == nil || !strings.Contains(help, "ANIMA_PROBE_SIZE") || !strings.Contains(help, "ANIMA_NATS_URL") {
		t.Errorf("help: %q, %v", help, err)
	}
	_, _, err := alone(t, map[string]string{"ANIMA_DRAIN": "soon", "ANIMA_NATS_REPLICAS": "2"})
	if err == nil || !strings.Contains(err.Error(), "ANIMA_DRAIN") || !strings.Contains(err.Error(), "ANIMA_NATS_REPLICAS") {
		t.Errorf("two wrong settings: %v, want both named", err)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, _, err = alone(t, map[string]string{"ANIMA_HTTP_ADDR": ln.Addr().String(), "ANIMA_OPS_ADDR": ""})
	if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) || !strings.Contains(err.Error(), "ANIMA_HTTP_ADDR") {
		t.Errorf("a busy port: %v", err)
	}
	if err := probe(nil, nil).Check(func(k string) (string, bool) { return "-1", k == "ANIMA_PROBE_SIZE" }); err == nil || !strings.Contains(err.Error(), "name a size") {
		t.Errorf("a wrong setting of the service: %v", err)
	}
}

// TestReadyAndDrain checks that readiness reports what the process waits for, that
// liveness does not depend on it, and that a request in progress at the signal gets its
// response.
func TestReadyAndDrain(t *testing.T) {
	t.Parallel()
	s := apptest.Server(t)
	began, release := make(chan struct{}), make(chan struct{})
	cfg := host.Defaults()
	cfg.Data, cfg.HTTPAddr, cfg.OpsAddr, cfg.Drain = t.TempDir(), "", "127.0.0.1:0", 20*time.Second
	exp, err := telemetry.Open(t.Context(), telemetry.Options{Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	gate := make(chan struct{})
	slow := host.Define("slow", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil
		}
		return env.Serve(ctx)
	})
	addrs, done := make(chan host.Addrs, 1), make(chan error, 1)
	ops := make(chan string, 1)
	go func() {
		done <- host.Run(ctx, host.Process{
			Config: cfg, Conn: apptest.Dial(t, s), Log: apptest.Log(t), Exporters: exp,
			Ready: func(a host.Addrs) { addrs <- a }, Listening: func(a host.Addrs) { ops <- "http://" + a.Ops },
		}, probe(began, release), slow)
	}()
	url := <-ops
	if status, _, _ := get(t, "GET", url+"/healthz", ""); status != 200 {
		t.Errorf("alive before ready: %d", status)
	}
	status, _, body := get(t, "GET", url+"/readyz", "")
	if status != 503 || !strings.Contains(body, "slow: ") {
		t.Errorf("before: %d %s", status, body)
	}
	close(gate)
	<-addrs
	if status, _, body := get(t, "GET", url+"/readyz", ""); status != 200 || !strings.Contains(body, "probe: ready") {
		t.Errorf("after: %d %s", status, body)
	}
	if status, _, body := get(t, "GET", url+"/metrics", ""); status != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d %.200s", status, body)
	}
	b, err := bus.New(apptest.Dial(t, s), bus.Options{Service: "asker", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var wg sync.WaitGroup
	var answer api.Rules
	var aerr error
	wg.Go(func() { answer, aerr = bus.Call[api.Rules](t.Context(), b, api.ListRules{}) })
	<-began
	cancel() // as the signal does
	close(release)
	wg.Wait()
	if aerr != nil || answer.Version != "probe" {
		t.Errorf("the question under way: %+v, %v", answer, aerr)
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestHTTPDrain checks that HTTP requests in progress at a signal to stop end before the
// services close their stores: those that end within the drain get their whole answer,
// others can report that they were cut off, and streams of events end soon. Until then the
// services of the process answer each other; a service alone takes no requests, and gets
// answers from other processes.
func TestHTTPDrain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		drain   time.Duration
		release bool
		several bool // services in the process
		want    string
	}{
		{"within the drain", 20 * time.Second, true, false, "whole"},
		{"longer than the drain", 500 * time.Millisecond, false, false, "cut off"},
		{"within the drain of several services", 20 * time.Second, true, true, "whole"},
		{"longer than the drain of several services", 500 * time.Millisecond, false, true, "cut off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began, release := make(chan struct{}, 2), make(chan struct{})
			var closed atomic.Bool // the stores of the service
			s := apptest.Server(t)
			asker, err := bus.New(apptest.Dial(t, s), bus.Options{Service: "asker", Log: apptest.Log(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer asker.Close()
			serving, end := context.WithCancel(context.WithoutCancel(t.Context()))
			ready, other := make(chan struct{}), make(chan error, 1)
			go func() {
				other <- asker.Serve(serving, time.Second, func() { close(ready) }, bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
					return api.Balance{Agent: m.Agent}, nil
				}))
			}()
			<-ready
			defer func() {
				end()
				if err := <-other; err != nil {
					t.Errorf("the other process: %v", err)
				}
			}()
			ask := func(ctx context.Context) (api.Rules, error) {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // a request without a responder is repeated
				defer cancel()
				return bus.Call[api.Rules](ctx, asker, api.ListRules{})
			}
			answering := host.Define("answering", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
				env.HTTP.Public("GET /slow", func(w http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					answer := "whole"
					select {
					case <-release:
					case <-r.Context().Done():
						answer = "cut off"
					}
					if closed.Load() {
						answer += ", and the stores are closed"
					}
					if _, err := ask(r.Context()); c.release && (err == nil) != c.several {
						answer += fmt.Sprintf(", and a request to the service got %v", err)
					}
					if b, err := bus.Call[api.Balance](context.WithoutCancel(r.Context()), env.Bus, api.GetBalance{Agent: "lucky"}); err != nil || b.Agent != "lucky" {
						answer += fmt.Sprintf(", and a request to another process got %+v, %v", b, err)
					}
					host.WriteJSON(w, answer, nil)
				})
				env.HTTP.Public("GET /follow", func(w http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					ctx, done := host.UntilStop(r.Context())
					defer done()
					<-ctx.Done()
					host.WriteJSON(w, r.Context().Err() == nil, nil)
				})
				err := env.Serve(ctx, bus.Reply(func(context.Context, api.ListRules) (api.Rules, error) { return api.Rules{Version: "1"}, nil }))
				closed.Store(true)
				return err
			})
			services := []host.Service{answering}
			if c.several {
				services = append(services, host.Define("idle", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error { return env.Serve(ctx) }))
			}
			cfg := host.Defaults()
			cfg.Data, cfg.HTTPAddr, cfg.OpsAddr, cfg.Drain = t.TempDir(), "127.0.0.1:0", "", c.drain
			exp, err := telemetry.Open(t.Context(), telemetry.Options{Log: apptest.Log(t)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			defer stop()
			addrs, done := make(chan host.Addrs, 1), make(chan error, 1)
			go func() {
				done <- host.Run(ctx, host.Process{
					Config: cfg, Conn: apptest.Dial(t, s), Log: apptest.Log(t), Exporters: exp, Ready: func(a host.Addrs) { addrs <- a },
				}, services...)
			}()
			url := "http://" + (<-addrs).HTTP
			var following sync.WaitGroup
			answers := make(chan string, 1)
			go func() {
				_, _, body := get(t, http.MethodGet, url+"/slow", "")
				answers <- strings.TrimSpace(body)
			}()
			following.Go(func() {
				_, _, body := get(t, http.MethodGet, url+"/follow", "")
				if got := strings.TrimSpace(body); c.release && got != "true" { // its context ended before that of the request
					t.Errorf("a stream of events: got %s, want true", got)
				}
			})
			<-began
			<-began
			stop()
			following.Wait()
			if c.release {
				close(release)
			}
			if got := <-answers; got != strconv.Quote(c.want) {
				t.Errorf("the request in progress: got %s, want %q", got, c.want)
			}
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
}

// TestMigrate checks that a service that waits for its schema becomes ready after the
// argument migrate has run, and that a second run changes nothing.
func TestMigrate(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	s := host.Define("stored", struct{}{}, fstest.MapFS{"0001_make_t.sql": {Data: []byte("create table t (a text)")}}, func(ctx context.Context, env *host.Env, _ struct{}) error {
		db, err := env.DB(ctx)
		if err != nil {
			return err
		}
		return errors.Join(env.Serve(ctx), db.Close())
	})
	cfg := host.Defaults()
	cfg.Data, cfg.HTTPAddr, cfg.OpsAddr, cfg.Migrate = data, "", "127.0.0.1:0", host.MigrateWait
	exp, err := telemetry.Open(t.Context(), telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done, ready, ops := make(chan error, 1), make(chan host.Addrs, 1), make(chan string, 1)
	go func() {
		done <- host.Run(ctx, host.Process{
			Config: cfg, Conn: apptest.Dial(t, apptest.Server(t)), Log: apptest.Log(t), Exporters: exp,
			Ready: func(a host.Addrs) { ready <- a }, Listening: func(a host.Addrs) { ops <- "http://" + a.Ops },
		}, s)
	}()
	url := <-ops
	for {
		status, _, body := get(t, http.MethodGet, url+"/readyz", "")
		if strings.Contains(body, "waiting for the database") {
			if status != http.StatusServiceUnavailable {
				t.Errorf("readiness while the schema is missing: %d", status)
			}
			break
		}
	}
	env := func(k string) (string, bool) { return data, k == "ANIMA_DATA" }
	for range 2 {
		var log bytes.Buffer
		if err := host.Alone(s, []string{"migrate"}, env, &log, &log); err != nil || !strings.Contains(log.String(), `"version":1`) {
			t.Fatalf("migrate: %v, %s", err, log.String())
		}
	}
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("ended instead of becoming ready: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := host.Alone(s, []string{"migrat"}, env, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "migrate") {
		t.Errorf("a misspelt argument: %v, want what there is", err)
	}
}

func TestFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := host.Defaults()
	cfg.Data, cfg.HTTPAddr, cfg.OpsAddr = file, "", ""
	exp, err := telemetry.Open(t.Context(), telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := host.Define("stored", struct{}{}, fstest.MapFS{"0001_make_t.sql": {Data: []byte("create table t (a text)")}}, func(ctx context.Context, env *host.Env, _ struct{}) error {
		_, err := env.DB(ctx)
		return err
	})
	err = host.Run(t.Context(), host.Process{Config: cfg, Conn: apptest.Dial(t, apptest.Server(t)), Log: apptest.Log(t), Exporters: exp}, s)
	if err == nil || !strings.Contains(err.Error(), "ANIMA_DATA") {
		t.Errorf("got %v, want what to do", err)
	}
}
