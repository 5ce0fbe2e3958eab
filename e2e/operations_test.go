package e2e

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
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
	names := []string{"loop", "loop2", "policy", "treasury", "heartbeat", "social"}
	launch := func(name string) {
		w.processes[name] = startService(t, strings.TrimSuffix(name, "2"), w.nats.ClientURL(), w.data, environment(t, env))
		w.processes[name].await(t)
	}
	launch("loop2")
	c := newCreator(t, w, refused)
	done, rng := c.operateAll(n, seed), rand.New(rand.NewPCG(seed, operators))
	defer func() { <-done }()
	for i := range kills {
		if !until(t.Context(), 10*time.Minute, func() bool { return c.made.Load() >= int64(n*(i+1)/(kills+1)) }) {
			t.Fatal("the operations do not continue")
		}
		name := names[rng.IntN(len(names))]
		w.processes[name].kill()
		launch(name)
	}
	<-done
	t.Logf("%d kills", kills)
	c.check()
}

// refusals are the errors of the requests that the provider has refused.
type refusals struct {
	mu  sync.Mutex
	all []*openaitest.Error
}

// operationsEnv returns the settings of the services for random operations. The simulated
// model is a provider over HTTP that refuses each request that the protocol does not allow.
func operationsEnv(t *testing.T) (map[string]string, *refusals) {
	t.Helper()
	var r refusals
	env := servedModel(t, "testdata/operations.json", func(e *openaitest.Error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, e)
	})
	env["ANIMA_LOOP_LEASE"] = "2s"
	return env, &r
}

// check checks the results of all operations, as [TestOperationsRandomly] describes.
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
		a := call[api.Agent](t, c.w, plain(id))
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
		t.Errorf("the provider refused %d requests, the first with %q", len(c.provider.all), c.provider.all[0].Message)
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
			if s.goals != nil && s.goals(g) && g.Status == api.GoalCompleted && g.CreatedAt < s.began && g.EndedAt > s.answered {
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
