package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
	"github.com/anima-run/anima/tools/trace/query"
	"github.com/anima-run/anima/tools/trace/rules"
)

// Variables of make trace-faults.
const (
	faultTurns  = "ANIMA_TRACE_FAULTS_TURNS"  // minimum number of turns; default 60
	faultJaeger = "ANIMA_TRACE_FAULTS_JAEGER" // path of the program tools/jaeger; spans are then exported to a real Jaeger
	faultSeed   = "ANIMA_TRACE_FAULTS_SEED"
	faultBroken = "ANIMA_TRACE_FAULTS_BROKEN" // control: spans of a killed process are lost, and the test must fail
)

// TestTraceFaults runs agents while every service is killed, NATS is restarted, messages
// are redelivered and the provider refuses requests. In the end every turn must have one
// complete trace, and every transaction and decision must refer to one.
func TestTraceFaults(t *testing.T) {
	t.Parallel()
	turns := number(t, faultTurns, 60)
	store := openStore(t)
	f := begin(t, store, uint64(number(t, faultSeed, 1)))
	began := time.Now()
	f.run(turns)
	took := time.Since(began)
	want := f.books()
	stopping := time.Now()
	for _, n := range names {
		f.wg.Go(func() { f.procs[n].stop(t) })
	}
	f.wg.Wait()

	t.Logf("stopped in %.1f s", time.Since(stopping).Seconds())

	var verdicts []rules.Verdict
	var sum rules.Summary
	var all []query.Trace
	patient(t, 60*time.Second, func() bool {
		all = store.traces(t)
		var err error
		if sum, err = rules.CheckAll(t.Context(), all, store, rules.Options{Services: rules.All(), Skew: 2 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		more, err := rules.Compare(t.Context(), all, store, want)
		if err != nil {
			t.Fatal(err)
		}
		verdicts = append(slices.Clone(sum.Verdicts), more...)
		return !slices.ContainsFunc(verdicts, func(v rules.Verdict) bool { return !v.Pass })
	})
	seen := what(all)
	t.Logf("%s; %d turns of %d runs in %.1f s; %d traces, %d spans, %d sent twice", store, len(want.Turns), f.runs.Load(), took.Seconds(), sum.Traces, sum.Spans, sum.Copies)
	t.Logf("faults: %v", f.faults)
	t.Logf("seen: %d turns resumed, %d spans whose process was killed, %d messages redelivered, %d times 429", seen.recovered, seen.killed, seen.again, seen.limited)
	for _, v := range verdicts {
		word := "PASS"
		if !v.Pass {
			word = fmt.Sprintf("FAIL %d", v.Count)
			t.Errorf("%s is broken", v.Rule)
		}
		t.Logf("%-8s %-12s %s", word, v.Rule, v.Note)
		for _, fault := range v.Faults {
			t.Logf("           %s", fault)
		}
	}
	if seen.recovered == 0 || seen.killed == 0 || seen.again == 0 || seen.limited == 0 {
		t.Error("the faults did not do what they are for: want some of each")
	}
	if files, _ := filepath.Glob(filepath.Join(f.data, "*", "spans", "*")); len(files) > 0 {
		t.Errorf("spans of killed processes were not sent: %v", files)
	}
}

// faulty is the suite in separate processes, with the faults that are injected.
type faulty struct {
	t       *testing.T
	w       *world
	data    string
	addr    string // of NATS
	natsDir string
	nats    *embednats.Server
	env     map[string]string
	procs   map[string]*process
	faults  map[string]int
	wg      sync.WaitGroup

	seed   uint64
	agents []api.Agent
	runs   atomic.Int64
	mu     sync.Mutex
	turns  int             // number of turns of ended runs
	ends   map[string]bool // ended runs
	moved  chan struct{}   // closed and replaced when a run ends
}

func begin(t *testing.T, store spanStore, seed uint64) *faulty {
	t.Helper()
	script, err := filepath.Abs("testdata/faults.json")
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{
		t: t, data: t.TempDir(), addr: freeAddr(t), natsDir: t.TempDir(), seed: seed,
		procs: map[string]*process{}, faults: map[string]int{}, ends: map[string]bool{}, moved: make(chan struct{}),
	}
	if os.Getenv(faultBroken) != "" {
		for _, n := range names {
			err := os.MkdirAll(filepath.Join(f.data, n), 0o700)
			if err = errors.Join(err, os.WriteFile(filepath.Join(f.data, n, "spans"), nil, 0o600)); err != nil { // a file in the place of the folder for spooled spans
				t.Fatal(err)
			}
		}
	}
	f.startNATS()
	t.Cleanup(func() { f.nats.Shutdown() })
	f.env = environment(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script, "OTEL_EXPORTER_OTLP_ENDPOINT": store.endpoint(), "ANIMA_LOOP_LEASE": "2s"})
	for _, n := range names {
		f.procs[n] = startService(t, n, "nats://"+f.addr, f.data, f.env)
	}
	for _, n := range names {
		f.procs[n].await(t)
	}
	f.w = &world{bus: connect(t, "nats://"+f.addr), data: f.data}
	for i := range 6 {
		f.agents = append(f.agents, born(t, f.w, fmt.Sprintf("Agent%d", i), 1000*api.Dollar))
	}
	return f
}

func (f *faulty) startNATS() {
	f.t.Helper()
	s, err := embednats.Start(f.t.Context(), embednats.Options{Dir: f.natsDir, Listen: f.addr, Token: token, Log: apptest.Log(f.t)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.nats = s
}

func (f *faulty) kill(name string) {
	f.procs[name].kill()
	f.faults["kill "+name]++
	f.procs[name] = startService(f.t, name, "nats://"+f.addr, f.data, f.env)
	f.procs[name].await(f.t)
}

// run lets the agents work until the number of turns is reached, and injects the faults
// one after the other.
func (f *faulty) run(turns int) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { f.follow(ctx) })
	var load sync.WaitGroup
	enough := func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.turns >= turns }
	for i := range f.agents {
		load.Go(func() {
			rng := rand.New(rand.NewPCG(f.seed, uint64(i)))
			for n := 0; !enough() && f.send(ctx, i, n, rng); n++ {
			}
		})
	}
	faults := []func(){func() {
		f.nats.Shutdown()
		f.startNATS()
		f.faults["restart nats"]++
	}}
	for _, n := range names {
		faults = append(faults, func() { f.kill(n) })
	}
	// loop is killed after the work and before the acknowledgement of the message: the
	// journal, the row and the announcements exist, and the message is redelivered.
	for _, m := range []api.Message{api.LoopExecute{}, api.ToolStart{}, api.LoopPersist{}, api.LoopEnd{}} {
		faults = append(faults, func() {
			f.see(ctx, m)
			f.kill("loop")
		})
	}
	rounds := max(1, turns/250)
	rng := rand.New(rand.NewPCG(f.seed, 1<<32))
	for round := range rounds {
		rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for i, fault := range faults {
			// The faults are spread over the work, so that the last one also happens
			// under load.
			if !f.wait(ctx, func() bool { return f.turns*rounds*(len(faults)+1) >= turns*(round*len(faults)+i+1) }) {
				f.t.Error("the agents stand still")
				return
			}
			fault()
		}
	}
	load.Wait()
	f.settle(ctx)
}

