package loop_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/loop"
)

// peers implements the other services on the test's bus, as far as goals need them: a
// router with a scripted model, a policy that signs decisions, and services that accept
// every request.
type peers struct {
	key ed25519.PrivateKey

	mu     sync.Mutex
	action api.Action     // decision on plans
	paid   map[string]int // number of completions by call id
	prompt map[string]string
	gate   func(ctx context.Context, task string) // called before a task's model call is answered
	funds  func(ctx context.Context)              // called before a balance is answered
	thinks api.Micros                             // cost of each model call of a task that does not complete; 0: tasks complete

	schedules []api.SetSchedule // in the order in which they were stored
	// sets is called with a schedule and the function that stores it.
	sets func(ctx context.Context, m api.SetSchedule, store func())
}

// spent is the cost that treasury reports for a turn without an answer.
const spent api.Micros = 700

func newPeers(t *testing.T, b *bus.Bus) *peers {
	t.Helper()
	p := &peers{
		key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), action: api.Allow, paid: map[string]int{}, prompt: map[string]string{},
		gate: func(context.Context, string) {}, funds: func(context.Context) {}, sets: func(_ context.Context, _ api.SetSchedule, store func()) { store() },
	}
	loop.Serve(t, b,
		bus.Stream(p.complete), bus.Reply(p.evaluate), bus.Reply(p.listKeys), bus.Reply(p.approvePlan),
		bus.Reply(func(_ context.Context, m api.OpenAccount) (api.Account, error) {
			return api.Account{Agent: m.Agent, Address: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"}, nil
		}),
		bus.Reply(func(ctx context.Context, m api.GetBalance) (api.Balance, error) {
			p.mu.Lock()
			funds := p.funds
			p.mu.Unlock()
			funds(ctx)
			return api.Balance{Agent: m.Agent, Available: 9 * api.Dollar, Tier: api.TierHigh}, nil
		}),
		bus.Reply(p.getSpent),
		bus.Reply(func(context.Context, api.ListModels) (api.Models, error) {
			return api.Models{Models: []api.Model{{ID: "m", Provider: "p", ContextWindow: 128_000, MaxOutput: 4096, TierMinimum: api.TierCritical, Usable: true}}}, nil
		}),
		bus.Reply(func(ctx context.Context, m api.SetSchedule) (api.Schedule, error) {
			p.mu.Lock()
			sets := p.sets
			p.mu.Unlock()
			sets(ctx, m, func() { p.set(func() { p.schedules = append(p.schedules, m) }) })
			return api.Schedule{}, nil
		}),
		bus.Reply(func(_ context.Context, m api.SetAlarm) (api.Alarm, error) {
			return api.Alarm{Agent: m.Agent, At: m.At}, nil
		}),
		bus.Reply(func(context.Context, api.ClaimInbox) (api.Inbox, error) { return api.Inbox{}, nil }),
		bus.Reply(func(context.Context, api.SettleInbox) (api.InboxCount, error) { return api.InboxCount{}, nil }),
	)
	return p
}

var taskHead = regexp.MustCompile(`\[task (g[0-9a-f]+-\d+-\d+), attempt`)

