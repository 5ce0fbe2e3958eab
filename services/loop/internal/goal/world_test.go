package goal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// world simulates the environment of orchestrators on a real store: it delivers the
// messages of their outbox, as streams do, and implements the model, policy and the
// engine.
type world struct {
	*sqlstore.Store
	t  *testing.T
	db *sqldb.DB

	now       int64
	model     func(api.Complete) (api.Completion, error)
	action    api.Action                         // of policy
	work      func(api.Run) (goal.Outcome, bool) // outcome of a run; false: it does not end
	answers   map[string]api.Completion          // by id; each was paid once
	settled   map[string]bool                    // by id; the hold of the answer is settled
	decided   map[string]api.Decision
	outcomes  map[string]goal.Outcome // of runs that have ended
	cancelled map[string]string       // cancelled runs and the reasons
	seen      map[string]bool         // ids of published messages
	queue     []delivery
	counts    map[string]int // messages by subject
	before    func()         // called once, while a caller waits for a lease
	asked     int            // model calls, also those answered from the store
	stops     int            // calls of CancelRun
}

type delivery struct {
	name string
	data []byte
	try  int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := sqldbtest.SQLite(t, sqlstore.Migrations())
	w := &world{
		Store: sqlstore.New(db, "/data"), t: t, db: db, now: at, action: api.Allow,
		answers: map[string]api.Completion{}, settled: map[string]bool{}, decided: map[string]api.Decision{}, outcomes: map[string]goal.Outcome{},
		cancelled: map[string]string{}, seen: map[string]bool{}, counts: map[string]int{},
	}
	w.model = planner(draft("A", "B>0", "C>1"))
	w.work = func(cmd api.Run) (goal.Outcome, bool) {
		return goal.Outcome{Success: true, Response: "result of " + cmd.Cause, Turns: 1, MaxTurns: 25, Cost: 100}, true
	}
	def := agent.Definition{Name: "Ada", Tools: []string{"exec"}, Limits: agent.DefaultLimits(), Sandbox: agent.DefaultSandbox(), Body: "Be useful."}
	if _, err := w.Apply(t.Context(), def, "ada", "0xAD", "v1", at); err != nil {
		t.Fatal(err)
	}
	return w
}

// planner answers every request for a plan with a draft, and estimates 7 steps for goals.
func planner(d goal.Draft) func(api.Complete) (api.Completion, error) {
	return func(req api.Complete) (api.Completion, error) {
		if req.Task == api.TaskSummary {
			return api.Completion{Text: `Well: {"estimatedSteps": 7}`, Cost: 3}, nil
		}
		text, err := json.Marshal(d)
		return api.Completion{Text: "```json\n" + string(text) + "\n```", Cost: 40}, err
	}
}

// RunOutcome implements goal.Store for runs that no engine executes.
func (w *world) RunOutcome(_ context.Context, run string) (goal.Outcome, error) {
	if out, ok := w.outcomes[run]; ok {
		return out, nil
	}
	return goal.Outcome{}, api.Errorf(api.NotFound, "run %s has not ended", run)
}

// Complete implements engine.Router. A request with the same id is paid once.
func (w *world) Complete(_ context.Context, req api.Complete, _ func(api.Delta)) (api.Completion, error) {
	w.asked++
	if c, ok := w.answers[req.ID]; ok {
		return c, nil
	}
	c, err := w.model(req)
	if err == nil {
		w.answers[req.ID] = c
	}
	return c, err
}

func (w *world) Balance(_ context.Context, agent string) (api.Balance, error) {
	return api.Balance{Agent: agent, Available: api.Dollar, Tier: api.TierHigh}, nil
}

// Spent returns the cost of a model call. In the first result it is still held.
func (w *world) Spent(_ context.Context, _, question string) (api.Spent, error) {
	c, paid := w.answers[question]
	switch {
	case !paid:
		return api.Spent{}, nil
	case !w.settled[question]:
		w.settled[question] = true
		return api.Spent{Held: c.Cost}, nil
	}
	return api.Spent{Paid: c.Cost}, nil
}

func (w *world) ApprovePlan(_ context.Context, m api.ApprovePlan) (api.Decision, error) {
	key := fmt.Sprintf("%s.%d", m.Goal, m.Version)
	if _, ok := w.decided[key]; !ok {
		w.decided[key] = api.Decision{ID: "d-" + key, Action: w.action, Code: "CODE", Message: "because"}
	}
	return w.decided[key], nil
}

func (w *world) CancelRun(_ context.Context, c goal.Cancel) error {
	w.stops++
	w.cancelled[c.Run] = c.Reason
	return nil
}

func (w *world) With(ctx context.Context, _ string, f func(context.Context) error) error {
	if before := w.before; before != nil {
		w.before = nil
		before()
	}
	return f(ctx)
}