// send sends a message to an agent and waits for the end of its run.
func (f *faulty) send(ctx context.Context, agent, n int, rng *rand.Rand) bool {
	a, other := f.agents[agent], f.agents[(agent+1+rng.IntN(len(f.agents)-1))%len(f.agents)]
	text := []string{"work", "work", "slow", "forbidden", "busy", "sleep", "tell " + other.Address + " hello", "hello"}[rng.IntN(8)]
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var acc api.Accepted
	for {
		var err error
		acc, err = bus.Call[api.Accepted](ctx, f.w.bus, api.SendMessage{Agent: a.ID, Content: text, ID: fmt.Sprintf("%d-%d", agent, n)})
		if err == nil {
			break
		}
		if api.CodeOf(err) != api.Unavailable || ctx.Err() != nil {
			f.t.Errorf("send: %v", err)
			return false
		}
	}
	f.runs.Add(1)
	if !f.wait(ctx, func() bool { return f.ends[acc.Run] }) {
		f.t.Errorf("run %s (%s) did not end", acc.Run, text)
		return false
	}
	return true
}

// follow records the ends of all runs, including those of wakes.
func (f *faulty) follow(ctx context.Context) {
	err := f.w.bus.Events(ctx, 0, func(s bus.Stored) error {
		var e api.LoopEnd
		if err := api.Decode(s.Data, &e); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.ends[e.Run] {
			f.ends[e.Run] = true
			f.turns += e.Turns
			close(f.moved)
			f.moved = make(chan struct{})
		}
		if !e.Success {
			f.t.Errorf("a run failed: %+v", e)
		}
		return nil
	}, api.LoopEnd{}.Subject())
	if ctx.Err() == nil {
		f.t.Errorf("follow: %v", err)
	}
}