// complete is the model: it plans A→B→C, completes tasks, and creates a goal if the
// message asks for one.
func (p *peers) complete(ctx context.Context, req api.Complete, _ func(api.Delta) error) (api.Completion, error) {
	c := api.Completion{Model: "m", Provider: "p", Finish: "stop", InputTokens: 10, OutputTokens: 5, Cost: 1000}
	messages := slices.Clone(req.Messages)
	for i, m := range messages { // without the notes that loop adds
		said, _, _ := strings.Cut(m.Content, api.NotesMark)
		messages[i].Content = strings.TrimSpace(said)
	}
	messages = slices.DeleteFunc(messages, func(m api.ChatMessage) bool { return m.Role == "user" && m.Content == "" })
	last := messages[len(messages)-1]
	call := func(name string, args any) {
		text, _ := json.Marshal(args)
		c.ToolCalls, c.Finish = []api.ToolCall{{ID: "call_0", Name: name, Arguments: string(text)}}, "tool_calls"
	}
	task := ""
	for _, m := range messages {
		if found := taskHead.FindStringSubmatch(m.Content); m.Role == "user" && found != nil {
			task = found[1]
		}
	}
	switch {
	case req.Task == api.TaskSummary:
		c.Text = `{"estimatedSteps": 6}`
	case req.Task == api.TaskPlanning:
		var tasks []string
		for i, title := range []string{"A", "B", "C"} {
			tasks = append(tasks, fmt.Sprintf(`{"title":%q,"description":"do %s","agentRole":"generalist","dependencies":%s,"estimatedCostCents":20,"priority":50,"timeoutMs":60000}`,
				title, title, []string{"[]", "[0]", "[1]"}[i]))
		}
		c.Text = `{"analysis":"a","strategy":"s","tasks":[` + strings.Join(tasks, ",") + `],"estimatedTotalCostCents":60,"estimatedTimeMinutes":1}`
	case task != "":
		p.mu.Lock()
		gate := p.gate
		p.mu.Unlock()
		gate(ctx, task)
		p.mu.Lock()
		thinks := p.thinks
		p.mu.Unlock()
		if thinks > 0 {
			c.Cost = thinks
			call("list_goals", map[string]string{})
			break
		}
		if last.Role == "tool" {
			c.Text = "done"
			break
		}
		call("complete_task", map[string]string{"task_id": task, "output": "result of " + task})
	case last.Role == "user" && strings.HasPrefix(last.Content, "begin "):
		call("create_goal", map[string]string{"title": strings.TrimPrefix(last.Content, "begin "), "description": "Do it in three parts."})
	default:
		c.Text = "ok"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paid[req.ID]++
	p.prompt[req.ID] = last.Content
	return c, ctx.Err()
}

// getSpent returns a cost for interrupted turns of runs, and none for calls about
// goals.
func (p *peers) getSpent(_ context.Context, m api.GetSpent) (api.Spent, error) {
	if strings.Contains(m.Turn, ".plan.") || strings.Contains(m.Turn, ".classify") {
		return api.Spent{}, nil
	}
	return api.Spent{Paid: spent}, nil
}

func (p *peers) evaluate(_ context.Context, m api.Evaluate) (api.Decision, error) {
	hash, err := api.ArgsHash(m.Args)
	if err != nil {
		return api.Decision{}, err
	}
	d := api.Decision{ID: "d-" + m.Turn, Agent: m.Agent, Turn: m.Turn, Index: m.Index, Tool: m.Tool, ArgsHash: hash, By: m.By, Action: api.Allow, Code: "ALLOWED"}
	d.Token, err = api.Grant{
		Decision: d.ID, Agent: m.Agent, Turn: m.Turn, Index: m.Index, Tool: m.Tool, ArgsHash: hash, By: m.By,
		Expires: time.Now().Add(time.Minute).UnixMicro(),
	}.Sign(p.key)
	return d, err
}

func (p *peers) listKeys(context.Context, api.ListKeys) (api.Keys, error) {
	public, _ := p.key.Public().(ed25519.PublicKey)
	return api.Keys{Keys: [][]byte{public}}, nil
}

func (p *peers) approvePlan(_ context.Context, m api.ApprovePlan) (api.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return api.Decision{ID: "p-" + m.Goal, Action: p.action, Code: "CODE", Message: "it is dear"}, nil
}

func (p *peers) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

const source = `---
name: Lucky
tools: [create_goal, list_goals, complete_task, sleep]
---
Be useful.
`

// alive starts the given number of replicas of loop, with one agent.
func alive(t *testing.T, replicas int) (*peers, *bus.Bus, []*apptest.World) {
	t.Helper()
	s, data := apptest.Server(t), t.TempDir()
	b, err := bus.New(apptest.Dial(t, s), bus.Options{Service: "peers", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := newPeers(t, b)
	var worlds []*apptest.World
	for range replicas {
		worlds = append(worlds, apptest.Start(t, apptest.Options{Server: s, Data: data, Env: map[string]string{"ANIMA_LOOP_LEASE": "2s"}}, loop.Service))
	}
	ask[api.Agent](t, b, api.ApplyAgent{Source: source})
	return p, b, worlds
}

func ask[Resp any](t *testing.T, b *bus.Bus, m api.Message) Resp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	v, err := bus.Call[Resp](ctx, b, m)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return v
}

// begin makes the agent create a goal and returns its id.
func begin(t *testing.T, b *bus.Bus, created <-chan api.GoalCreated, title string) string {
	t.Helper()
	ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "begin " + title})
	return apptest.Next(t, created, func(m api.GoalCreated) bool { return m.Title == title }).Goal
}