// gated is a world whose ports pass through a gate.
type gated struct {
	*world
	gate enginetest.Gate
}

func through[T any](ctx context.Context, g enginetest.Gate, port string, do func() (T, error)) (out T, err error) {
	err = g(ctx, port, func() (err error) { out, err = do(); return err })
	return out, err
}

func (g gated) Goal(ctx context.Context, id string) (goal.State, error) {
	return through(ctx, g.gate, "Goal", func() (goal.State, error) { return g.world.Goal(ctx, id) })
}

func (g gated) Goals(ctx context.Context, q goal.Query) ([]goal.State, error) {
	return through(ctx, g.gate, "Goals", func() ([]goal.State, error) { return g.world.Goals(ctx, q) })
}

func (g gated) ChangeGoal(ctx context.Context, id string, at int64, f func(*goal.State) error) (goal.State, error) {
	return through(ctx, g.gate, "ChangeGoal", func() (goal.State, error) { return g.world.ChangeGoal(ctx, id, at, f) })
}

func (g gated) GoalOfRun(ctx context.Context, run string) (string, error) {
	return through(ctx, g.gate, "GoalOfRun", func() (string, error) { return g.world.GoalOfRun(ctx, run) })
}

func (g gated) RunOutcome(ctx context.Context, run string) (goal.Outcome, error) {
	return through(ctx, g.gate, "RunOutcome", func() (goal.Outcome, error) { return g.world.RunOutcome(ctx, run) })
}

func (g gated) Complete(ctx context.Context, q engine.Question, delta func(api.Delta)) (api.Completion, engine.Settling, error) {
	c, err := through(ctx, g.gate, "Complete", func() (api.Completion, error) { return g.world.Complete(ctx, q.Complete, delta) })
	return c, engine.Settled{}, err
}

func (g gated) Confirm(context.Context, string, string) (*api.Funds, error) { return nil, nil }

func (g gated) Spent(ctx context.Context, agent, question string) (api.Spent, error) {
	return through(ctx, g.gate, "Spent", func() (api.Spent, error) { return g.world.Spent(ctx, agent, question) })
}

func (g gated) ApprovePlan(ctx context.Context, m api.ApprovePlan) (api.Decision, error) {
	return through(ctx, g.gate, "ApprovePlan", func() (api.Decision, error) { return g.world.ApprovePlan(ctx, m) })
}

func (g gated) CancelRun(ctx context.Context, c goal.Cancel) error {
	return g.gate(ctx, "CancelRun", func() error { return g.world.CancelRun(ctx, c) })
}

func (g gated) With(ctx context.Context, key string, f func(context.Context) error) error {
	return g.gate(ctx, "With", func() error { return g.world.With(ctx, key, f) })
}

// owner returns a new orchestrator whose ports pass through a gate.
func (w *world) owner(gate enginetest.Gate) *goal.Orchestrator {
	g := gated{w, gate}
	return &goal.Orchestrator{
		Store: g, Router: g, Treasury: g, Agent: w.Agent, ApprovePlan: g.ApprovePlan, CancelRun: g.CancelRun, Lease: g.With,
		Now: func() time.Time { return time.UnixMicro(w.now) }, Log: slog.New(slog.DiscardHandler), Wake: func() {},
	}
}

// relay moves the messages of the outbox to the queue, each id once.
func (w *world) relay() {
	type row struct{ id, subject, payload string }
	rows, err := sqldb.All(w.t.Context(), w.db, func(r sqldb.Scanner) (v row, err error) {
		return v, r.Scan(&v.id, &v.subject, &v.payload)
	}, `select id, subject, payload from outbox order by seq`)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(rows) == 0 {
		return
	}
	if _, err := w.db.ExecContext(w.t.Context(), `delete from outbox`); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		name := strings.Split(r.subject, ".")[3]
		if !w.seen[r.id] {
			w.seen[r.id] = true
			w.counts[name]++
			w.queue = append(w.queue, delivery{name: name, data: []byte(r.payload), try: 1})
		}
	}
}

// next delivers one message to its handler and returns false if there is none. After an
// error the message is appended to the queue again.
func (w *world) next(o *goal.Orchestrator) bool {
	w.relay()
	if len(w.queue) == 0 {
		return false
	}
	d := w.queue[0]
	w.queue = w.queue[1:]
	if err := w.handle(o, d); err != nil {
		if d.try++; d.try > 100 {
			w.t.Fatalf("%s %s fails for ever: %v", d.name, d.data, err)
		}
		w.queue = append(w.queue, d)
	}
	return true
}

