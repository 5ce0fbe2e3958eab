// Package e2e tests the whole suite, in one process and in many. The tests use pkg/api
// over the bus and HTTP; they must not use internal packages of the services.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
	"github.com/anima-run/anima/services/heartbeat"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/loop"
	"github.com/anima-run/anima/services/policy"
	"github.com/anima-run/anima/services/social"
	"github.com/anima-run/anima/services/treasury"
)

const token = "e2e-token"

// names are the names of the services, as in services/.
var names = []string{"loop", "inference-router", "policy", "treasury", "heartbeat", "social"}

func services() []host.Service {
	return []host.Service{loop.Service, router.Service, policy.Service, treasury.Service, heartbeat.Service, social.Service}
}

// sinkProcess is the variable that turns the test program into a collector that discards
// everything.
const sinkProcess = "ANIMA_E2E_SINK"

func TestMain(m *testing.M) {
	loop.Init()
	host.TuneGC(os.LookupEnv) // as in the measured processes
	if os.Getenv(sinkProcess) != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			fmt.Println("http://" + l.Addr().String())
			err = oteltest.ServeSink(l)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if role := os.Getenv(gatewayRole); role != "" {
		fmt.Fprintln(os.Stderr, serveGateway(role))
		os.Exit(1)
	}
	code := m.Run()
	if dir, err := builds.dir(); err == nil {
		_ = os.RemoveAll(dir) // a remainder is in the temporary folder
	}
	os.Exit(code)
}

// world is a running suite.
type world struct {
	bus  *bus.Bus
	http map[string]string // base URL by service
	ops  string            // base URL of the ops port; "" in many processes
	data string
	nats *embednats.Server          // nil in one process
	own  nats.InProcessConnProvider // nil in many processes

	processes map[string]*process // by service; nil in one process
}

// environment returns the environment of every service in the tests.
func environment(t testing.TB, more map[string]string) map[string]string {
	t.Helper()
	script, err := filepath.Abs("testdata/script.json")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"ANIMA_INFERENCE_ROUTER_SCRIPT": script, "ANIMA_INFERENCE_ROUTER_SIMULATED": "true", "ANIMA_TREASURY_FAUCET": "true",
		"ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "2",
	}
	for k, v := range more {
		env[k] = v
	}
	return env
}

// oneProcess starts all services in the test process.
func oneProcess(t testing.TB, env map[string]string) *world {
	t.Helper()
	return inProcess(t, apptest.Options{Env: environment(t, env)})
}

func inProcess(t testing.TB, o apptest.Options) *world {
	t.Helper()
	w := apptest.Start(t, o, services()...)
	urls := map[string]string{}
	for _, n := range names {
		urls[n] = w.HTTP
	}
	return &world{bus: w.Bus, http: urls, ops: w.Ops, data: w.Data, own: w.NATS}
}

// together runs subtests that share the services of t, at most four at once, and waits for
// them. With [testing.T.Parallel] in the subtests, t would not count as a running test while
// they wait for their turn, and the services of all such tests would run at the same time.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	next := make(chan string)
	var running sync.WaitGroup
	for range min(len(tests), 4) {
		running.Go(func() {
			for name := range next {
				t.Run(name, tests[name])
			}
		})
	}
	for name := range tests {
		next <- name
	}
	close(next)
	running.Wait()
}

// manyProcesses starts one process for each service, as in their images, with one NATS
// server.
func manyProcesses(t testing.TB, env map[string]string) *world {
	t.Helper()
	s := server(t, "127.0.0.1:0")
	w := &world{http: map[string]string{}, data: t.TempDir(), nats: s, processes: map[string]*process{}}
	for _, n := range names {
		w.processes[n] = startService(t, n, s.ClientURL(), w.data, environment(t, env))
	}
	for _, n := range names {
		w.http[n] = "http://" + w.processes[n].await(t)
	}
	w.bus = connect(t, s.ClientURL())
	return w
}