func inPhase(id string, phase api.GoalPhase) func(api.GoalChanged) bool {
	return func(m api.GoalChanged) bool { return m.Goal == id && m.Phase == phase }
}

// TestGoalWhileTheAgentSleeps tests that two replicas complete a goal of three tasks
// while its agent is sleeping.
func TestGoalWhileTheAgentSleeps(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 2)
	created, changed := apptest.Watch[api.GoalCreated](t, b), apptest.Watch[api.GoalChanged](t, b)
	states, ended := apptest.Watch[api.AgentChanged](t, b), apptest.Watch[api.LoopEnd](t, b)
	asleep := make(chan struct{})
	p.set(func() { p.gate = func(context.Context, string) { <-asleep } })
	id := begin(t, b, created, "A book")
	apptest.Next(t, states, func(m api.AgentChanged) bool { return m.State == api.StateSleeping && m.Previous == api.StateRunning })
	close(asleep)
	apptest.Next(t, changed, inPhase(id, api.PhaseComplete))

	g := ask[api.Goal](t, b, api.GetGoal{Goal: id})
	if g.Status != api.GoalCompleted || len(g.Plans) != 1 || g.Plans[0].Source != "planner" || g.Plans[0].Decision != "p-"+id || len(g.Tasks) != 3 {
		t.Fatalf("goal %+v", g)
	}
	// The last task is completed shortly before its run ends.
	apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == g.Tasks[2].Run })
	for i, x := range g.Tasks {
		if x.Status != api.TaskCompleted || x.Attempt != 1 || x.Result != "result of "+x.ID {
			t.Errorf("task %+v", x)
		}
		session := ask[api.Session](t, b, api.GetSession{Session: x.Session})
		if session.Agent != "lucky" || session.Messages != 1 {
			t.Errorf("session %+v", session)
		}
		p.mu.Lock()
		brief, paid := p.prompt[x.Run+".1"], p.paid[x.Run+".1"]
		p.mu.Unlock()
		if paid != 1 || i > 0 && !strings.Contains(brief, "> result of "+g.Tasks[i-1].ID) {
			t.Errorf("task %d was asked %d times:\n%s", i+1, paid, brief)
		}
	}
	a := ask[api.Agent](t, b, api.GetAgent{Agent: "lucky"})
	if a.State != api.StateSleeping {
		t.Errorf("the agent is %s", a.State)
	}
	select {
	case m := <-states:
		t.Errorf("a task woke the agent: %+v", m)
	default:
	}
	list := ask[api.Goals](t, b, api.ListGoals{Agent: "LUCKY", Status: api.GoalCompleted}).Goals
	if len(list) != 1 || list[0].ID != id || list[0].Tasks != nil {
		t.Errorf("list %+v", list)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for call, n := range p.paid {
		if n != 1 {
			t.Errorf("%s was paid %d times", call, n)
		}
	}
}

// TestCancelWhileRunning tests that a goal that is cancelled during a model call of a
// task ends at once with its run, and that the next goal completes.
func TestCancelWhileRunning(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 1)
	created, changed := apptest.Watch[api.GoalCreated](t, b), apptest.Watch[api.GoalChanged](t, b)
	ended := apptest.Watch[api.LoopEnd](t, b)
	thinking := make(chan string, 10)
	p.set(func() {
		p.gate = func(ctx context.Context, task string) {
			thinking <- task
			<-ctx.Done()
		}
	})
	first := begin(t, b, created, "A book")
	task := <-thinking
	g := ask[api.Goal](t, b, api.CancelGoal{Goal: first, Reason: "enough"})
	if g.Status != api.GoalCancelled || g.Reason != "enough" {
		t.Errorf("cancelled: %+v", g)
	}
	end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Session == "lucky-task-"+task })
	if end.Success || end.Cost != spent {
		t.Errorf("the run ended %+v, want no success and what the cut thought cost, %d", end, spent)
	}
	p.set(func() { p.gate = func(context.Context, string) {} })
	second := begin(t, b, created, "A house")
	apptest.Next(t, changed, inPhase(second, api.PhaseComplete))
	g = ask[api.Goal](t, b, api.CancelGoal{Goal: first})
	if g.Status != api.GoalCancelled || g.Reason != "enough" || slices.ContainsFunc(g.Tasks, func(x api.GoalTask) bool { return x.Status != api.TaskCancelled }) {
		t.Errorf("the first: %+v", g)
	}
}

