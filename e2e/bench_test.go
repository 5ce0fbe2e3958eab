package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// BenchmarkTurn measures the overhead of a turn: the model answers at once, so the rest of
// the time is that of the program. A run has two turns, one with a tool call
// that policy evaluates and one with text; each makes a hold and settles it. Sessions run
// concurrently, each with its own agent. The figures are per turn. Writes are synced at
// intervals, as on a developer's machine, or always, as in production. The latter also
// runs on three servers and on PostgreSQL, which syncs, too, and whose processor time is
// a separate figure. The router calls the model over HTTP, or the simulated model directly
// in the profile model=direct.
//
// For comparison, the same run on the same server measures the skeleton of a turn on
// plain NATS: as many sequential requests to a responder that answers at once, and as
// many durable writes, including those that a turn makes by SQL. The smaller skeleton has
// the stored messages only.
func BenchmarkTurn(b *testing.B) {
	for _, profile := range []struct {
		name     string
		o        apptest.Options
		replicas int
		postgres bool
		direct   bool
	}{
		{"sync=interval", apptest.Options{}, 1, false, false},
		{"sync=interval,model=direct", apptest.Options{}, 1, false, true},
		{"sync=always", apptest.Options{SyncAlways: true}, 1, false, false},
		{"sync=always,replicas=3", apptest.Options{SyncAlways: true, Replicated: true}, 3, false, false},
		{"sync=always,replicas=3,postgres", apptest.Options{SyncAlways: true, Replicated: true}, 3, true, false},
	} {
		for _, sessions := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s/sessions=%d", profile.name, sessions), func(b *testing.B) {
				o, database := profile.o, func() time.Duration { return 0 }
				if profile.postgres {
					o.Env, database = postgres(b)
				}
				if !profile.direct {
					o.Env = modelOverHTTP(b, o.Env)
				}
				l := newLoad(b, sessions, o)
				bones := newSkeleton(b, l, profile.replicas)
				b.ResetTimer()
				before, beside, committed, read := processorTime(b), database(), commits(b, l), reads(b)
				took, elapsed := l.run(b.N)
				cpu, beside := processorTime(b)-before, database()-beside
				b.StopTimer()
				b.ReportMetric(float64(reads(b)-read)/2/float64(len(took)), "reads/turn")
				together := (commits(b, l) - committed) / 2 / float64(len(took))
				slices.Sort(took)
				median := took[len(took)/2]
				messages := bones.run(b.N, bones.stored)
				all := bones.run(b.N, bones.stored+bones.commits)
				b.ReportMetric(float64(all.Microseconds())/1000, "p50-ms/skeleton")
				b.ReportMetric(float64(median)/float64(all), "x-skeleton")
				b.ReportMetric(float64(median)/float64(messages), "x-messages")
				b.ReportMetric(bones.requests, "requests/turn")
				b.ReportMetric(bones.stored, "stored/turn")
				b.ReportMetric(bones.commits, "commits/lone-turn")
				b.ReportMetric(together, "commits/turn")
				b.ReportMetric(float64(median.Microseconds())/1000, "p50-ms/turn")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms/turn")
				b.ReportMetric(2*float64(len(took))/elapsed.Seconds(), "turns/s")
				b.ReportMetric(float64(cpu.Microseconds())/1000/2/float64(len(took)), "cpu-ms/turn")
				if profile.postgres {
					b.ReportMetric(float64(beside.Microseconds())/1000/2/float64(len(took)), "postgres-cpu-ms/turn")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// modelOverHTTP serves a model over HTTP, and adds the settings by which the router calls
// it to env. The model calls a tool after a message, and answers with text after the
// result of a tool. It reads no more of a request than the roles of its messages, because
// the figures include its processor time.
func modelOverHTTP(b *testing.B, env map[string]string) map[string]string {
	b.Helper()
	const name = "anima-sim-1"
	var (
		answers atomic.Int64
		bodies  = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	)
	all := served(b, name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			openaitest.WriteModels(w, openaitest.Model{OwnedBy: "anima"}, name)
			return
		}
		body := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(body)
		body.Reset()
		if _, err := body.ReadFrom(r.Body); err != nil { // the router has disconnected
			return
		}
		last := ""
		gjson.GetBytes(body.Bytes(), "messages").ForEach(func(_, message gjson.Result) bool {
			last = message.Get("role").Str
			return true
		})
		id := strconv.FormatInt(answers.Add(1), 10)
		out := openaitest.NewStream(w, "chatcmpl-"+id, name, time.Now().Unix())
		out.Burst = true
		if last == chat.ToolRole {
			out.Text("ok")
			out.Finish("stop")
		} else {
			out.Call(0, "call_"+id, "read_file", `{"path":"bench.txt"}`)
			out.Finish("tool_calls")
		}
		out.Usage(openaitest.Usage{Input: int64(body.Len()) / 4, Output: 20})
		out.Done()
	}))
	maps.Copy(all, env)
	return all
}