func decode[T any](w *world, d delivery) T {
	var m T
	if err := api.Decode(d.data, &m); err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) handle(o *goal.Orchestrator, d delivery) error {
	ctx := w.t.Context()
	switch d.name {
	case "goal_created":
		return o.Step(ctx, decode[api.GoalCreated](w, d).Goal, d.try)
	case "goal_changed":
		return o.Step(ctx, decode[api.GoalChanged](w, d).Goal, d.try)
	case "task":
		m := decode[api.DoTask](w, d)
		return o.Start(ctx, m.Goal, m.Task, m.Attempt)
	case "loop_end":
		m := decode[api.LoopEnd](w, d)
		return o.Ended(ctx, m.Run, m.Session, goal.Outcome{Success: m.Success, Response: m.Response, Turns: m.Turns, Cost: m.Cost})
	case "run":
		w.execute(decode[api.Run](w, d))
	}
	return nil
}

// execute ends a run once, as the engine does.
func (w *world) execute(cmd api.Run) {
	out, ended := w.outcomes[cmd.Run]
	if !ended {
		if _, stopped := w.cancelled[cmd.Run]; stopped {
			out = goal.Outcome{Code: api.Denied, Reason: api.ReasonCancelled, Error: "cancelled"}
		} else if out, ended = w.work(cmd); !ended {
			return
		}
		w.outcomes[cmd.Run] = out
	}
	data, err := api.Encode(api.LoopEnd{Run: cmd.Run, Session: cmd.Session, Agent: cmd.Agent, Success: out.Success, Response: out.Response, Cost: out.Cost})
	if err != nil {
		w.t.Fatal(err)
	}
	w.queue = append(w.queue, delivery{name: "loop_end", data: data, try: 1})
}

// begin creates a goal by its tool.
func (w *world) begin(key string) string {
	w.t.Helper()
	out := w.tool("create_goal", engine.Call{Key: key, By: api.Principal{Kind: api.Creator}}, `{"title":"Goal `+key+`","description":"Do `+key+`"}`)
	if out.Blocked || !strings.Contains(out.Text, goal.NewID(key)) {
		w.t.Fatalf("create_goal: %+v", out)
	}
	return goal.NewID(key)
}

func (w *world) tool(name string, c engine.Call, args string) engine.Output {
	w.t.Helper()
	out, err := w.try(name, c, args)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return out
}

func (w *world) try(name string, c engine.Call, args string) (engine.Output, error) {
	w.t.Helper()
	c.Agent, c.Args, c.At = engine.Agent{ID: "ada"}, json.RawMessage(args), w.now
	for _, t := range goal.Tools(w.owner(enginetest.Open)) {
		if t.Name == name {
			if err := t.Check(c.Args); err != nil {
				return engine.Output{}, err
			}
			return t.Run(w.t.Context(), c)
		}
	}
	w.t.Fatalf("no tool %s", name)
	return engine.Output{}, nil
}

