package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/loop"
)

// Variables of make operations. Without them the test has its short form.
const (
	operationsCount = "ANIMA_OPERATIONS" // number of operations
	operationsSeed  = "ANIMA_OPERATIONS_SEED"
)

// operators is the number of concurrent callers.
const operators = 6

// TestOperationsRandomly has concurrent callers make random operations of a creator on
// three agents, whose loop has two replicas: messages of every mode, cancels,
// terminations, resets, sleeps, deposits, deletions and restorations. It then checks that
//
//   - each accepted run has ended, with one announcement that agrees with its state;
//   - no run succeeded after an operation that was to stop it was answered;
//   - each session is free, the ledger verifies, and each account has what its deposits
//     and the costs of its sessions leave.
//
// The operations follow from the seed, their order in time does not.
func TestOperationsRandomly(t *testing.T) {
	t.Parallel()
	n, seed := number(t, operationsCount, 240), uint64(number(t, operationsSeed, 1))
	script, err := filepath.Abs("testdata/operations.json")
	if err != nil {
		t.Fatal(err)
	}
	server, data := apptest.Server(t), t.TempDir()
	o := apptest.Options{Server: server, Data: data, Env: environment(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script})}
	c := &creator{t: t, w: inProcess(t, o), money: map[string]api.Micros{}}
	apptest.Start(t, o, loop.Service)
	ends := apptest.Watch[api.LoopEnd](t, c.w.bus)
	for _, name := range operated {
		born(t, c.w, name, api.Dollar)
		c.money[name] = api.Dollar
	}
	var all sync.WaitGroup
	for i := range operators {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for k := range n / operators {
				c.operate(t.Context(), rng, fmt.Sprintf("%d-%d", i, k))
			}
		})
	}
	all.Wait()
	t.Logf("%d operations, seed %d: %d runs, %d stops, %d refused", n, seed, len(c.runs), len(c.stops), c.refused.Load())
	c.check(ends)
}

// operated are the ids of the agents.
var operated = []string{"ada", "bob", "eve"}

// creator makes operations and records what must follow from them.
type creator struct {
	t       *testing.T
	w       *world
	clock   atomic.Int64 // orders the beginnings and the answers of operations
	refused atomic.Int64

	mu    sync.Mutex
	runs  []accepted
	stops []stopped
	money map[string]api.Micros // deposits by agent
}

// accepted is a message that was accepted.
type accepted struct {
	api.Accepted
	at int64 // clock after the answer
}

// stopped is an operation that ends the runs that were accepted before it.
type stopped struct {
	what     string
	stops    func(api.Accepted) bool
	began    int64 // clock before the request
	answered int64 // Unix microseconds
}

// request makes a request and reports whether it succeeded. Refusals that the operation
// documents are counted; another error is a fault.
func request[Resp any](ctx context.Context, c *creator, m api.Message) (Resp, bool) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	v, err := bus.Call[Resp](ctx, c.w.bus, m)
	if err == nil {
		return v, true
	}
	switch code := api.CodeOf(err); {
	case code == api.NotFound, code == api.Conflict, code == api.Unavailable && api.ReasonOf(err) == api.ReasonLimit:
		c.refused.Add(1)
	default:
		c.t.Errorf("%T: %v", m, err)
	}
	return v, false
}

func (c *creator) operate(ctx context.Context, rng *rand.Rand, id string) {
	agent := operated[rng.IntN(len(operated))]
	switch p := rng.IntN(100); {
	case p < 62:
		c.send(ctx, rng, agent, id)
	case p < 70:
		if run, ok := c.recent(rng); ok {
			c.stop("cancel", func(a api.Accepted) bool { return a.Run == run.Run }, func() bool {
				_, ok := request[api.RunState](ctx, c, api.CancelRun{Run: run.Run, Session: run.Session})
				return ok
			})
		}
	case p < 74:
		session := agent + "-main"
		if run, ok := c.recent(rng); ok {
			session = run.Session
		}
		c.stop("terminate", func(a api.Accepted) bool { return a.Session == session }, func() bool {
			_, ok := request[api.Session](ctx, c, api.TerminateSession{Session: session, Reason: "operation " + id})
			return ok
		})
	case p < 78:
		if run, ok := c.recent(rng); ok {
			request[api.Session](ctx, c, api.ResetSession{Session: run.Session})
		}
	case p < 82:
		var slept api.Agent
		c.stop("sleep", func(a api.Accepted) bool { return a.Session == slept.Session }, func() (ok bool) {
			slept, ok = request[api.Agent](ctx, c, api.SleepAgent{Agent: agent})
			return ok
		})
	case p < 88:
		if _, ok := request[api.Posted](ctx, c, api.Deposit{ID: "op-" + id, Agent: agent, Amount: api.Dollar / 10, Source: "faucet"}); ok {
			c.mu.Lock()
			c.money[agent] += api.Dollar / 10
			c.mu.Unlock()
		}
	default:
		c.stop("delete", func(a api.Accepted) bool { return a.Agent == agent }, func() bool {
			_, ok := request[api.Deleted](ctx, c, api.DeleteAgent{Agent: agent, Force: true, Forget: p >= 98})
			return ok
		})
		request[api.Agent](ctx, c, api.ApplyAgent{Source: "---\nname: " + agent + "\n---\nBe useful.\n"})
	}
}

