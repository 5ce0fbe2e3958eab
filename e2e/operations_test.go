package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
	"github.com/anima-run/anima/services/loop"
)

// Variables of make operations. Without them the test has its short form.
const (
	operationsCount = "ANIMA_OPERATIONS" // number of operations
	operationsSeed  = "ANIMA_OPERATIONS_SEED"
	operationsKills = "ANIMA_OPERATIONS_KILLS" // number of processes that are killed
)

// operators is the number of concurrent callers.
const operators = 6

// TestOperationsRandomly has concurrent callers make random operations of a creator on
// three agents, whose loop has two replicas: messages of every mode, cancels,
// terminations, resets, sleeps, deposits, deletions and restorations. The runs send mail,
// transfer credits and create goals. It then checks that
//
//   - each accepted run has ended, with one announcement that agrees with its state;
//   - no run and no goal succeeded after an operation that was to stop it was answered;
//   - a provider that checks each request has refused none;
//   - each session is free, the ledger verifies, and the accounts have what their deposits,
//     the costs of their sessions and those of the plans of their goals leave.
//
// The operations follow from the seed, their order in time does not.
func TestOperationsRandomly(t *testing.T) {
	t.Parallel()
	server, data := apptest.Server(t), t.TempDir()
	env, refused := operationsEnv(t)
	o := apptest.Options{Server: server, Data: data, Env: environment(t, env)}
	c := newCreator(t, inProcess(t, o), refused)
	apptest.Start(t, o, loop.Service)
	<-c.operateAll(number(t, operationsCount, 60), uint64(number(t, operationsSeed, 1)))
	c.check()
}

// TestOperationsKilled makes the same operations on PostgreSQL and a process for each
// service, with a second one of loop, which are killed and started again in random order.
// The router is not among them: a hold whose router was killed remains until it expires.
func TestOperationsKilled(t *testing.T) {
	t.Parallel()
	n, kills, seed := number(t, operationsCount, 60), number(t, operationsKills, 2), uint64(number(t, operationsSeed, 1))
	env, refused := operationsEnv(t)
	env["ANIMA_DATABASE_URL"] = sqldbtest.Postgres(t)
	w := manyProcesses(t, env)
	again := func(name string) *process {
		return startService(t, name, w.nats.ClientURL(), w.data, environment(t, env))
	}
	second := again("loop")
	second.await(t)
	c := newCreator(t, w, refused)
	done, rng := c.operateAll(n, seed), rand.New(rand.NewPCG(seed, operators))
	defer func() { <-done }()
	names := []string{"loop", "loop2", "policy", "treasury", "heartbeat", "social"}
	for i := range kills {
		if !until(t.Context(), 10*time.Minute, func() bool { return c.made.Load() >= int64(n*(i+1)/(kills+1)) }) {
			t.Fatal("the operations do not continue")
		}
		switch name := names[rng.IntN(len(names))]; name {
		case "loop2":
			second.kill()
			second = again("loop")
			second.await(t)
		default:
			w.processes[name].kill()
			w.processes[name] = again(name)
			w.processes[name].await(t)
		}
	}
	<-done
	t.Logf("%d kills", kills)
	c.check()
}

// refusals are the requests that a strict provider has refused.
type refusals struct {
	mu  sync.Mutex
	all []string
}

// operationsEnv returns the settings of the services for random operations. The simulated
// model is a provider over HTTP that refuses each request that the protocol does not allow.
func operationsEnv(t *testing.T) (map[string]string, *refusals) {
	t.Helper()
	var r refusals
	env := servedModel(t, "testdata/operations.json", func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return // the client has disconnected
			}
			req.Body = io.NopCloser(bytes.NewReader(body))
			if req.Method == http.MethodPost {
				q, err := openaitest.Decode(bytes.NewReader(body), int64(len(body)))
				fault := openaitest.Check(q)
				if err != nil {
					fault = &openaitest.Error{Message: err.Error()}
				}
				if fault != nil {
					r.mu.Lock()
					r.all = append(r.all, fault.Message)
					r.mu.Unlock()
					openaitest.WriteError(w, http.StatusBadRequest, *fault)
					return
				}
			}
			h.ServeHTTP(w, req)
		})
	})
	env["ANIMA_LOOP_LEASE"] = "2s"
	return env, &r
}

// operated are the ids of the agents.
var operated = []string{"ada", "bob", "eve"}

// creator makes operations and records what must follow from them.
type creator struct {
	t       *testing.T
	w       *world
	clock   atomic.Int64 // orders the beginnings and the answers of operations
	made    atomic.Int64 // operations
	refused atomic.Int64

	addresses []string // of the agents
	ends      <-chan api.LoopEnd
	provider  *refusals

	mu       sync.Mutex
	runs     []accepted
	stops    []stopped
	deposits api.Micros
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
	goals    func(api.Goal) bool // nil: it stops none
	began    int64               // clock before the request
	begins   int64               // Unix microseconds, before the request
	answered int64               // Unix microseconds
}