func connect(t testing.TB, url string) *bus.Bus {
	t.Helper()
	nc, err := bus.Dial(bus.DialOptions{URL: url, Token: token, Name: "e2e", Wait: true, Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := bus.New(nc, bus.Options{Service: "e2e", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// builder builds each program once, as a separate module, as its image does.
type builder struct {
	mu   sync.Mutex
	made map[string]string
	tmp  string
}

var builds builder

func (b *builder) dir() (string, error) {
	if b.tmp == "" {
		dir, err := os.MkdirTemp("", "anima-e2e-")
		if err != nil {
			return "", err
		}
		b.tmp, b.made = dir, map[string]string{}
	}
	return b.tmp, nil
}

// program builds pkg of a module with the build tags and returns the path of the program.
func (b *builder) program(t testing.TB, module, pkg string, tags ...string) string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	dir, err := b.dir()
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Join(append([]string{filepath.Base(module)}, tags...), "-")
	if bin, ok := b.made[pkg+name]; ok {
		return bin
	}
	bin := filepath.Join(dir, name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", strings.Join(append([]string{"grpcnotrace"}, tags...), ","), "-o", bin, pkg)
	cmd.Dir = filepath.Join("..", module)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", module, err, out)
	}
	b.made[pkg+name] = bin
	return bin
}

// process is a program under test.
type process struct {
	cmd   *exec.Cmd
	name  string
	lines chan string // lines of standard output
	log   chan string // lines of standard error
	done  chan struct{}
	err   error // result of Wait; valid after done is closed
}

func start(t testing.TB, name, bin string, env map[string]string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), bin, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := make(chan string, 1000)
	cmd.Stderr = &tap{out: apptest.Output(t), log: log}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, name: name, lines: make(chan string, 1000), log: log, done: make(chan struct{})}
	go func() {
		scan := bufio.NewScanner(out)
		for scan.Scan() {
			p.lines <- scan.Text()
		}
		close(p.lines)
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

// stop ends the process as Kubernetes does, with SIGTERM and then SIGKILL, and waits.
func (p *process) stop(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s: %v", p.name, p.err)
		}
	case <-time.After(45 * time.Second):
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
		t.Errorf("%s did not stop", p.name)
	}
}

// kill ends the process with SIGKILL and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// line waits for a line of output that matches.
func (p *process) line(t testing.TB, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(60 * time.Second)
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				<-p.done
				t.Fatalf("%s ended (%v) before a line like %q", p.name, p.err, pattern)
			}
			if m := re.FindStringSubmatch(l); m != nil {
				return m
			}
		case <-late:
			t.Fatalf("%s said no line like %q", p.name, pattern)
		}
	}
}

// await waits until a service is ready and returns its HTTP address.
func (p *process) await(t testing.TB) string {
	t.Helper()
	return p.line(t, `^ready http=(\S+) ops=`)[1]
}

func startService(t testing.TB, name, nats, data string, env map[string]string) *process {
	t.Helper()
	full := map[string]string{
		"ANIMA_NATS_URL": nats, "ANIMA_NATS_TOKEN": token, "ANIMA_DATA": data, "ANIMA_HTTP_ADDR": "127.0.0.1:0",
		"ANIMA_OPS_ADDR": "127.0.0.1:0", "ANIMA_TOKEN": token, "ANIMA_LOG_FORMAT": "text", "ANIMA_SYNC": "interval",
	}
	for k, v := range env {
		full[k] = v
	}
	return start(t, name, builds.program(t, "services/"+name, "./cmd/"+name), full)
}

// call sends a request that must succeed and returns the answer.
func call[Resp any](t testing.TB, w *world, req api.Message) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	v, err := bus.Call[Resp](ctx, w.bus, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return v
}

// refused sends a request that must fail with the code and returns the error's details.
func refused[Resp any](t testing.TB, w *world, req api.Message, code api.Code) (details []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	v, err := bus.Call[Resp](ctx, w.bus, req)
	if api.CodeOf(err) != code {
		t.Fatalf("%T: got %+v, %v, want %s", req, v, err, code)
	}
	return api.Wire(err).Details
}

// plain returns the request that applies an agent without settings.
func plain(name string) api.ApplyAgent {
	return api.ApplyAgent{Source: "---\nname: " + name + "\n---\nBe useful.\n"}
}

// born applies an agent and makes a deposit if money is greater than zero.
func born(t testing.TB, w *world, name string, money api.Micros) api.Agent {
	t.Helper()
	a := call[api.Agent](t, w, plain(name))
	if money > 0 {
		call[api.Posted](t, w, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: money, Source: "faucet"})
	}
	return a
}