func (w *world) read(id string) goal.State {
	w.t.Helper()
	s, err := w.Goal(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// summary describes a goal without what differs between two goals of the same plan.
func summary(s goal.State) string {
	out := fmt.Sprintf("%s %s version %d replans %d spent %d\n", s.Status, s.Reason, s.Version, s.Replans, s.Spent())
	for _, t := range s.Tasks {
		out += fmt.Sprintf("%d.%d %s attempt %d retries %d %q %q\n", t.Version, t.Number, t.Status, t.Attempt, t.Retries,
			strings.ReplaceAll(t.Result, s.ID, "g"), t.Error)
	}
	return out
}

func (w *world) toTheEnd(o *goal.Orchestrator) {
	for w.next(o) {
	}
}

// TestLife executes a goal with tasks A→B→C to its completion while the agent sleeps.
func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.begin("k")
	w.toTheEnd(w.owner(enginetest.Open))
	s := w.read(id)
	want := `completed  version 1 replans 0 spent 343
1.1 completed attempt 1 retries 0 "result of g-1-1" ""
1.2 completed attempt 1 retries 0 "result of g-1-2" ""
1.3 completed attempt 1 retries 0 "result of g-1-3" ""
`
	if diff := cmp.Diff(want, summary(s)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantCounts := map[string]int{"agent_state": 1, "goal_created": 1, "goal_changed": 4, "task_changed": 11, "task": 3, "run": 3}
	if diff := cmp.Diff(wantCounts, w.counts); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if len(w.answers) != 2 || len(w.decided) != 1 || len(w.cancelled) != 0 {
		t.Errorf("%d answers, %d decisions, %d cancelled", len(w.answers), len(w.decided), len(w.cancelled))
	}
}

// eventful makes task B fail twice in the first plan, the second time permanently, so
// that the goal has a retry, a replan and a run to be cancelled.
func (w *world) eventful() {
	w.model = func(req api.Complete) (api.Completion, error) {
		if strings.HasSuffix(req.ID, ".plan.1") {
			return planner(draft("A", "B", "C"))(req)
		}
		return planner(draft("D", "E>0"))(req)
	}
	w.work = func(cmd api.Run) (goal.Outcome, bool) {
		switch {
		case strings.HasSuffix(cmd.Cause, "-1-2") && strings.Contains(cmd.Content, "attempt 1]"):
			return goal.Outcome{Code: api.Internal, Error: "broken", Cost: 10}, true
		case strings.HasSuffix(cmd.Cause, "-1-2"):
			return goal.Outcome{Code: api.Invalid, Error: "hopeless", Cost: 10}, true
		case strings.HasSuffix(cmd.Cause, "-1-3"):
			return goal.Outcome{}, false // it runs until it is cancelled
		}
		return goal.Outcome{Success: true, Response: "r", Cost: 100}, true
	}
}

// TestCrash checks that after a crash before or after each call of a port another owner
// continues the goal to the same end, with every model call paid once and every attempt
// made once (docs/reference/goals.md, crash of an owner).
func TestCrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.eventful()
	life := func(key string, gate enginetest.Gate) (string, map[string]int) {
		clear(w.counts)
		id := w.begin(key)
		o := w.owner(gate)
		for w.next(o) {
		}
		s := w.read(id)
		for _, a := range s.Attempts {
			if _, stopped := w.cancelled[a.Run]; stopped != (a.EndedAt == 0) {
				t.Errorf("run of %s: stopped %t, ended at %d", a.Task, stopped, a.EndedAt)
			}
		}
		return summary(s), maps.Clone(w.counts)
	}
	var calm enginetest.Crash
	want, wantCounts := life("calm", calm.Gate)
	if !strings.HasPrefix(want, "completed  version 2 replans 1") || len(w.cancelled) != 1 {
		t.Fatalf("without a crash: %s, %d stopped", want, len(w.cancelled))
	}
	t.Logf("%d points to crash at", len(calm.Ports))
	delete(wantCounts, "agent_state")
	for n := 1; n <= len(calm.Ports); n++ {
		for _, after := range []bool{false, true} {
			// After the crash another replica continues; its ports do not fail.
			crash := &enginetest.Crash{At: calm.Point(n), After: after}
			got, counts := life(fmt.Sprintf("x%d-%t", n, after), func(ctx context.Context, port string, do func() error) error {
				if crash.Dead() {
					crash = &enginetest.Crash{}
				}
				return crash.Gate(ctx, port, do)
			})
			where := fmt.Sprintf("crash at %s (%d), after=%t", calm.Ports[n-1], n, after)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", where, diff)
			}
			if diff := cmp.Diff(wantCounts, counts); diff != "" {
				t.Errorf("%s: messages (-want +got):\n%s", where, diff)
			}
		}
	}
}

// TestDuplicatesAndDisorder checks that duplicate, late and reordered messages do not
// change the outcome.
func TestDuplicatesAndDisorder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.eventful()
	o := w.owner(enginetest.Open)
	w.begin("calm")
	w.toTheEnd(o)
	want := summary(w.read(goal.NewID("calm")))
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		key := fmt.Sprint("seed", seed)
		id := w.begin(key)
		var past []delivery
		for {
			w.relay()
			if len(w.queue) == 0 {
				break
			}
			r.Shuffle(len(w.queue), func(i, j int) { w.queue[i], w.queue[j] = w.queue[j], w.queue[i] })
			past = append(past, w.queue[0])
			w.next(o)
			again := past[r.IntN(len(past))]
			if err := w.handle(o, again); err != nil {
				t.Fatalf("seed %d: %s again: %v", seed, again.name, err)
			}
		}
		for _, d := range past {
			if err := w.handle(o, d); err != nil {
				t.Fatalf("seed %d: %s at the end: %v", seed, d.name, err)
			}
		}
		w.toTheEnd(o)
		s := w.read(id)
		// The number of the first plan's other tasks that are completed depends on the
		// order.
		if s.Status != api.GoalCompleted || s.Version != 2 || s.Replans != 1 {
			t.Errorf("seed %d: %s\nwant like %s", seed, summary(s), want)
		}
		for _, x := range s.Tasks {
			if x.Version == 2 && x.Attempt != 1 {
				t.Errorf("seed %d: %d attempts at %s", seed, x.Attempt, x.ID)
			}
		}
	}
}