// TestCostCap tests that a task whose run has cost one and a half times its estimate
// fails permanently, during its only run, and that a new plan replaces the plan
// (docs/reference/loop.md, ignored task cost).
func TestCostCap(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 1)
	created, changed := apptest.Watch[api.GoalCreated](t, b), apptest.Watch[api.GoalChanged](t, b)
	const thinks = 13 * api.Cent // of an estimate of 20 cents: the third model call reaches the cap
	p.set(func() { p.thinks = thinks })
	id := begin(t, b, created, "A book")
	apptest.Next(t, changed, inPhase(id, api.PhaseReplanning))
	p.set(func() { p.thinks = 0 })
	apptest.Next(t, changed, inPhase(id, api.PhaseComplete))

	g := ask[api.Goal](t, b, api.GetGoal{Goal: id})
	a := g.Tasks[0]
	if a.Status != api.TaskFailed || a.Attempt != 1 || a.Spent != 3*thinks || !strings.HasPrefix(a.Error, "COST_CAP: ") || g.Version != 2 {
		t.Fatalf("the task is %+v in version %d, want failed for %s", a, g.Version, 3*thinks)
	}
	st := ask[api.RunState](t, b, api.GetRun{Run: a.Run})
	if st.Success || st.Code != api.Denied || st.Reason != api.ReasonCostCap || st.Turns != 3 || st.Cost != 3*thinks {
		t.Errorf("its run is %+v, want ended by its cap after 3 turns", st)
	}
}

// TestPlanWaitsForTheCreator tests that a plan above the threshold waits for the
// creator's approval.
func TestPlanWaitsForTheCreator(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 1)
	created, changed := apptest.Watch[api.GoalCreated](t, b), apptest.Watch[api.GoalChanged](t, b)
	p.set(func() { p.action = api.Quarantine })
	id := begin(t, b, created, "A book")
	waits := apptest.Next(t, changed, func(m api.GoalChanged) bool { return m.Goal == id && m.Reason != "" })
	if waits.Phase != api.PhaseReview || waits.Reason != "it is dear" {
		t.Errorf("waits: %+v", waits)
	}
	ask[api.Goal](t, b, api.ReviewPlan{Goal: id, Version: 1, Approve: true})
	apptest.Next(t, changed, inPhase(id, api.PhaseComplete))
	if _, err := bus.Call[api.Goal](t.Context(), b, api.GetGoal{Goal: "none"}); api.CodeOf(err) != api.NotFound {
		t.Errorf("no such goal: %v", err)
	}
}

// TestReplicaLeaves tests that a goal completes without retries if a replica exits
// during a task.
func TestReplicaLeaves(t *testing.T) {
	t.Parallel()
	p, b, worlds := alive(t, 2)
	created, changed := apptest.Watch[api.GoalCreated](t, b), apptest.Watch[api.GoalChanged](t, b)
	var once sync.Once
	leave := make(chan struct{})
	p.set(func() { p.gate = func(context.Context, string) { once.Do(func() { close(leave) }) } })
	id := begin(t, b, created, "A book")
	<-leave
	worlds[0].Stop()
	apptest.Next(t, changed, inPhase(id, api.PhaseComplete))
	g := ask[api.Goal](t, b, api.GetGoal{Goal: id})
	for _, x := range g.Tasks {
		if x.Status != api.TaskCompleted || x.Retries != 0 {
			t.Errorf("task %+v", x)
		}
	}
}