// send sends a message to an agent and waits for the end of its run.
func send(t testing.TB, w *world, agent, text string) api.LoopEnd {
	t.Helper()
	acc := call[api.Accepted](t, w, api.SendMessage{Agent: agent, Content: text})
	return ended(t, w, acc.Session, acc.Run)
}

// ended waits for the end of a run of the session.
func ended(t testing.TB, w *world, session, run string) api.LoopEnd {
	t.Helper()
	return await(t, w, api.LoopEnd{Session: session}, func(e api.LoopEnd) bool { return e.Run == run })
}

// await returns the first event of the session that fits, from the beginning of the
// stream.
func await[M api.Message](t testing.TB, w *world, zero M, fits func(M) bool) M {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var got M
	found := errors.New("found")
	err := w.bus.Events(ctx, 0, func(s bus.Stored) error {
		var m M
		if err := api.Decode(s.Data, &m); err != nil {
			return err
		}
		if fits(m) {
			got = m
			return found
		}
		return nil
	}, zero.Subject())
	if !errors.Is(err, found) {
		t.Fatalf("no %T that fits: %v", zero, err)
	}
	return got
}

// turnsOf returns a run's turns in order.
func turnsOf(t testing.TB, w *world, run string) []api.Turn {
	t.Helper()
	all := call[api.Turns](t, w, api.ListTurns{Run: run}).Turns
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 {
		all[i], all[j] = all[j], all[i]
	}
	return all
}

// sound checks the invariants of a suite at rest: the ledger verifies, there is no hold
// and no lock, and every session is free.
func sound(t testing.TB, w *world, agents ...api.Agent) {
	t.Helper()
	report := call[api.LedgerReport](t, w, api.VerifyLedger{})
	if !report.OK || report.ActiveHolds != 0 {
		t.Errorf("ledger: %+v", report)
	}
	free(t, w, agents...)
}

// free checks that there is no lock and that every session becomes free.
func free(t testing.TB, w *world, agents ...api.Agent) {
	t.Helper()
	locks, err := bus.OpenBucket[api.Lock](t.Context(), w.bus)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		key := api.LockKey(a.Session)
		if !until(t.Context(), 10*time.Second, func() bool { _, err := locks.Get(t.Context(), key); return api.CodeOf(err) == api.NotFound }) {
			t.Errorf("the lock of %s is still there", a.Session)
		}
		var last api.Journal
		if !until(t.Context(), 10*time.Second, func() bool {
			m, err := w.bus.Last(t.Context(), api.Journal{Session: a.Session}.Subject())
			if err == nil {
				err = api.Decode(m.Data, &last)
			}
			held, open := last.Held("", 0)
			return api.CodeOf(err) == api.NotFound || err == nil && !held && !open
		}) {
			t.Errorf("the journal of %s ends with %s of run %s, and does not free it", a.Session, last.Kind, last.Run)
		}
	}
}

// web makes an HTTP request with the operator's token.
func web(t testing.TB, w *world, service, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.http[service]+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+webToken(w))
	for i := 0; i+1 < len(header); i += 2 {
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

func webToken(w *world) string {
	if w.http["loop"] == w.http["social"] {
		return "apptest-token"
	}
	return token
}

// stderrLine waits for a line of the log that contains text.
func (p *process) stderrLine(t testing.TB, text string) {
	t.Helper()
	late := time.After(60 * time.Second)
	for {
		select {
		case l := <-p.log:
			if strings.Contains(l, text) {
				return
			}
		case <-p.done:
			t.Fatalf("%s ended (%v) before it logged %q", p.name, p.err, text)
		case <-late:
			t.Fatalf("%s did not log %q", p.name, text)
		}
	}
}

// tap copies the log to the test's output, and sends each line to log.
type tap struct {
	out  io.Writer
	log  chan string
	rest []byte
}

func (w *tap) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			break
		}
		w.rest = rest
		select {
		case w.log <- string(line):
		default: // no reader waits
		}
	}
	return w.out.Write(p)
}

// freeAddr returns a loopback address that was free when it was tested.
func freeAddr(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return addr
}

func server(t testing.TB, addr string) *embednats.Server {
	t.Helper()
	s, err := embednats.Start(t.Context(), embednats.Options{Dir: t.TempDir(), Listen: addr, Token: token, Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}