// TestCancelAnywhere checks that a goal that is cancelled after any of its messages ends
// at once, the next goal begins and is completed, and all runs of the first end
// (docs/reference/goals.md, cancellation at any time).
func TestCancelAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.eventful()
	o := w.owner(enginetest.Open)
	phases := map[api.GoalPhase]bool{}
	for n := 0; ; n++ {
		key := fmt.Sprint("first", n)
		id := w.begin(key)
		going := true
		for range n {
			if going = w.next(o); !going {
				break
			}
		}
		if !going {
			if len(phases) < 5 {
				t.Errorf("cancelled in %v only", phases)
			}
			return
		}
		phase := w.read(id)
		phases[phase.Phase()] = true
		out := w.tool("cancel_goal", engine.Call{}, `{"goal_id":"GOAL `+key+`","reason":"enough"}`)
		over := phase.Status != api.GoalActive
		if !over && !strings.Contains(out.Text, "cancelled") {
			t.Errorf("cancel_goal: %s", out.Text)
		}
		next := w.begin(fmt.Sprint("next", n))
		w.toTheEnd(o)
		first, second := w.read(id), w.read(next)
		if !over && (first.Status != api.GoalCancelled || first.Reason != "enough") || second.Status != api.GoalCompleted {
			t.Fatalf("cancelled in %s after %d messages: the first is %s, the next %s", phase.Phase(), n, summary(first), summary(second))
		}
		for _, a := range first.Attempts {
			if _, stopped := w.cancelled[a.Run]; a.EndedAt == 0 && !stopped {
				t.Errorf("cancelled in %s after %d messages: run of %s goes on", phase.Phase(), n, a.Task)
			}
		}
	}
}

// TestCancelledWhileAsking checks that a goal which is cancelled during a model call has
// the cost of the call, once, also if the caller crashed before it had the answer.
func TestCancelledWhileAsking(t *testing.T) {
	t.Parallel()
	for _, question := range []string{".classify", ".plan.1", ".plan.2"} {
		for _, heard := range []bool{true, false} {
			w := newWorld(t)
			w.eventful()
			o := w.owner(enginetest.Open)
			id := w.begin("k")
			model := w.model
			w.model = func(req api.Complete) (api.Completion, error) {
				c, err := model(req)
				if req.ID != id+question {
					return c, err
				}
				if _, err := o.Cancel(t.Context(), id, "enough"); err != nil {
					t.Error(err)
				}
				if !heard {
					w.answers[req.ID] = c
					return api.Completion{}, api.Errorf(api.Unavailable, "the one who asked is dead")
				}
				return c, err
			}
			w.toTheEnd(o)
			if err := o.Step(t.Context(), id, 1); err != nil { // as after a redelivery
				t.Error(err)
			}
			s := w.read(id)
			want := api.Micros(0)
			for _, c := range w.answers {
				want += c.Cost
			}
			if s.Status != api.GoalCancelled || s.Overhead != want {
				t.Errorf("%s, received %t: %s for %s, want cancelled for %s", question, heard, s.Status, s.Overhead, want)
			}
			if question == ".plan.2" && (len(s.Plans) != 2 || s.Plans[1].Status != api.PlanRejected || s.Replans != 1) {
				t.Errorf("received %t: %d replans, and the plans are %+v, want the second one rejected", heard, s.Replans, s.Plans)
			}
		}
	}
}

