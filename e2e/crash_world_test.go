package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/embednats/storetest"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// crashWorld is the suite in processes that can crash at a failpoint and are restarted.
// Cases use it one after the other; each has its own agents.
type crashWorld struct {
	*world
	t      testing.TB
	nats   *embednats.Server
	stores string // folder of the server
	aged   bool   // the server's stores are rebuilt between a crash and the next start
	js     jetstream.JetStream
	spans  *received
	env    map[string]string // of every process
	mutant string            // the safety measure that is removed, "" for none

	rehearsed int       // number of plays of all scenes without a crash
	announced announced // while a case waits for rest; the oracle reads the ledger from its beginning

	mu    sync.Mutex
	procs map[string]*mortal // by name: a service, or an additional replica of it
}

// mortal is a process that may crash.
type mortal struct {
	*process
	service string
	armed   string // file with the armed failpoint; shared by all replicas, of which one crashes
	passes  string // file with the points that it passed
	log     *os.File
	http    string // address of its HTTP port
}

// newCrashWorld starts all services. Leases have the minimum duration that NATS allows
// for a TTL.
func newCrashWorld(t testing.TB, mutant string) *crashWorld {
	t.Helper()
	script, err := filepath.Abs("testdata/crash.json")
	if err != nil {
		t.Fatal(err)
	}
	w := &crashWorld{
		t: t, stores: t.TempDir(), mutant: mutant, procs: map[string]*mortal{}, spans: &received{Collector: oteltest.Receiver(t)},
		world: &world{http: map[string]string{}, data: t.TempDir()},
	}
	w.nats = quietServer(t, w.stores, "127.0.0.1:0")
	w.env = environment(t, map[string]string{
		"ANIMA_INFERENCE_ROUTER_SCRIPT": script, "ANIMA_LOOP_LEASE": "1s", "ANIMA_HEARTBEAT_LEASE": "1s", "ANIMA_DRAIN": "20s",
		"ANIMA_INFERENCE_ROUTER_ENDPOINTS": "simulated=|", "ANIMA_INFERENCE_ROUTER_HEDGE": "400ms",
		"OTEL_EXPORTER_OTLP_ENDPOINT": w.spans.endpoint(), "ANIMA_MUTATION": mutant,
	})
	var started sync.WaitGroup
	for _, n := range names {
		bin := builds.program(t, "services/"+n, "./cmd/"+n, "failpoint") // built sequentially, not in the goroutines
		started.Go(func() { w.start(n, n, bin) })
	}
	started.Wait()
	if t.Failed() {
		t.FailNow()
	}
	w.bus = connect(t, w.nats.ClientURL())
	nc, err := nats.Connect(w.nats.ClientURL(), nats.Token(token), nats.ReconnectWait(50*time.Millisecond), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return w
}

// quietServer starts a NATS server without a log, because worlds outlive the tests that
// use them.
func quietServer(t testing.TB, dir, listen string) *embednats.Server {
	t.Helper()
	s, err := embednats.Start(context.WithoutCancel(t.Context()), embednats.Options{Dir: dir, Listen: listen, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// rebuild stops the NATS server and starts it with stores that are older than its last
// saved state, as after an unclean exit of a server that ran for minutes.
func (w *crashWorld) rebuild(t testing.TB) {
	listen := strings.TrimPrefix(w.nats.ClientURL(), "nats://")
	w.nats.Shutdown()
	err := storetest.Age(w.stores, storetest.Saved)
	if err == nil {
		w.nats, err = embednats.Start(context.WithoutCancel(t.Context()), embednats.Options{Dir: w.stores, Listen: listen, Token: token})
	}
	if err != nil {
		t.Errorf("NATS did not come back: %v", err)
		return
	}
	w.t.Cleanup(w.nats.Shutdown)
}

// start starts a service, or restarts it under the same name after a crash. It appends
// the log to a file in the world's folder.
func (w *crashWorld) start(name, service, bin string) *mortal {
	base := filepath.Join(w.data, name)
	p := &mortal{service: service, armed: filepath.Join(w.data, service+".armed"), passes: base + ".passes"}
	var err error
	if p.log, err = os.OpenFile(base+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		w.t.Error(err)
		return nil
	}
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), bin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.data, "ANIMA_NATS_URL=" + w.nats.ClientURL(), "ANIMA_NATS_TOKEN=" + token, "ANIMA_DATA=" + w.data,
		"ANIMA_HTTP_ADDR=127.0.0.1:0", "ANIMA_OPS_ADDR=127.0.0.1:0", "ANIMA_TOKEN=" + token, "ANIMA_LOG_FORMAT=text", "ANIMA_SYNC=interval",
		"ANIMA_FAILPOINT=@" + p.armed, "ANIMA_FAILPOINT_PASSES=" + p.passes,
	}
	for k, v := range w.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = p.log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		w.t.Error(err)
		return nil
	}
	p.process = &process{cmd: cmd, name: name, lines: make(chan string, 16), done: make(chan struct{})}
	go func() {
		scan := bufio.NewScanner(out)
		for scan.Scan() {
			p.lines <- scan.Text()
		}
		close(p.lines)
		p.err = cmd.Wait()
		_ = p.log.Close() // the process has ended
		close(p.done)
	}()
	late := time.After(60 * time.Second)
	for ready := false; !ready; {
		select {
		case l, ok := <-p.lines:
			if !ok {
				<-p.done
				w.t.Errorf("%s ended (%v) before it was ready:\n%s", name, p.err, tail(base+".log"))
				return nil
			}
			if ready = strings.HasPrefix(l, "ready "); ready {
				p.http, _, _ = strings.Cut(strings.TrimPrefix(l, "ready http="), " ")
			}
		case <-late:
			w.t.Errorf("%s is not ready after a minute:\n%s", name, tail(base+".log"))
			return nil
		}
	}
	w.mu.Lock()
	w.procs[name] = p
	w.mu.Unlock()
	w.t.Cleanup(p.end)
	return p
}

// end kills the process if it is still running.
func (p *mortal) end() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // a stopped process must continue to be killed
		p.kill()
	}
}

