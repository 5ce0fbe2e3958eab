package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// gatewayRounds is the variable of make bench-gateway: the number of rounds. Without it
// TestGatewayCost has its short form, with one round of short slots.
const gatewayRounds = "ANIMA_GATEWAY_ROUNDS"

// TestGatewayCost makes the same model calls to a provider directly, through two proxies
// that only forward, and through the router with its budgets, ledger, spans and metrics:
// that of anima up, whose process has all services and NATS, and in the long form also that
// of a suite of six processes, whose process has only the router. Each target has one slot a
// round, in an order that is reversed from round to round. It prints the processor time of a
// request in the target's process and its ratio to the proxy of net/http in the same round,
// and the memory of an open stream. It fails if an answer of a router is incomplete; the
// figures are printed for the reader and not checked.
func TestGatewayCost(t *testing.T) {
	t.Parallel()
	rounds, slot, streams := number(t, gatewayRounds, 0), 1500*time.Millisecond, 500
	long := rounds > 0
	if !long {
		rounds, slot, streams = 1, 100*time.Millisecond, 16
	}
	g := newGateway(t, streams, long)
	for _, kind := range []struct {
		name, body, end string
	}{
		{"chat of 200 bytes", g.body(200, false), "}"},
		{"stream of 32 tokens", g.body(200, true), "data: [DONE]"},
		{"prompt of 10 kB", g.body(10<<10, false), "}"},
	} {
		const concurrency = 16
		for round := range rounds {
			order := slices.Clone(g.targets)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, at := range order {
				at.measure(t, kind.body, kind.end, concurrency, slot)
			}
		}
		t.Logf("\n%s, %d connections, %d rounds\n%s", kind.name, concurrency, rounds, g.table())
	}
	t.Logf("an open stream of %d: %.0f kB of resident memory in the process of all services", streams, float64(g.streamMemory(streams))/1000)
}

type gateway struct {
	t       *testing.T
	targets []*gatewayTarget
	router  *gatewayTarget // the one of anima up
}

// gatewayTarget is one server and its figures by round.
type gatewayTarget struct {
	name, url string
	pid       int
	header    http.Header
	client    *http.Client

	cpu  []time.Duration // of a request
	rate []float64       // requests a second

	broken int64 // incomplete answers; a proxy of net/http has some under load
}

// newGateway starts the provider, the proxies and anima up; with alone also a suite of one
// process per service.
func newGateway(t *testing.T, streams int, alone bool) *gateway {
	t.Helper()
	g := &gateway{t: t}
	provider := g.start("provider", "")
	g.start("nethttp", provider.url)
	g.start("fasthttp", provider.url)
	env := map[string]string{
		"ANIMA_INFERENCE_ROUTER_SIMULATED": "false", "OPENAI_BASE_URL": provider.url + "/v1", "OPENAI_API_KEY": "k",
		"ANIMA_INFERENCE_ROUTER_MODELS": "bench=0.1/0.2/128000,open=0/0/128000", "ANIMA_INFERENCE_ROUTER_WORKERS": strconv.Itoa(2 * streams),
	}
	if alone {
		w := manyProcesses(t, env)
		g.add("router alone", w, w.processes["inference-router"])
	}
	p, w := upWith(t, t.TempDir(), env)
	g.router = g.add("router", w, p)
	return g
}

// add adds the router of a suite, with an agent that pays.
func (g *gateway) add(name string, w *world, p *process) *gatewayTarget {
	g.t.Helper()
	at := routerOf(w, born(g.t, w, "Payer", 1000*api.Dollar))
	at.name, at.pid = name, p.cmd.Process.Pid
	g.targets = append(g.targets, at)
	return at
}

// routerOf returns the router of a suite, for calls that an agent pays.
func routerOf(w *world, payer api.Agent) *gatewayTarget {
	return &gatewayTarget{
		url: w.http["inference-router"], client: newClient(),
		header: http.Header{"Authorization": {"Bearer " + token}, "Anima-Agent": {payer.ID}},
	}
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: 2048, MaxIdleConnsPerHost: 1024}}
}