// TestDeadWorkers checks that runs without an end are replaced at most three times, then
// the task fails with the reason (docs/reference/goals.md, run without an end). The same
// happens with every plan, and the goal fails.
func TestDeadWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model = planner(draft("A"))
	w.work = func(api.Run) (goal.Outcome, bool) { return goal.Outcome{}, false }
	id := w.begin("k")
	o := w.owner(enginetest.Open)
	rounds := 0
	for w.read(id).Status == api.GoalActive {
		w.toTheEnd(o)
		w.now += 1_000_001 // more than the tasks' timeout of 1 s
		if err := o.Expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rounds++; rounds > 50 {
			t.Fatal("the goal does not end")
		}
	}
	w.toTheEnd(o)
	s := w.read(id)
	if len(s.Attempts) != 16 || len(w.cancelled) != 16 || w.stops != 16 || s.Status != api.GoalFailed || !strings.Contains(s.Reason, "A: TIMEOUT: no result within 1 s") {
		t.Errorf("%d attempts, %d stopped: %s", len(s.Attempts), len(w.cancelled), summary(s))
	}
	// A late end of an expired run changes only the cost.
	before := summary(s)
	for _, a := range s.Attempts {
		w.outcomes[a.Run] = goal.Outcome{Success: true, Response: "late", Cost: 5}
		if err := o.Ended(t.Context(), a.Run, "ada-task-x", goal.Outcome{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := summary(w.read(id)); strings.Replace(got, "spent 243", "spent 163", 1) != before {
		t.Errorf("got %s\nwant %s with 80 more spent", got, before)
	}
}

// TestWithoutAModel checks that errors of the model do not end a goal: the call is
// retried, and then the goal continues without its answer.
func TestWithoutAModel(t *testing.T) {
	t.Parallel()
	passing := &api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: "down"}
	for name, tt := range map[string]struct {
		words int
		fail  func(try int) (string, error)
		want  string
	}{
		"down for a moment":     {3, func(try int) (string, error) { return "", map[bool]error{true: passing}[try <= 3] }, "completed fallback"},
		"down":                  {50, func(int) (string, error) { return "", passing }, "completed fallback"},
		"down, and a small job": {3, func(int) (string, error) { return "", passing }, "completed single"},
		"no money":              {50, func(int) (string, error) { return "", &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient} }, "completed fallback"},
		"no model":              {50, func(int) (string, error) { return "", &api.Error{Code: api.Unavailable, Reason: api.ReasonNoModel} }, "completed fallback"},
		"nonsense":              {50, func(int) (string, error) { return "I cannot", nil }, "completed fallback"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tries := map[string]int{}
			w.model = func(req api.Complete) (api.Completion, error) {
				tries[req.ID]++
				text, err := tt.fail(tries[req.ID])
				if err == nil && text == "" && req.Task == api.TaskSummary {
					text = `{"estimatedSteps": 12}`
				}
				return api.Completion{Text: text}, err
			}
			o := w.owner(enginetest.Open)
			w.tool("create_goal", engine.Call{Key: "k", By: api.Principal{Kind: api.Self}},
				`{"title":"t","description":"`+strings.TrimSpace(strings.Repeat("word ", tt.words))+`"}`)
			w.toTheEnd(o)
			s := w.read(goal.NewID("k"))
			if got := string(s.Status) + " " + s.Plans[0].Source; got != tt.want {
				t.Errorf("got %s, want %s: %s", got, tt.want, summary(s))
			}
			for id, n := range tries {
				if n > 8 {
					t.Errorf("%s was asked %d times", id, n)
				}
			}
		})
	}
}

// TestGoalOfADeletedAgent checks that a goal that the deletion of its agent left active fails.
func TestGoalOfADeletedAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tool("create_goal", engine.Call{Key: "k", By: api.Principal{Kind: api.Self}}, `{"title":"t","description":"`+strings.Repeat("word ", 50)+`"}`) // it needs a plan
	if _, err := w.Delete(t.Context(), "ada", "enough", false, w.now); err != nil {
		t.Fatal(err)
	}
	w.toTheEnd(w.owner(enginetest.Open))
	if s := w.read(goal.NewID("k")); s.Status != api.GoalFailed {
		t.Errorf("the goal is %s, want failed: %s", s.Status, summary(s))
	}
}

// TestLeaseThenNothing checks that a caller which waited for the lease finds the step
// completed and makes no model call.
func TestLeaseThenNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.owner(enginetest.Open)
	id := w.begin("k")
	for _, step := range []string{"classifying", "planning"} {
		asked := w.asked
		w.before = func() {
			if err := o.Step(t.Context(), id, 1); err != nil {
				t.Error(err)
			}
		}
		if err := o.Step(t.Context(), id, 1); err != nil {
			t.Error(err)
		}
		if w.asked != asked+1 {
			t.Errorf("%s: the model was asked %d times", step, w.asked-asked)
		}
	}
	if s := w.read(id); s.Phase() != api.PhaseReview || s.Version != 1 {
		t.Errorf("%s, version %d", s.Phase(), s.Version)
	}
}