func newCreator(t *testing.T, w *world, r *refusals) *creator {
	t.Helper()
	c := &creator{t: t, w: w, provider: r, ends: apptest.Watch[api.LoopEnd](t, w.bus)}
	for _, name := range operated {
		c.addresses = append(c.addresses, born(t, w, name, api.Dollar).Address)
		c.deposits += api.Dollar
	}
	return c
}

// operateAll makes n operations from concurrent callers, and closes the channel when all
// are answered.
func (c *creator) operateAll(n int, seed uint64) <-chan struct{} {
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range operators {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for k := range n / operators {
				c.operate(c.t.Context(), rng, fmt.Sprintf("%d-%d", i, k))
				c.made.Add(1)
			}
		})
	}
	go func() {
		all.Wait()
		c.t.Logf("%d operations, seed %d: %d runs, %d stops, %d refused", n, seed, len(c.runs), len(c.stops), c.refused.Load())
		close(done)
	}()
	return done
}

// request makes a request and reports whether it succeeded. Refusals that the operation
// documents, full queues and missing answers are counted; another error is a fault.
func request[Resp any](ctx context.Context, c *creator, m api.Message) (Resp, bool) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	v, err := bus.Call[Resp](ctx, c.w.bus, m)
	if err == nil {
		return v, true
	}
	switch api.CodeOf(err) {
	case api.NotFound, api.Conflict, api.Unavailable:
		c.refused.Add(1)
	default:
		c.t.Errorf("%T: %v", m, err)
	}
	return v, false
}

func (c *creator) operate(ctx context.Context, rng *rand.Rand, id string) {
	agent := operated[rng.IntN(len(operated))]
	switch p := rng.IntN(100); {
	case p < 75:
		c.send(ctx, rng, agent, id)
	case p < 80:
		if run, ok := c.recent(rng); ok {
			c.stop(stopped{what: "cancel", stops: func(a api.Accepted) bool { return a.Run == run.Run }}, func() bool {
				_, ok := request[api.RunState](ctx, c, api.CancelRun{Run: run.Run, Session: run.Session})
				return ok
			})
		}
	case p < 83:
		session := agent + "-main"
		if run, ok := c.recent(rng); ok {
			session = run.Session
		}
		c.stop(stopped{what: "terminate", stops: func(a api.Accepted) bool { return a.Session == session }}, func() bool {
			_, ok := request[api.Session](ctx, c, api.TerminateSession{Session: session, Reason: "operation " + id})
			return ok
		})
	case p < 85:
		if run, ok := c.recent(rng); ok {
			request[api.Session](ctx, c, api.ResetSession{Session: run.Session})
		}
	case p < 87:
		var slept api.Agent
		c.stop(stopped{what: "sleep", stops: func(a api.Accepted) bool { return a.Session == slept.Session }}, func() (ok bool) {
			slept, ok = request[api.Agent](ctx, c, api.SleepAgent{Agent: agent})
			return ok
		})
	case p < 91:
		goals, _ := request[api.Goals](ctx, c, api.ListGoals{Agent: agent, Status: api.GoalActive})
		for _, g := range goals.Goals {
			c.stop(stopped{what: "cancel goal", goals: func(o api.Goal) bool { return o.ID == g.ID }}, func() bool {
				_, ok := request[api.Goal](ctx, c, api.CancelGoal{Goal: g.ID})
				return ok
			})
		}
	case p < 95:
		until(ctx, 30*time.Second, func() bool { // a request without an answer may have taken effect
			_, ok := request[api.Posted](ctx, c, api.Deposit{ID: "op-" + id, Agent: agent, Amount: api.Dollar / 10, Source: "faucet"})
			return ok
		})
		c.mu.Lock()
		c.deposits += api.Dollar / 10
		c.mu.Unlock()
	default:
		s := stopped{
			what: "delete", stops: func(a api.Accepted) bool { return a.Agent == agent }, goals: func(g api.Goal) bool { return g.Agent == agent },
		}
		c.stop(s, func() bool {
			_, ok := request[api.Deleted](ctx, c, api.DeleteAgent{Agent: agent, Force: true, Forget: p >= 98})
			return ok
		})
		request[api.Agent](ctx, c, api.ApplyAgent{Source: "---\nname: " + agent + "\n---\nBe useful.\n"})
	}
}

