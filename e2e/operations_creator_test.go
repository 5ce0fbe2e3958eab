package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// operators is the number of concurrent callers.
const operators = 6

// operated are the ids of the agents.
var operated = []string{"ada", "bob", "eve"}

// creator makes operations and records what must follow from them.
type creator struct {
	t       *testing.T
	w       *world
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
	at int64 // Unix microseconds, after the answer
}

// stopped is an operation that ends the runs that were accepted before it.
type stopped struct {
	what     string
	stops    func(api.Accepted) bool // nil: it stops none
	goals    func(api.Goal) bool     // nil: it stops none
	began    int64                   // Unix microseconds, before the request
	answered int64                   // Unix microseconds
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
		request[api.Agent](ctx, c, plain(agent))
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
	began := time.Now().UnixMicro()
	for range 1 + rng.IntN(2) { // a message with a key may be sent twice, one without is then two
		a, ok := request[api.Accepted](ctx, c, m)
		if !ok {
			return
		}
		c.mu.Lock()
		if !slices.ContainsFunc(c.runs, func(r accepted) bool { return r.Run == a.Run }) {
			c.runs = append(c.runs, accepted{a, time.Now().UnixMicro()})
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
	s.began = time.Now().UnixMicro()
	if !operation() {
		return
	}
	s.answered = time.Now().UnixMicro()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stops = append(c.stops, s)
}