// TestReview checks that a plan above the threshold waits until the creator approves or
// rejects it.
func TestReview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.action = api.Quarantine
	o := w.owner(enginetest.Open)
	id := w.begin("k")
	w.toTheEnd(o)
	s := w.read(id)
	if s.Phase() != api.PhaseReview || s.Reason != "because" || len(s.Tasks) != 0 {
		t.Fatalf("%s: %s", s.Phase(), summary(s))
	}
	if out := w.tool("orchestrator_status", engine.Call{}, `{}`); !strings.Contains(out.Text, "plan_review") || !strings.Contains(out.Text, "because") {
		t.Errorf("status: %s", out.Text)
	}
	refused := func(version int) {
		t.Helper()
		if _, err := o.Review(t.Context(), id, version, true, ""); api.CodeOf(err) != api.Conflict {
			t.Errorf("version %d: %v, want conflict", version, err)
		}
	}
	refused(2)
	for range 2 { // the bus repeats a request without an answer
		if s, err := o.Review(t.Context(), id, 1, false, "cheaper"); err != nil || len(s.Plans) != 1 || s.Plans[0].Status != api.PlanRejected {
			t.Fatalf("the rejection: %s, %v", summary(s), err)
		}
	}
	var prompt string
	plan := w.model
	w.model = func(req api.Complete) (api.Completion, error) { prompt = req.Messages[1].Content; return plan(req) }
	w.toTheEnd(o)
	if s = w.read(id); s.Version != 2 || s.Phase() != api.PhaseReview || !strings.Contains(prompt, "> cheaper") {
		t.Errorf("after the rejection: %s of version %d; asked:\n%s", s.Phase(), s.Version, prompt)
	}
	refused(1)
	for range 2 {
		if s, err := o.Review(t.Context(), id, 2, true, ""); err != nil || s.Phase() != api.PhaseExecuting || len(s.Tasks) != len(w.read(id).Tasks) {
			t.Fatalf("the approval: %s, %v", summary(s), err)
		}
	}
	tasks := len(w.read(id).Tasks)
	if _, err := o.Review(t.Context(), id, 2, false, "too late"); api.CodeOf(err) != api.Conflict {
		t.Errorf("a rejection after the approval: %v, want conflict", err)
	}
	if _, err := o.Review(t.Context(), id, 1, false, "another reason"); api.CodeOf(err) != api.Conflict {
		t.Errorf("another rejection: %v, want conflict", err)
	}
	w.toTheEnd(o)
	if s = w.read(id); s.Status != api.GoalCompleted || len(s.Tasks) != tasks {
		t.Errorf("after the approval: %s", summary(s))
	}
	w.action = api.Deny
	denied := w.begin("k2")
	w.toTheEnd(o)
	if s = w.read(denied); s.Status != api.GoalFailed || !strings.Contains(s.Reason, "because") {
		t.Errorf("denied: %s", summary(s))
	}
}

// TestPlanAfterARejectedOne checks that the planner reads which tasks of all earlier plans
// are completed, and the plan that the creator has rejected.
func TestPlanAfterARejectedOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model = planner(draft("Alpha", "Beta>0"))
	work := w.work
	w.work = func(cmd api.Run) (goal.Outcome, bool) {
		if strings.HasSuffix(cmd.Cause, "-1-2") {
			w.model, w.action = planner(draft("Gamma")), api.Quarantine
			return goal.Outcome{Code: api.Invalid, Reason: "broken", Error: "it broke", Turns: 1, MaxTurns: 25, Cost: 100}, true
		}
		return work(cmd)
	}
	o := w.owner(enginetest.Open)
	id := w.begin("k")
	w.toTheEnd(o)
	if s := w.read(id); s.Phase() != api.PhaseReview || s.Version != 2 {
		t.Fatalf("%s of version %d, want the second plan to wait", s.Phase(), s.Version)
	}
	if _, err := o.Review(t.Context(), id, 2, false, "cheaper"); err != nil {
		t.Fatal(err)
	}
	var prompt string
	plan := w.model
	w.model = func(req api.Complete) (api.Completion, error) { prompt = req.Messages[1].Content; return plan(req) }
	w.toTheEnd(o)
	for _, want := range []string{`"Alpha": completed`, "result of " + id + "-1-1", "> cheaper", `not begun "Gamma"`} {
		if !strings.Contains(prompt, want) {
			t.Errorf("the request for the third plan lacks %q:\n%s", want, prompt)
		}
	}
}