// wait waits up to three minutes until enough returns true. It calls enough after each
// end of a run.
func (f *faulty) wait(ctx context.Context, enough func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		f.mu.Lock()
		ok, moved := enough(), f.moved
		f.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// settle waits until no run has ended for a while, because alarms of a second may be set.
func (f *faulty) settle(ctx context.Context) {
	for {
		f.mu.Lock()
		moved := f.moved
		f.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		case <-time.After(4 * time.Second):
			return
		}
	}
}

// see returns when an event of that type is published.
func (f *faulty) see(ctx context.Context, m api.Message) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	hit := errors.New("seen")
	from := time.Now()
	err := f.w.bus.Events(ctx, 0, func(s bus.Stored) error {
		if s.At.Before(from) {
			return nil
		}
		return hit
	}, m.Subject())
	if !errors.Is(err, hit) {
		f.t.Logf("%T was not received: %v", m, err) // the load has ended
	}
}

// books returns the traces that are named in the services' records.
func (f *faulty) books() rules.Expected {
	f.t.Helper()
	want := rules.Expected{Turns: map[string]string{}, Records: map[string]string{}}
	for _, a := range f.agents {
		turns := call[api.Turns](f.t, f.w, api.ListTurns{Agent: a.ID, Limit: 1000}).Turns
		decisions := call[api.Decisions](f.t, f.w, api.ListDecisions{Agent: a.ID, Limit: 1000}).Decisions
		if len(turns) == 1000 || len(decisions) == 1000 {
			f.t.Error("there are more turns or decisions than one answer holds")
		}
		for _, v := range turns {
			want.Turns[v.ID] = v.Trace
		}
		for _, v := range decisions {
			want.Records["decision "+v.ID] = v.Trace
		}
	}
	for after := int64(0); ; {
		page := call[api.Entries](f.t, f.w, api.ListEntries{After: after, Limit: 200})
		for _, v := range page.Entries {
			want.Records["posting "+v.ID] = v.Trace
			after = v.Seq
		}
		if !page.More {
			break
		}
	}
	report := call[api.LedgerReport](f.t, f.w, api.VerifyLedger{})
	if !report.OK { // a hold of a killed router is active until it expires
		f.t.Errorf("ledger: %+v", report)
	}
	return want
}

// sights counts the effects of the faults that are visible in the spans.
type sights struct{ recovered, killed, again, limited int }

func what(all []query.Trace) (s sights) {
	for _, t := range all {
		for _, span := range t.Spans {
			if n, err := strconv.Atoi(span.Attributes["messaging.nats.delivery_count"]); err == nil && n > 1 {
				s.again++
			}
			switch {
			case span.Attributes["anima.turn.recovered"] == "true":
				s.recovered++
			case span.Attributes["error.type"] == "process_killed":
				s.killed++
			case span.Attributes["error.type"] == "rate_limited":
				s.limited++
			}
		}
	}
	return s
}