func (w *crashWorld) proc(name string) *mortal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[name]
}

// again restarts a process that has crashed.
func (w *crashWorld) again(t testing.TB, name string) {
	p := w.proc(name)
	if w.start(name, p.service, p.cmd.Path) == nil {
		t.Errorf("%s did not come back", name)
	}
}

// arm arms a failpoint of the process: it crashes or stops there.
func (p *mortal) arm(t testing.TB, spec string) {
	t.Helper()
	err := os.WriteFile(p.armed+".new", []byte(spec+"\n"), 0o600)
	if err == nil {
		err = os.Rename(p.armed+".new", p.armed)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fired reports whether the armed failpoint has fired.
func (p *mortal) fired() bool {
	_, err := os.Stat(p.armed)
	return errors.Is(err, os.ErrNotExist)
}

// disarm disarms a failpoint that has not fired.
func (p *mortal) disarm() { _ = os.Remove(p.armed) } // it may have fired meanwhile

// stopped reports whether the process is stopped by a signal.
func (p *mortal) stopped() bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(data), ") ")
	return strings.HasPrefix(state, "T")
}

// tail returns the last 25 lines of a log.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// until polls so every 20 ms until it is true, for at most the given time. A world at
// rest sends no signal, so polling is the only way.
func until(ctx context.Context, most time.Duration, so func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// told is a message of a stream with the parts that the oracle reads.
type told struct {
	subject string
	name    string // of the event
	id      string // of the message
	seq     uint64
	data    []byte
}

// read returns all messages of a stream on a subject, which may have wildcards.
func (w *crashWorld) read(ctx context.Context, stream, subject string) ([]told, error) {
	return w.readFrom(ctx, stream, subject, 1)
}

// readFrom is read for the messages from a sequence on.
func (w *crashWorld) readFrom(ctx context.Context, stream, subject string, seq uint64) ([]told, error) {
	st, err := reread(ctx, func(ctx context.Context) (jetstream.Stream, error) { return w.js.Stream(ctx, stream) })
	if err != nil {
		return nil, err
	}
	var all []told
	for {
		m, err := reread(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return st.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		name := ""
		if parts := strings.Split(m.Subject, "."); len(parts) > 3 {
			name = parts[3]
		}
		all = append(all, told{m.Subject, name, bus.IDOf(m.Header), m.Sequence, m.Data})
		seq = m.Sequence + 1
	}
}

// reread makes a request to read. It repeats it twice if there is no answer within 10 s: a
// request is lost if the server is restarted, and ctx ends minutes later.
func reread[T any](ctx context.Context, request func(context.Context) (T, error)) (v T, err error) {
	for range 3 {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		v, err = request(limited)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	return v, err
}

// told returns the journal entries of a session and its events, which are those that the
// entries announce and those that were published.
func (w *crashWorld) told(ctx context.Context, session string) (journal, events []told, err error) {
	all, err := w.read(ctx, "LOOP_EVT", "anima.loop.evt.*.v1."+session)
	for _, m := range all {
		if m.name == "journal" {
			journal = append(journal, m)
		}
		said, xerr := m.expand(bus.SessionEvents(session)...)
		err = errors.Join(err, xerr)
		events = append(events, said...)
	}
	return journal, events, err
}

// named returns the events of a session with one of the names.
func (w *crashWorld) named(ctx context.Context, session string, names ...string) (all []told, err error) {
	_, events, err := w.told(ctx, session)
	for _, m := range events {
		if slices.Contains(names, m.name) {
			all = append(all, m)
		}
	}
	return all, err
}

// expand returns the events on the subjects that a message announces. The id of an event
// from a journal entry has the same form as that of a published event: it identifies the
// event within the run.
func (m told) expand(subjects ...api.Subject) (all []told, err error) {
	events, err := bus.Expand(bus.Stored{Subject: m.subject, Sequence: m.seq, Data: m.data}, subjects...)
	for _, s := range events {
		e := told{s.Subject, strings.Split(s.Subject, ".")[3], m.id, s.Sequence, s.Data}
		if m.name == "journal" {
			var of struct {
				Run   string `json:"runId"`
				Turn  string `json:"turnId"`
				Index int    `json:"index"`
				Agent string `json:"agent"`
				Seq   int64  `json:"seq"`
			}
			err = errors.Join(err, json.Unmarshal(e.data, &of))
			switch e.name {
			case "loop_start", "loop_error", "loop_end":
				e.id = e.name + "/" + of.Run
			case "tool_start", "tool_end":
				e.id = e.name + "/" + of.Turn + "." + strconv.Itoa(of.Index)
			case "agent_state":
				e.id = e.name + "/" + of.Agent + "/" + strconv.FormatInt(of.Seq, 10)
			default:
				e.id = e.name + "/" + of.Turn
			}
		}
		all = append(all, e)
	}
	return all, err
}

// idle checks that every durable has delivered all messages and that all are
// acknowledged; why names one for which that is not so.
func (w *crashWorld) idle(ctx context.Context) (why string, err error) {
	streams := w.js.ListStreams(ctx)
	for s := range streams.Info() {
		st, err := w.js.Stream(ctx, s.Config.Name)
		if err != nil {
			return "", err
		}
		consumers := st.ListConsumers(ctx)
		for c := range consumers.Info() {
			if c.Config.Durable != "" && (c.NumAckPending > 0 || c.NumPending > 0) {
				why = fmt.Sprintf("%s waits for %d of %s and has %d to deliver", c.Name, c.NumAckPending, s.Config.Name, c.NumPending)
			}
		}
		if err := consumers.Err(); err != nil {
			return "", err
		}
	}
	return why, streams.Err()
}

// keys returns the keys of the coordination bucket that name an agent or a goal.
func (w *crashWorld) keys(ctx context.Context, id string) ([]string, error) {
	kv, err := w.js.KeyValue(ctx, api.Coordination)
	if err != nil {
		return nil, err
	}
	all, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	return slices.DeleteFunc(all, func(k string) bool { return !isNamed(k, id) }), err
}

// isNamed reports whether a key names an id. A part of a longer name is not enough: the ids
// of goals are hexadecimal, and so are some ids of agents in the tests.
func isNamed(key, id string) bool {
	return strings.Contains("-"+strings.ReplaceAll(key, ".", "-")+"-", "-"+id+"-")
}

// TestIsNamed has a key of another agent's goal, whose id contains that of an agent.
func TestIsNamed(t *testing.T) {
	t.Parallel()
	key := api.LockKey("a71a-task-g749cecfa78c1de8f-2-1")
	for id, want := range map[string]bool{"a71a": true, "g749cecfa78c1de8f": true, "a78c": false, "a71": false} {
		if got := isNamed(key, id); got != want {
			t.Errorf("%s names %s: %t, want %t", key, id, got, want)
		}
	}
	for _, id := range []string{"a78c", "with-hyphen"} {
		if key := api.WakeKey(id, "alarm"); !isNamed(key, id) {
			t.Errorf("%s does not name %s, want that it does", key, id)
		}
	}
}

// asked repeats a request until it succeeds or fails with an error other than Unavailable
// and Internal.
func asked[Resp any](ctx context.Context, w *world, req api.Message) (Resp, error) {
	for {
		v, err := bus.Call[Resp](ctx, w.bus, req)
		if code := api.CodeOf(err); err == nil || ctx.Err() != nil || code != api.Unavailable && code != api.Internal {
			return v, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}