// TestResultOf checks the result of a task by the outcome of its run
// (docs/reference/goals.md, unguarded worker).
func TestResultOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o     goal.Outcome
		code  string
		retry bool
	}{
		{goal.Outcome{Success: true, Response: "r", Turns: 25, MaxTurns: 25}, "", false},
		{goal.Outcome{Success: true, Response: "so far", Turns: 25, MaxTurns: 25, Calls: true}, "MAX_TURNS", true},
		{goal.Outcome{Success: true, Response: "I sleep", Turns: 2, MaxTurns: 25, Calls: true}, "NO_RESULT", true},
		{goal.Outcome{Success: true, Turns: 2, MaxTurns: 25}, "NO_RESULT", true},
		{goal.Outcome{Code: api.Internal, Error: "x"}, "RUN_FAILED", true},
		{goal.Outcome{Code: api.Unavailable, Reason: api.ReasonNoModel}, "NO_MODEL", true},
		{goal.Outcome{Code: api.Denied, Reason: api.ReasonInsufficient}, "INSUFFICIENT_FUNDS", false},
		{goal.Outcome{Code: api.Denied, Reason: api.ReasonExpired}, "EXPIRED", true},
		{goal.Outcome{Code: api.Denied, Error: "the run took longer than its 600 s"}, "RUN_FAILED", true},
		{goal.Outcome{Code: api.Denied, Reason: api.ReasonLimit}, "LIMIT_REACHED", false},
		{goal.Outcome{Code: api.Denied, Reason: api.ReasonCostCap}, "COST_CAP", false},
		{goal.Outcome{Code: api.Denied, Reason: api.ReasonCancelled}, "CANCELLED", false},
		{goal.Outcome{Code: api.Invalid, Reason: api.ReasonTooLong}, "CONTEXT_TOO_LONG", false},
	} {
		result, code, _, retry := goal.ResultOf(tt.o)
		if code != tt.code || retry != tt.retry || (result != "") != (tt.code == "") {
			t.Errorf("%+v: %q, %s, retry %t; want %s, retry %t", tt.o, result, code, retry, tt.code, tt.retry)
		}
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.owner(enginetest.Open)
	says := func(name, args, want string) engine.Output {
		t.Helper()
		out := w.tool(name, engine.Call{Key: name + args, By: api.Principal{Kind: api.Self}}, args)
		if !strings.Contains(out.Text, want) {
			t.Errorf("%s %s: %s, want %q", name, args, out.Text, want)
		}
		return out
	}
	says("list_goals", `{}`, "no goals")
	says("orchestrator_status", `{}`, "No goal is active")
	book := `{"title":"A book","description":"Write it."}`
	says("create_goal", book, "was created")
	if out := says("create_goal", book, "was created"); out.Blocked { // the same call again
		t.Error("the same call again is blocked")
	}
	if out := says("create_goal", `{"title":"a book","description":"Other."}`, "Duplicate rejected"); out.Blocked {
		t.Error("a duplicate is blocked")
	}
	if out := says("create_goal", `{"title":"A house","description":"Build it."}`, "BLOCKED"); !out.Blocked {
		t.Error("the engine does not see that it is blocked")
	}
	says("get_plan", `{"goal_id":"A book"}`, "no plan yet")

	// The tool completes a task; the end of its run adds the cost.
	var held string
	w.work = func(cmd api.Run) (goal.Outcome, bool) {
		held = cmd.Run
		if cmd.Cause == goal.NewID("create_goal"+book)+"-1-2" {
			return goal.Outcome{}, false
		}
		args := `{"task_id":"` + cmd.Cause + `","output":"forty-two","artifacts":"a.txt"}`
		for range 2 {
			out := w.tool("complete_task", engine.Call{Turn: cmd.Run + ".3"}, args)
			if !out.Ends {
				t.Errorf("complete_task: %+v", out)
			}
		}
		return goal.Outcome{Success: true, Response: "bye", Calls: true, Turns: 3, MaxTurns: 25, Cost: 9}, true
	}
	w.toTheEnd(o)
	s := w.read(goal.NewID("create_goal" + book))
	if a := s.Tasks[0]; a.Status != api.TaskCompleted || a.Result != "forty-two" || a.Artifacts != "a.txt" || s.Spent() != 52 {
		t.Errorf("completed by the tool: %s", summary(s))
	}
	says("get_plan", `{"goal_id":"`+s.ID+`"}`, "forty-two")
	says("orchestrator_status", `{}`, "1 of 3 tasks completed, 1 running, 1 blocked")
	says("list_goals", `{}`, `"A book": executing`)

	for name, tt := range map[string]struct{ turn, args, want string }{
		"no task's run":  {"other.1", `{"task_id":"A","output":"x"}`, "works on no task"},
		"another's task": {held + ".1", `{"task_id":"` + s.Tasks[0].ID + `","output":"x"}`, "works on task " + s.Tasks[1].ID},
	} {
		if out, err := w.try("complete_task", engine.Call{Turn: tt.turn}, tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if _, err := w.try("complete_task", engine.Call{Turn: held + ".1"}, `{"task_id":"B"}`); err == nil {
		t.Error("a task without an output is taken")
	}
	if _, err := w.try("cancel_goal", engine.Call{}, `{"goal_id":"None"}`); api.CodeOf(err) != api.NotFound {
		t.Errorf("cancel of no goal: %v", err)
	}
	says("cancel_goal", `{"goal_id":"a BOOK","reason":"enough"}`, "cancelled")
	says("cancel_goal", `{"goal_id":"`+s.ID+`"}`, "enough")
	if out := w.tool("complete_task", engine.Call{Turn: held + ".1"}, `{"task_id":"B","output":"x"}`); !out.Ends || !strings.Contains(out.Text, "Nobody waits") {
		t.Errorf("a result of a cancelled goal: %+v", out)
	}
	if out, err := w.try("create_goal", engine.Call{Key: "long"}, `{"title":"t","description":"`+strings.Repeat("x", 40_000)+`"}`); err == nil {
		t.Errorf("a description of 40,000 bytes: %+v", out)
	}
	names := []string{}
	for _, x := range goal.Tools(o) {
		names = append(names, x.Name)
	}
	if want := []string{"create_goal", "list_goals", "cancel_goal", "get_plan", "complete_task", "orchestrator_status"}; !slices.Equal(names, want) {
		t.Errorf("tools %v", names)
	}
}