// servedModel serves the simulated model of a script over HTTP, and returns the settings
// by which the router calls it. refused is that of [openaitest.Simulated].
func servedModel(t testing.TB, path string, refused func(*openaitest.Error)) map[string]string {
	t.Helper()
	script, err := openaitest.LoadScript(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := openaitest.Simulated(script, time.Now, refused)
	if err != nil {
		t.Fatal(err)
	}
	return served(t, script.Model, h)
}

// served serves a model over HTTP, and returns the settings by which the router calls it.
func served(t testing.TB, model string, h http.Handler) map[string]string {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return map[string]string{
		"ANIMA_INFERENCE_ROUTER_SIMULATED": "false", "OPENAI_BASE_URL": web.URL + "/v1", "ANIMA_INFERENCE_ROUTER_LOCAL": "no",
		"ANIMA_INFERENCE_ROUTER_MODELS": model + "=1/4/128000",
	}
}

// postgres starts a server that syncs its writes. It returns the settings by which
// services use it, and a function that returns the processor time that it has used.
func postgres(b *testing.B) (env map[string]string, used func() time.Duration) {
	b.Helper()
	server, err := sqldbtest.StartSynced(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	return map[string]string{"ANIMA_DATABASE_URL": server.URL()}, func() (sum time.Duration) {
		all, err := server.Processes()
		if err != nil {
			b.Fatal(err)
		}
		for _, id := range all {
			used, err := processTime(id)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the process has ended
			}
			if err != nil {
				b.Fatal(err)
			}
			sum += used
		}
		return sum
	}
}

// BenchmarkTracing measures the cost of tracing: the same load on two suites in one
// process, alternately. One suite makes no spans; the other makes all of them, spools
// them and exports them to another process, which discards them. The order within a pair
// alternates. The processors do nothing else, so the rate of turns follows from the
// processor time per turn; on a shared machine the processor time is the reliable figure.
// An operation is one turn on each side.
func BenchmarkTracing(b *testing.B) {
	const runs = 64 // of two turns, in a round
	off := newLoad(b, 16, apptest.Options{Env: map[string]string{"OTEL_TRACES_SAMPLER": "always_off"}})
	on := newLoad(b, 16, apptest.Options{Env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": sink(b), "OTEL_BSP_SCHEDULE_DELAY": "50"}})
	type figures struct{ rate, cpu float64 } // turns/s, ms of processor time per turn
	round := func(l *load) figures {
		runtime.GC() // garbage of the other suite
		before := processorTime(b)
		took, elapsed := l.run(runs)
		<-time.After(100 * time.Millisecond) // the last spans are exported meanwhile
		turns := 2 * float64(len(took))
		return figures{turns / elapsed.Seconds(), float64((processorTime(b) - before).Microseconds()) / 1000 / turns}
	}
	round(off)
	round(on)
	var all [6][]float64
	b.ResetTimer()
	for i := range max(1, b.N/(2*runs)) {
		var without, with figures
		if i%2 == 0 {
			without, with = round(off), round(on)
		} else {
			with, without = round(on), round(off)
		}
		for i, v := range []float64{without.rate, with.rate, with.rate / without.rate, without.cpu, with.cpu, with.cpu / without.cpu} {
			all[i] = append(all[i], v)
		}
	}
	b.StopTimer()
	quartiles := ""
	for i, name := range []string{"turns/s-off", "turns/s-on", "turns-ratio", "cpu-ms/turn-off", "cpu-ms/turn-on", "cpu-ratio"} {
		slices.Sort(all[i])
		n := len(all[i])
		b.ReportMetric(all[i][n/2], name)
		quartiles += fmt.Sprintf("%s %.3f %.3f %.3f; ", name, all[i][n/4], all[i][n/2], all[i][n*3/4])
	}
	b.Logf("quartiles of %d pairs: %s", len(all[0]), quartiles)
	b.ReportMetric(0, "ns/op")
}

// sink starts a collector that discards everything, in a separate process, and returns
// its endpoint.
func sink(b *testing.B) string {
	b.Helper()
	p := start(b, "sink", os.Args[0], map[string]string{sinkProcess: "1"})
	b.Cleanup(p.kill)
	return p.line(b, `^http://.*`)[0]
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reads returns the number of system calls of the process that read, also from connections
// (proc_pid_io(5)). Most of them read pages of SQLite's files.
func reads(b *testing.B) (n int64) {
	b.Helper()
	io, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(io), "syscr: ")
	if _, err := fmt.Sscan(after, &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// load is a suite with agents that run the load of the benchmarks.
type load struct {
	b      testing.TB
	w      *world
	agents []api.Agent
	ends   map[string]chan api.LoopEnd
}

func newLoad(b testing.TB, sessions int, o apptest.Options) *load {
	b.Helper()
	o.Env = environment(b, o.Env)
	return loadOn(b, inProcess(b, o), sessions)
}

// loadOn creates agents in a running suite.
func loadOn(b testing.TB, w *world, sessions int) *load {
	b.Helper()
	l := &load{b: b, w: w, agents: make([]api.Agent, sessions), ends: map[string]chan api.LoopEnd{}}
	for i := range l.agents {
		l.agents[i] = born(b, l.w, fmt.Sprintf("Bench%d", i), 1000*api.Dollar)
		dir := filepath.Join(l.w.data, "loop", "workspaces", l.agents[i].ID)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "bench.txt"), []byte("x"), 0o600); err != nil {
			b.Fatal(err)
		}
		l.ends[l.agents[i].Session] = make(chan api.LoopEnd, 1)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var following sync.WaitGroup
	b.Cleanup(func() { cancel(); following.Wait() })
	following.Go(func() {
		err := l.w.bus.Events(ctx, 0, func(s bus.Stored) error {
			var e api.LoopEnd
			if err := api.Decode(s.Data, &e); err != nil {
				return err
			}
			l.ends[e.Session] <- e
			return nil
		}, api.LoopEnd{}.Subject())
		if ctx.Err() == nil {
			b.Errorf("follow: %v", err)
		}
	})
	for _, a := range l.agents { // warm-up
		l.one(a)
	}
	return l
}

// one makes a run of two turns and returns the time of each.
func (l *load) one(a api.Agent) time.Duration {
	began := time.Now()
	if _, err := bus.Call[api.Accepted](l.b.Context(), l.w.bus, api.SendMessage{Agent: a.ID, Content: "one tool"}); err != nil {
		l.b.Error(err)
		return 0
	}
	var e api.LoopEnd
	select {
	case e = <-l.ends[a.Session]:
	case <-time.After(time.Minute): // the suite has ended, or the run is lost
	}
	if !e.Success || e.Turns != 2 {
		l.b.Errorf("run: %+v", e)
	}
	return time.Since(began) / 2
}

// run makes n runs, concurrently by all agents.
func (l *load) run(n int) (took []time.Duration, elapsed time.Duration) {
	var mu sync.Mutex
	work := make(chan struct{})
	began := time.Now()
	var wg sync.WaitGroup
	for _, a := range l.agents {
		wg.Go(func() {
			for range work {
				d := l.one(a)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	return took, time.Since(began)
}

// skeleton makes the requests and writes of a turn over NATS without its work.
type skeleton struct {
	b                         *testing.B
	sessions                  int
	requests, stored, commits float64 // per turn
	conns                     []*nats.Conn
}

// newSkeleton counts a turn's requests, stored messages and transactions over some runs
// of l.
func newSkeleton(b *testing.B, l *load, replicas int) *skeleton {
	b.Helper()
	k := &skeleton{b: b, sessions: len(l.agents)}
	count, echo := bareNATS(b, l.w.own), bareNATS(b, l.w.own)
	js, err := jetstream.New(count)
	if err != nil {
		b.Fatal(err)
	}
	stored := func() (n uint64) {
		streams := js.ListStreams(b.Context())
		for s := range streams.Info() {
			n += s.State.LastSeq
		}
		if err := streams.Err(); err != nil {
			b.Fatal(err)
		}
		return n
	}
	var requests atomic.Int64
	sub, err := count.Subscribe(api.Root+".*.req.>", func(*nats.Msg) { requests.Add(1) })
	if err != nil {
		b.Fatal(err)
	}
	if err := count.Flush(); err != nil {
		b.Fatal(err)
	}
	const runs = 32
	before, committed := stored(), commits(b, l)
	for range runs {
		l.one(l.agents[0])
	}
	if err := count.Flush(); err != nil {
		b.Fatal(err)
	}
	k.stored = float64(stored()-before) / (2 * runs)
	k.commits = (commits(b, l) - committed) / (2 * runs)
	if err := sub.Drain(); err != nil {
		b.Fatal(err)
	}
	for sub.IsValid() {
		runtime.Gosched()
	}
	k.requests = float64(requests.Load()) / (2 * runs)
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "BARE", Subjects: []string{"bare.stored.>"}, Replicas: replicas}); err != nil {
		b.Fatal(err)
	}
	if _, err := echo.Subscribe("bare.request", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := echo.Flush(); err != nil {
		b.Fatal(err)
	}
	for range k.sessions {
		k.conns = append(k.conns, bareNATS(b, l.w.own))
	}
	return k
}

// run makes n skeletons of two turns with the given number of durable writes, with a
// concurrency of the number of sessions, and returns the median time of one.
func (k *skeleton) run(n int, writes float64) time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	work := make(chan struct{})
	var wg sync.WaitGroup
	data := make([]byte, 400) // size of a typical event of a turn in bytes
	for _, nc := range k.conns {
		js, err := jetstream.New(nc)
		if err != nil {
			k.b.Fatal(err)
		}
		wg.Go(func() {
			for range work {
				began := time.Now()
				for range int(2*k.requests + .5) {
					if _, err := nc.RequestWithContext(k.b.Context(), "bare.request", data); err != nil {
						k.b.Error(err)
					}
				}
				for range int(2*writes + .5) {
					if _, err := js.Publish(k.b.Context(), "bare.stored.x", data); err != nil {
						k.b.Error(err)
					}
				}
				mu.Lock()
				took = append(took, time.Since(began)/2)
				mu.Unlock()
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	slices.Sort(took)
	return took[len(took)/2]
}

// commits returns the number of transactions of the suite of l that have written so far.
func commits(b *testing.B, l *load) (n float64) {
	b.Helper()
	metrics, err := scrape(b.Context(), l.w.ops)
	if err != nil {
		b.Fatal(err)
	}
	for _, v := range metrics {
		if v.name == "anima_sql_commits_total" {
			n += v.value
		}
	}
	return n
}

// bareNATS returns a connection without package bus.
func bareNATS(b testing.TB, server nats.InProcessConnProvider) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(server))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// BenchmarkRequest compares a request through a service's route with a plain NATS request
// on the same server in the same run.
func BenchmarkRequest(b *testing.B) {
	w := oneProcess(b, nil)
	born(b, w, "Asked", api.Dollar)
	s := apptest.Server(b)
	nc, responder := bareNATS(b, s.InProcess()), bareNATS(b, s.InProcess())
	if _, err := responder.Subscribe("bare", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	ask := func() time.Duration {
		began := time.Now()
		if _, err := bus.Call[api.Keys](b.Context(), w.bus, api.ListKeys{}); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	bare := func() time.Duration {
		began := time.Now()
		if _, err := nc.RequestWithContext(b.Context(), "bare", []byte("{}")); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var ours, theirs []time.Duration
	for range b.N {
		ours, theirs = append(ours, ask()), append(theirs, bare())
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	mine, plain := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(float64(mine.Nanoseconds())/1000, "p50-us/route")
	b.ReportMetric(float64(plain.Nanoseconds())/1000, "p50-us/bare")
	b.ReportMetric(float64(mine)/float64(plain), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWake measures the time from the request for a wake to the first event of the
// agent's run.
func BenchmarkWake(b *testing.B) {
	w := oneProcess(b, nil)
	a := born(b, w, "Light", 1000*api.Dollar)
	await(b, w, api.AgentChanged{Agent: a.ID}, func(api.AgentChanged) bool { return true })
	starts := make(chan api.LoopStart, 16)
	ends := make(chan api.LoopEnd, 16)
	ctx, cancel := context.WithCancel(b.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() {
		_ = w.bus.Events(ctx, 0, func(s bus.Stored) error {
			var e api.LoopStart
			if err := api.Decode(s.Data, &e); err != nil {
				return err
			}
			starts <- e
			return nil
		}, api.LoopStart{Session: a.Session}.Subject())
	})
	following.Go(func() {
		_ = w.bus.Events(ctx, 0, func(s bus.Stored) error {
			var e api.LoopEnd
			if err := api.Decode(s.Data, &e); err != nil {
				return err
			}
			ends <- e
			return nil
		}, api.LoopEnd{Session: a.Session}.Subject())
	})
	var took []time.Duration
	for i := range b.N {
		began := time.Now()
		if _, err := bus.Call[api.Wake](ctx, w.bus, api.RequestWake{Agent: a.ID, Cause: fmt.Sprintf("bench-%d", i), Reason: "bench"}); err != nil {
			b.Fatal(err)
		}
		<-starts
		took = append(took, time.Since(began))
		<-ends
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(0, "ns/op")
}