// spanStore receives spans over OTLP and returns them.
type spanStore interface {
	rules.Source
	fmt.Stringer
	endpoint() string
	traces(t *testing.T) []query.Trace
}

func openStore(t *testing.T) spanStore {
	t.Helper()
	if bin := os.Getenv(faultJaeger); bin != "" {
		return startJaeger(t, bin)
	}
	return &received{Collector: oteltest.Receiver(t)}
}

// received is the receiver of package oteltest.
type received struct {
	*oteltest.Collector
	byID map[string]query.Trace
}

func (r *received) endpoint() string { return r.Endpoint() }
func (*received) String() string     { return "the receiver of pkg/telemetry/oteltest" }

func (r *received) Trace(_ context.Context, id string) (query.Trace, error) {
	if t, ok := r.byID[id]; ok {
		return t, nil
	}
	return query.Trace{}, query.ErrNotFound
}

func (r *received) traces(*testing.T) []query.Trace {
	r.byID = map[string]query.Trace{}
	for _, s := range r.Spans() {
		id := s.TraceID.String()
		t := r.byID[id]
		t.ID = id
		t.Spans = append(t.Spans, queried(s))
		r.byID[id] = t
	}
	return slices.Collect(maps.Values(r.byID))
}

var kinds = map[string]query.Kind{
	"internal": query.Internal, "server": query.Server, "client": query.ClientKind, "producer": query.Producer, "consumer": query.Consumer,
}

// queried returns a span in the form in which Jaeger returns it.
func queried(s oteltest.Span) query.Span {
	out := query.Span{
		TraceID: s.TraceID.String(), ID: s.SpanID.String(), Service: s.Service, Name: s.Name, Kind: kinds[s.Kind], Start: s.Start, End: s.End,
		Attributes: map[string]string{}, Failed: s.Status == "error", Reason: s.Reason,
	}
	if s.Parent.IsValid() {
		out.Parent = s.Parent.String()
	}
	for k, v := range s.Attributes {
		out.Attributes[k] = fmt.Sprint(v)
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, query.Link{TraceID: l.TraceID.String(), SpanID: l.SpanID.String()})
	}
	return out
}

// jaeger is a real Jaeger.
type jaeger struct {
	query.Client
	otlp  string
	began time.Time
}

// startJaeger starts bin, which is the program tools/jaeger.
func startJaeger(t *testing.T, bin string) *jaeger {
	t.Helper()
	port := func() string { _, p, _ := strings.Cut(freeAddr(t), ":"); return p }
	otlp, api := port(), port()
	cache := os.Getenv("ANIMA_CACHE")
	if cache == "" {
		dir, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(dir, ".cache", "anima")
	}
	p := start(t, "jaeger", bin, map[string]string{"ANIMA_CACHE": cache}, "run",
		"-otlp-grpc", otlp, "-otlp-http", port(), "-query", api, "-query-grpc", port(), "-health", port())
	p.line(t, `^jaeger .* is ready`)
	return &jaeger{Client: query.Client{Base: "http://127.0.0.1:" + api, HTTP: &http.Client{Timeout: time.Minute}}, otlp: "http://127.0.0.1:" + otlp, began: time.Now()}
}

func (j *jaeger) endpoint() string { return j.otlp }
func (*jaeger) String() string     { return "Jaeger" }

func (j *jaeger) traces(t *testing.T) []query.Trace {
	t.Helper()
	byID := map[string]query.Trace{}
	for _, n := range names {
		some, err := j.Since(t.Context(), n, j.began.Add(-time.Minute), time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range some {
			byID[one.ID] = one
		}
	}
	return slices.Collect(maps.Values(byID))
}

func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1", variable, v)
	}
	return n
}

// patient calls try every second until it succeeds or the time is over.
func patient(t *testing.T, most time.Duration, try func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !try() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