func (c *creator) send(ctx context.Context, rng *rand.Rand, agent, id string) {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	m := api.SendMessage{Agent: agent, Content: pick("hello ", "think ", "think ", "work ", "remember ", "sleep ", "words ") + id}
	m.Mode = api.Mode(pick("", "", "", string(api.ModeDrop), string(api.ModeInterrupt), string(api.ModeSteer), string(api.ModeCollect)))
	switch rng.IntN(4) {
	case 0:
		m.Session = "new"
	case 1:
		if run, ok := c.recent(rng); ok && run.Agent == agent {
			m.Session = run.Session
		}
	}
	if rng.IntN(3) == 0 {
		m.ID = id
	}
	began := c.clock.Add(1)
	for range 1 + rng.IntN(2) { // a message with a key may be sent twice, one without is then two
		a, ok := request[api.Accepted](ctx, c, m)
		if !ok {
			return
		}
		c.mu.Lock()
		if !slices.ContainsFunc(c.runs, func(r accepted) bool { return r.Run == a.Run }) {
			c.runs = append(c.runs, accepted{a, c.clock.Add(1)})
		}
		if m.Mode == api.ModeInterrupt {
			c.stops = append(c.stops, stopped{"interrupt", func(o api.Accepted) bool { return o.Session == a.Session }, began, time.Now().UnixMicro()})
		}
		c.mu.Unlock()
	}
}

// recent returns one of the last runs.
func (c *creator) recent(rng *rand.Rand) (api.Accepted, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) == 0 {
		return api.Accepted{}, false
	}
	return c.runs[len(c.runs)-1-rng.IntN(min(len(c.runs), 8))].Accepted, true
}

// stop makes an operation that stops runs, and records it if it succeeded.
func (c *creator) stop(what string, stops func(api.Accepted) bool, operation func() bool) {
	began := c.clock.Add(1)
	if !operation() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stops = append(c.stops, stopped{what, stops, began, time.Now().UnixMicro()})
}

func (c *creator) check(ends <-chan api.LoopEnd) {
	t := c.t
	announced := map[string][]api.LoopEnd{}
	late := time.After(60 * time.Second)
	for _, r := range c.runs {
		for len(announced[r.Run]) == 0 {
			select {
			case e := <-ends:
				announced[e.Run] = append(announced[e.Run], e)
			case <-late:
				st, _ := request[api.RunState](t.Context(), c, api.GetRun{Run: r.Run, Session: r.Session})
				t.Fatalf("the end of run %+v is not announced: %+v", r.Accepted, st)
			}
		}
	}
	for _, r := range c.runs {
		st, ok := request[api.RunState](t.Context(), c, api.GetRun{Run: r.Run, Session: r.Session})
		if e := announced[r.Run][0]; !ok || st.Status != api.RunEnded || e.Success != st.Success || e.Outcome != st.Outcome || e.Turns != st.Turns || e.Cost != st.Cost {
			t.Errorf("run %s was announced as %+v, and is %+v", r.Run, e, st)
		}
		for _, s := range c.stops {
			if st.Success && st.Outcome != api.OutcomeMerged && r.at < s.began && s.stops(r.Accepted) && st.EndedAt > s.answered {
				t.Errorf("run %s, accepted at %d, succeeded %d µs after the answer of %s, which began at %d: %+v", r.Run, r.at, st.EndedAt-s.answered, s.what, s.began, st)
			}
		}
	}
	for _, id := range operated {
		a := call[api.Agent](t, c.w, api.ApplyAgent{Source: "---\nname: " + id + "\n---\nBe useful.\n"})
		if end := send(t, c.w, id, "hello"); !end.Success {
			t.Errorf("%s does not answer at the end: %+v", id, end)
		}
		sound(t, c.w, a)
		cost := c.cost(id)
		if b := call[api.Balance](t, c.w, api.GetBalance{Agent: id}); b.Held != 0 || b.Available != c.money[id]-cost {
			t.Errorf("%s has %s and %s held, want %s: deposits of %s, sessions cost %s", id, b.Available, b.Held, c.money[id]-cost, c.money[id], cost)
		}
	}
	for run, all := range announced {
		if len(all) != 1 {
			t.Errorf("the end of run %s was announced %d times", run, len(all))
		}
	}
}

// cost returns the costs of an agent's sessions.
func (c *creator) cost(agent string) (sum api.Micros) {
	for after := ""; ; {
		page := call[api.Sessions](c.t, c.w, api.ListSessions{Agent: agent, After: after})
		for _, s := range page.Sessions {
			sum += s.Cost
		}
		if !page.More {
			return sum
		}
		after = page.Next
	}
}