func (c *creator) send(ctx context.Context, rng *rand.Rand, agent, id string) {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	to := pick(c.addresses...)
	m := api.SendMessage{Agent: agent, Content: pick("hello ", "think ", "think ", "work ", "remember ", "sleep ", "words ", "plan ", "tell "+to+" ", "give "+to+" ") + id}
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
			c.stops = append(c.stops, stopped{
				what: "interrupt", stops: func(o api.Accepted) bool { return o.Session == a.Session }, began: began, answered: time.Now().UnixMicro(),
			})
		}
		c.mu.Unlock()
		if rng.IntN(3) == 0 {
			c.await(ctx, a)
		}
	}
}

// await waits for the end of a run, at most for 5 s.
func (c *creator) await(ctx context.Context, a api.Accepted) {
	until(ctx, 5*time.Second, func() bool {
		st, ok := request[api.RunState](ctx, c, api.GetRun{Run: a.Run, Session: a.Session})
		return !ok || st.Status == api.RunEnded
	})
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

// stop makes an operation that stops runs or goals, and records it if it succeeded.
func (c *creator) stop(s stopped, operation func() bool) {
	s.began, s.begins = c.clock.Add(1), time.Now().UnixMicro()
	if !operation() {
		return
	}
	s.answered = time.Now().UnixMicro()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stops = append(c.stops, s)
}

func (c *creator) check() {
	t := c.t
	announced := map[string][]api.LoopEnd{}
	late := time.After(60 * time.Second)
	for _, r := range c.runs {
		for len(announced[r.Run]) == 0 {
			select {
			case e := <-c.ends:
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
			if st.Success && st.Outcome != api.OutcomeMerged && r.at < s.began && s.stops != nil && s.stops(r.Accepted) && st.EndedAt > s.answered {
				t.Errorf("run %s, accepted at %d, succeeded %d µs after the answer of %s, which began at %d: %+v", r.Run, r.at, st.EndedAt-s.answered, s.what, s.began, st)
			}
		}
	}
	for _, id := range operated {
		a := call[api.Agent](t, c.w, api.ApplyAgent{Source: "---\nname: " + id + "\n---\nBe useful.\n"})
		c.checkGoals(id)
		if end := send(t, c.w, id, "hello"); !end.Success {
			t.Errorf("%s does not answer at the end: %+v", id, end)
		}
		free(t, c.w, a)
	}
	// A wake or mail may start a run at any time, so these conditions hold sooner or later.
	var report api.LedgerReport
	if !until(t.Context(), 20*time.Second, func() bool {
		report = call[api.LedgerReport](t, c.w, api.VerifyLedger{})
		return report.OK && report.ActiveHolds == 0
	}) {
		t.Errorf("ledger: %+v", report)
	}
	var left, cost api.Micros
	if !until(t.Context(), 20*time.Second, func() bool { left, cost = c.sums(); return left == c.deposits-cost }) {
		t.Errorf("the accounts have %s, want %s: deposits of %s, costs of %s", left, c.deposits-cost, c.deposits, cost)
	}
	c.provider.mu.Lock()
	defer c.provider.mu.Unlock()
	if len(c.provider.all) > 0 {
		t.Errorf("the provider refused %d requests, the first with %q", len(c.provider.all), c.provider.all[0])
	}
	for run, all := range announced {
		if len(all) != 1 {
			t.Errorf("the end of run %s was announced %d times", run, len(all))
		}
	}
}

// checkGoals checks the goals of an agent, and cancels the active one.
func (c *creator) checkGoals(agent string) {
	for _, g := range c.goals(agent) {
		if g.Status == api.GoalActive {
			g = call[api.Goal](c.t, c.w, api.CancelGoal{Goal: g.ID})
		}
		for _, s := range c.stops {
			if s.goals != nil && s.goals(g) && g.Status == api.GoalCompleted && g.CreatedAt < s.begins && g.EndedAt > s.answered {
				c.t.Errorf("a goal was completed %d µs after the answer of %s: %+v", g.EndedAt-s.answered, s.what, g)
			}
		}
	}
}

// sums returns what the accounts have, and the costs of all runs and plans.
func (c *creator) sums() (left, cost api.Micros) {
	for _, id := range operated {
		b := call[api.Balance](c.t, c.w, api.GetBalance{Agent: id})
		left += b.Available + b.Held
		for after := ""; ; {
			page := call[api.Sessions](c.t, c.w, api.ListSessions{Agent: id, After: after})
			for _, s := range page.Sessions {
				if !strings.Contains(s.ID, "-task-") { // what a goal spent includes its tasks
					cost += s.Cost
				}
			}
			if after = page.Next; !page.More {
				break
			}
		}
		for _, g := range c.goals(id) {
			cost += g.Spent
		}
	}
	return left, cost
}

// goals returns the goals of an agent.
func (c *creator) goals(agent string) (all []api.Goal) {
	for after := ""; ; {
		page := call[api.Goals](c.t, c.w, api.ListGoals{Agent: agent, After: after})
		all = append(all, page.Goals...)
		if after = page.Next; !page.More {
			return all
		}
	}
}