// start starts a role of the test program.
func (g *gateway) start(role, to string) *gatewayTarget {
	g.t.Helper()
	p := start(g.t, role, os.Args[0], map[string]string{gatewayRole: role, gatewayTo: to})
	g.t.Cleanup(p.kill)
	at := &gatewayTarget{name: role, url: p.line(g.t, `^http://.*`)[0], pid: p.cmd.Process.Pid, client: newClient()}
	g.targets = append(g.targets, at)
	return at
}

// body returns a request with a prompt of this size.
func (g *gateway) body(size int, stream bool) string {
	return fmt.Sprintf(`{"model":"bench","max_tokens":64,"stream":%t,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":%q}]}`,
		stream, strings.Repeat("a word ", size/7))
}

// measure sends requests from several connections for the length of a slot.
func (at *gatewayTarget) measure(t *testing.T, body, end string, connections int, slot time.Duration) {
	t.Helper()
	if strings.Contains(body, `"stream":false`) {
		body = strings.Replace(body, `,"stream_options":{"include_usage":true}`, "", 1)
	}
	began := time.Now()
	used, err := processTime(at.pid)
	if err != nil {
		t.Fatal(err)
	}
	var requests, broken atomic.Int64
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for time.Since(began) < slot {
				requests.Add(1)
				answer, err := at.post(t, body)
				if err == nil && strings.HasSuffix(strings.TrimSpace(answer), end) {
					continue
				}
				broken.Add(1)
				if at.header != nil { // of a router
					t.Errorf("got %v after %d bytes, want an answer with %s at its end", err, len(answer), end)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	now, err := processTime(at.pid)
	if err != nil {
		t.Fatal(err)
	}
	at.broken += broken.Load()
	at.cpu, at.rate = append(at.cpu, (now-used)/time.Duration(max(requests.Load(), 1))), append(at.rate, float64(requests.Load())/took.Seconds())
}

func (at *gatewayTarget) post(t *testing.T, body string) (string, error) {
	t.Helper()
	res, err := at.open(t, body)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		err = cmp.Or(err, fmt.Errorf("status %d", res.StatusCode))
	}
	return string(answer), err
}

func (at *gatewayTarget) open(t testing.TB, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = at.header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	return at.client.Do(req)
}

// table returns the medians of the figures, and resets them.
func (g *gateway) table() string {
	var out strings.Builder
	floor := g.targets[1]
	fmt.Fprintf(&out, "| target | processor time of a request | to the proxy of net/http | requests/s | incomplete answers |\n| --- | --- | --- | --- | --- |\n")
	for _, at := range g.targets {
		ratios := make([]float64, len(at.cpu))
		for i := range at.cpu {
			ratios[i] = float64(at.cpu[i]) / float64(max(floor.cpu[i], 1))
		}
		fmt.Fprintf(&out, "| %s | %d µs | ×%.2f | %.0f | %d |\n", at.name, median(at.cpu).Microseconds(), median(ratios), median(at.rate), at.broken)
	}
	for _, at := range g.targets {
		at.cpu, at.rate, at.broken = nil, nil, 0
	}
	return out.String()
}

func median[T cmp.Ordered](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// streamMemory opens streams through the router, waits for the first token of each, and
// returns the growth of the process's resident memory for one.
func (g *gateway) streamMemory(streams int) int64 {
	g.t.Helper()
	at := g.router
	before := residentOf(g.t, at.pid)
	body := strings.Replace(g.body(200, true), `"bench"`, `"open"`, 1)
	var open []io.Closer
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			res, err := at.open(g.t, body) //nolint:bodyclose // closed below, after the memory was read
			if err != nil {
				g.t.Error(err)
				return
			}
			first := make([]byte, 16)
			if _, err := io.ReadFull(res.Body, first); err != nil {
				g.t.Errorf("an open stream: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, res.Body)
		})
	}
	wg.Wait()
	after := residentOf(g.t, at.pid)
	for _, c := range open {
		_ = c.Close() // the answer is not complete
	}
	return (after - before) / int64(streams)
}

// residentOf returns the resident memory of a process in bytes.
func residentOf(t *testing.T, pid int) int64 {
	t.Helper()
	pages, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(pages))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}
