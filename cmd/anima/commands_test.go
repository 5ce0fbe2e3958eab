package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/loop"
)

// until repeats ask until its answer is wanted, because the answer depends on an event
// that is processed asynchronously.
func until[T any](t testing.TB, ask func() T, wanted func(T) bool) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		v := ask()
		if wanted(v) {
			return v
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the last answer was %+v", v)
		case <-tick.C:
		}
	}
}

func TestGoalCommands(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	u.born("Nova")
	u.cli("session", "send", "nova", "plan something dear")
	waits := func(version int) api.Goal {
		t.Helper()
		id := asked[api.Goals](u.machine, "goal", "list", "nova", "--status", "active").Goals[0].ID
		return until(t, func() api.Goal { return asked[api.Goal](u.machine, "goal", "show", id) }, func(g api.Goal) bool { return waiting(g) == version })
	}
	g := waits(1)
	if out := u.cli("goal", "list", "NOVA"); !strings.Contains(out, g.ID) || !strings.Contains(out, "plan_review") {
		t.Errorf("goal list says\n%s", out)
	}
	if out := u.cli("goal", "show", g.ID); !strings.Contains(out, "anima goal approve "+g.ID) || !strings.Contains(out, "$60.00") {
		t.Errorf("goal show says\n%s", out)
	}
	if out := u.cli("goal", "reject", g.ID, "half", "the price"); !strings.Contains(out, "plan 1 of "+g.ID+" is rejected") {
		t.Errorf("goal reject says %q", out)
	}
	g = waits(2)
	if p := g.Plans[0]; p.Status != api.PlanRejected || p.Feedback != "half the price" {
		t.Errorf("the first plan is %+v, want it rejected with the feedback", p)
	}
	u.fails(exitConflict, "", []string{"goal", "approve", g.ID, "--version", "1"}, "anima goal show "+g.ID)
	if v := asked[api.Goal](u.machine, "goal", "approve", g.ID); v.Plans[1].Status != api.PlanApproved {
		t.Errorf("approved: %+v", v.Plans)
	}
	until(t, func() api.Goal { return asked[api.Goal](u.machine, "goal", "show", g.ID) }, func(g api.Goal) bool { return g.Status == api.GoalCompleted })
	u.fails(exitConflict, "", []string{"goal", "approve", g.ID}, "no plan", "anima goal show "+g.ID)

	// The same over HTTP; then the goal is cancelled.
	u.cli("session", "send", "nova", "plan something dear", "--session", "new")
	next := waits(1)
	var goals api.Goals
	one(t, u.call(http.MethodGet, "/v1/goals?agent=nova&limit=1", "", nil), &goals)
	if len(goals.Goals) != 1 || goals.Goals[0].ID != next.ID || !goals.More || goals.Next == "" {
		t.Fatalf("the first page is %+v, want %s and how to go on", goals, next.ID)
	}
	var rest api.Goals
	one(t, u.call(http.MethodGet, "/v1/goals?agent=nova&limit=1&after="+goals.Next, "", nil), &rest)
	if len(rest.Goals) != 1 || rest.Goals[0].ID != g.ID || rest.More {
		t.Errorf("the second page is %+v, want %s alone", rest, g.ID)
	}
	if out := u.cli("goal", "list", "--limit", "1"); !strings.Contains(out, "… more: --after "+goals.Next) {
		t.Errorf("a list that is cut says\n%s", out)
	}
	if res := u.try(http.MethodPost, "/v1/goals/"+next.ID+"/review", `{"version":1}`, nil); res.status != http.StatusBadRequest {
		t.Errorf("a review without a word: %d %s", res.status, res.body)
	}
	var reviewed api.Goal
	one(t, u.call(http.MethodPost, "/v1/goals/"+next.ID+"/review", `{"version":1,"approve":false,"feedback":"no"}`, nil), &reviewed)
	if reviewed.Plans[0].Status != api.PlanRejected {
		t.Errorf("reviewed: %+v", reviewed.Plans)
	}
	var gone api.Goal
	one(t, u.call(http.MethodDelete, "/v1/goals/"+next.ID+"?reason=enough", "", nil), &gone)
	if gone.Status != api.GoalCancelled {
		t.Errorf("cancelled: %+v", gone)
	}
	if out := u.cli("goal", "cancel", next.ID); !strings.Contains(out, "cancelled") {
		t.Errorf("cancelled again: %s", out)
	}
	u.fails(exitNotFound, "", []string{"goal", "show", "ghost"}, "anima goal list")
	u.fails(exitUsage, "", []string{"goal", "list", "--after", "x"}, "not a position")
	u.fails(exitUsage, "", []string{"goal", "list", "--limit", "1001"}, "1 to 1000")
}

func TestMemoryCommands(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	u.cli("session", "send", "lucky", "remember the price")
	find := func() api.Memories { return asked[api.Memories](u.machine, "memory", "search", "lucky", "loaf") }
	found := until(t, find, func(v api.Memories) bool {
		return slices.ContainsFunc(v.Memories, func(m api.Memory) bool { return m.ID == "financial/price" })
	})
	if out := u.cli("memory", "list", "lucky", "--tier", "semantic"); !strings.Contains(out, "financial/price") || len(found.Memories) == 0 {
		t.Errorf("memory list says\n%s", out)
	}
	u.cli("memory", "forget", "lucky", "semantic", "financial/price")
	u.fails(exitNotFound, "", []string{"memory", "forget", "lucky", "semantic", "financial/price"}, "anima memory list lucky")
	if v := asked[api.Memories](u.machine, "memory", "list", "lucky", "--history"); len(v.Memories) != 1 || v.Memories[0].Outcome != "forgotten" {
		t.Errorf("the history is %+v, want what was forgotten", v)
	}
	u.cli("session", "send", "lucky", "remember the price")
	var gone api.Forgotten
	one(t, u.call(http.MethodDelete, "/v1/agents/lucky/memories/semantic/financial/price", "", nil), &gone)
	if !gone.There || gone.ID != "financial/price" {
		t.Errorf("forgotten over HTTP: %+v", gone)
	}
	until(t, func() (all api.Memories) { // the memories of runs are ingested asynchronously
		one(t, u.call(http.MethodGet, "/v1/agents/lucky/memories?limit=1", "", nil), &all)
		return all
	}, func(v api.Memories) bool { return len(v.Memories) > 0 })
	u.fails(exitNotFound, "", []string{"memory", "list", "ghost"}, "anima agent list")

	soul := until(t, func() api.Souls { return asked[api.Souls](u.machine, "soul", "history", "lucky") }, func(v api.Souls) bool { return len(v.Souls) > 0 })
	if out := u.cli("soul", "show", "lucky"); !strings.Contains(out, "soul/v1") {
		t.Errorf("soul show says\n%s", out)
	}
	if v := asked[api.SoulVersion](u.machine, "soul", "show", "lucky", "--version", "1"); v.Version != 1 || v.Hash != soul.Souls[len(soul.Souls)-1].Hash {
		t.Errorf("version 1 is %+v", v)
	}
	u.fails(exitNotFound, "", []string{"soul", "show", "lucky", "--version", "99"}, "anima soul history lucky")
}

func TestScheduleAndMail(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	u.run("---\nname: Nova\nschedule:\n  - name: morning\n    cron: \"0 8 * * *\"\n    reason: look at the news\n---\nBe useful.\n", "agent", "apply", "-")
	u.cli("agent", "fund", "nova", "1")
	if v := asked[api.Schedule](u.machine, "heartbeat", "list", "Nova"); len(v.Entries) != 1 || v.Entries[0].Beat.Name != "morning" {
		t.Errorf("the schedule is %+v", v)
	}
	first := asked[api.Wake](u.machine, "heartbeat", "run", "nova", "morning", "--id", "m1")
	if first.Reason != "look at the news" || first.By.Kind != api.HeartbeatKind {
		t.Errorf("the wake is %+v, want the entry's reason and authority", first)
	}
	u.watch("nova-main", "loop_end")
	if again := asked[api.Wake](u.machine, "heartbeat", "run", "nova", "morning", "--id", "m1"); again.At != first.At {
		t.Errorf("repeated, the wake is %+v, want the time of %+v", again, first)
	}
	u.fails(exitNotFound, "", []string{"heartbeat", "run", "nova", "evening"}, "anima heartbeat list nova")
	var ticks api.Ticks
	one(t, u.call(http.MethodGet, "/v1/schedule/history?agent=nova", "", nil), &ticks)
	if out := u.cli("heartbeat", "history", "nova"); !strings.Contains(out, "FIRED") || len(ticks.Ticks) != 1 {
		t.Errorf("history is %+v and says\n%s", ticks, out)
	}
	var wake api.Wake
	one(t, u.call(http.MethodPost, "/v1/agents/nova/schedule/morning/run", "", nil), &wake)
	if wake.Agent != "nova" {
		t.Errorf("over HTTP: %+v", wake)
	}

	for _, text := range []string{"one", "two", "three"} {
		u.cli("social", "send", "lucky", "nova", text)
	}
	var page api.Inbox
	one(t, u.call(http.MethodGet, "/v1/agents/nova/inbox?limit=2", "", nil), &page)
	if len(page.Messages) != 2 || page.Messages[0].Content != "three" || page.Messages[0].Peer != "Lucky" || page.Next == "" {
		t.Fatalf("the first page is %+v", page)
	}
	if v := asked[api.Inbox](u.machine, "social", "inbox", "nova", "--after", page.Next); len(v.Messages) != 1 || v.Messages[0].Content != "one" || v.More {
		t.Errorf("the second page is %+v", v)
	}
	u.fails(exitNotFound, "", []string{"social", "inbox", "ghost"}, "anima agent list")
	u.fails(exitNotFound, "", []string{"social", "send", "lucky", "ghost", "hi"}, "anima agent list")
	u.fails(exitUsage, "be \xff wicked", []string{"social", "send", "lucky", "nova", "-"}, "not UTF-8")
	var c loop.Card
	one(t, u.cli("social", "card", "nova"), &c)
	if c.Name != "Nova" || len(c.Services) != 1 || !strings.HasPrefix(c.Services[0].Endpoint, "eip155:8453:0x") || !c.Active {
		t.Errorf("the card is %+v", c)
	}
}

func TestAbilities(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_TREASURY_RPC_URL"] = "" // without a chain nothing is paid in USDC
	u := m.up()
	out := u.run("---\nname: Nova\ntools: [read_file, git_push, x402_fetch, exec]\n---\nBe useful.\n", "agent", "apply", "-")
	for _, want := range []string{"warning: tool git_push cannot be used: it needs sandbox.network", "warning: tool x402_fetch cannot be used: ", "anima tool list nova"} {
		if out.code != exitOK || !strings.Contains(out.out, want) {
			t.Errorf("apply says %+v, want %q", out, want)
		}
	}
	var applied api.Agent
	one(t, u.call(http.MethodPut, "/v1/agents", "---\nname: Nova\ntools: [x402_fetch]\n---\nBe useful.\n", nil), &applied)
	if len(applied.Warnings) != 1 {
		t.Errorf("warnings over HTTP: %q, want one", applied.Warnings)
	}
	if g := asked[agentView](u.machine, "agent", "get", "lucky"); len(g.Warnings) != 0 {
		t.Errorf("the default tools cannot be used: %q", g.Warnings)
	}
	tools := map[string]api.ToolInfo{}
	for _, v := range asked[api.Tools](u.machine, "tool", "list").Tools {
		tools[v.Name] = v
	}
	if n := len(tools); n != 77 {
		t.Errorf("%d tools, want 77", n)
	}
	if v := tools["create_goal"]; !v.Executable || !v.Default || v.Owner != api.Loop {
		t.Errorf("create_goal is %+v", v)
	}
	if v := tools["check_credits"]; !v.Executable || v.Owner != api.Treasury {
		t.Errorf("check_credits is %+v", v)
	}
	if v := tools["x402_fetch"]; v.Executable || v.Why == "" {
		t.Errorf("x402_fetch is %+v, want why it cannot be used", v)
	}
	if out := u.cli("tool", "list", "nova"); !strings.Contains(out, "x402_fetch") || strings.Contains(out, "read_file") {
		t.Errorf("the tools of nova are\n%s", out)
	}

	dir := filepath.Join(u.Data, "loop", "workspaces", "nova", "skills", "weather")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "SKILL.md"), "---\nname: weather\ndescription: Say it plainly.\ntriggers: [rain]\nauto-activate: false\n---\n# Look out\n")
	if v := asked[api.Skills](u.machine, "skill", "list", "nova"); len(v.Skills) != 1 || !v.Skills[0].Usable || v.Skills[0].Instructions != "" {
		t.Errorf("skills are %+v", v)
	}
	if out := u.cli("skill", "show", "nova", "weather"); !strings.Contains(out, "# Look out") {
		t.Errorf("skill show says\n%s", out)
	}
	u.fails(exitNotFound, "", []string{"skill", "show", "nova", "rain"}, "anima skill list nova")

	servers := filepath.Join(u.Data, "loop", "mcp", "nova")
	if err := os.MkdirAll(servers, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(servers, "broken.json"), `{"command":"/nothing/here","env":{"KEY":"hunter2"}}`)
	if v := asked[api.Servers](u.machine, "server", "list", "nova"); len(v.Servers) != 1 || v.Servers[0].State != api.ServerIdle {
		t.Errorf("servers are %+v, want one that is idle", v)
	}
	text := u.cli("server", "list", "nova", "--connect", "-o", "json")
	var v api.Servers
	one(t, text, &v)
	if len(v.Servers) != 1 || v.Servers[0].State != api.ServerFailed || v.Servers[0].Error == "" || strings.Contains(text, "hunter2") {
		t.Errorf("servers are %s, want why one failed, without its secret", text)
	}

	d := asked[api.Decision](u.machine, "policy", "check", "read_file", `{"path":"notes.txt"}`, "--agent", "lucky")
	if d.Action != api.Allow || d.Token != "" {
		t.Errorf("reading a file: %+v, want it allowed without a token", d)
	}
	u.fails(exitDenied, "", []string{"policy", "check", "exec", `{"command":"rm -rf /"}`, "--agent", "lucky"}, "FORBIDDEN_COMMAND", "anima policy rules")
	u.fails(exitUsage, "", []string{"policy", "check", "exec", "{"}, "not JSON")
	u.fails(exitUsage, "", []string{"policy", "check", "exec"}, "--agent")
	var checked api.Decision
	one(t, u.call(http.MethodPost, "/v1/agents/lucky/check", `{"tool":"exec","args":{"command":"ls"},"by":"external"}`, nil), &checked)
	if checked.Action == api.Allow || checked.By.Kind != api.External {
		t.Errorf("for a stranger: %+v", checked)
	}
	if n := len(asked[api.Decisions](u.machine, "policy", "decisions").Decisions); n != 0 {
		t.Errorf("%d decisions are recorded, want none", n)
	}
}

func TestDeleteCommand(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	source := "---\nname: Nova\nschedule:\n  - name: morning\n    cron: \"0 8 * * *\"\n---\nBe useful.\n"
	u.run(source, "agent", "apply", "-")
	u.cli("agent", "fund", "nova", "1")
	own := asked[api.Session](u.machine, "session", "create", "nova", "--id", "billing")
	if again := asked[api.Session](u.machine, "session", "create", "nova", "--id", "billing"); again.ID != own.ID {
		t.Errorf("created twice: %s and %s", own.ID, again.ID)
	}
	u.cli("session", "send", "nova", "remember the price", "--session", own.ID)
	until(t, func() api.Memories {
		return asked[api.Memories](u.machine, "memory", "list", "nova", "--tier", "semantic")
	},
		func(v api.Memories) bool { return len(v.Memories) > 0 })

	u.fails(exitConflict, "", []string{"agent", "delete", "nova"}, "holds $", "anima ledger transfer nova", "--force")
	if g := asked[agentView](u.machine, "agent", "get", "nova"); g.State == api.StateDead {
		t.Errorf("a refusal changed the agent: %+v", g)
	}
	slow := asked[api.Accepted](u.machine, "session", "send", "nova", "long thought", "--no-wait")
	gone := asked[api.Deleted](u.machine, "agent", "delete", "Nova", "--force", "--reason", "enough")
	if gone.Left <= 0 || gone.Forgotten {
		t.Errorf("deleted: %+v, want the money that is left", gone)
	}
	if again := asked[api.Deleted](u.machine, "agent", "delete", "nova"); again.At != gone.At {
		t.Errorf("deleted twice: %+v, want the first time", again)
	}
	until(t, func() api.RunState {
		return asked[api.RunState](u.machine, "run", "get", slow.Run, "--session", slow.Session)
	},
		func(r api.RunState) bool { return r.Status == api.RunEnded && !r.Success })
	u.fails(exitNotFound, "", []string{"agent", "get", "nova"}, "anima agent apply")
	u.fails(exitNotFound, "", []string{"session", "send", "nova", "hi"}, "anima agent list")
	if got := ids(asked[api.Agents](u.machine, "agent", "list")); got != "lucky" {
		t.Errorf("agents are %q", got)
	}
	if v := asked[api.Schedule](u.machine, "heartbeat", "list"); slices.ContainsFunc(v.Entries, func(e api.ScheduleEntry) bool { return e.Agent == "nova" }) {
		t.Errorf("the schedules are %+v, want none of the deleted agent", v)
	}
	if s := asked[sessionView](u.machine, "session", "get", own.ID); s.Terminated == 0 {
		t.Errorf("the session goes on: %+v", s)
	}
	if out := u.cli("session", "transcript", own.ID); !strings.Contains(out, "remember the price") {
		t.Errorf("the transcript is\n%s", out)
	}

	// An AGENT.md that is applied again restores the same agent with its account and
	// memories.
	u.run(source, "agent", "apply", "-")
	g := asked[agentView](u.machine, "agent", "get", "nova")
	if g.State != api.StateSleeping || g.Balance == nil || g.Balance.Available <= 0 {
		t.Errorf("applied again: %+v, want it not dead, with its credits", g)
	}
	if v := asked[api.Memories](u.machine, "memory", "list", "nova", "--tier", "semantic"); len(v.Memories) == 0 {
		t.Error("its memories are gone")
	}
	u.cli("session", "send", "nova", "hello")

	var forgotten api.Deleted
	one(t, u.call(http.MethodDelete, "/v1/agents/nova?force=true&forget=true", "", nil), &forgotten)
	if !forgotten.Forgotten {
		t.Errorf("forgotten: %+v", forgotten)
	}
	if _, err := os.Stat(filepath.Join(u.Data, "loop", "workspaces", "nova")); !os.IsNotExist(err) {
		t.Errorf("its folder: %v, want none", err)
	}
	u.run(source, "agent", "apply", "-")
	if v := asked[api.Memories](u.machine, "memory", "list", "nova"); len(v.Memories) != 0 {
		t.Errorf("after it was forgotten it remembers %+v", v)
	}
	u.fails(exitNotFound, "", []string{"agent", "delete", "ghost"}, "anima agent list")
}

func TestStatusAndPages(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	var s statusView
	one(t, u.cli("status", "-o", "json"), &s)
	if len(s.Services) != 6 || len(s.Faults) != 0 || len(s.Agents) != 1 || s.Agents[0].Balance == nil || len(s.Streams) == 0 || len(s.Models) == 0 ||
		s.Disk == nil || s.Disk.Free <= 0 {
		t.Errorf("status is %+v", s)
	}
	for _, v := range s.Services {
		if v.Replicas != 1 {
			t.Errorf("%s has %d replicas, want 1", v.Name, v.Replicas)
		}
	}
	if out := u.cli("status"); !strings.Contains(out, "lucky") || !strings.Contains(out, "inference-router") || !strings.Contains(out, "LOOP_CMD 0") {
		t.Errorf("status says\n%s", out)
	}
	many := statusView{Money: moneyView{Holds: statusHolds, MoreHolds: true}}
	var out strings.Builder
	if many.text(&out); !strings.Contains(out.String(), "held by 250 or more calls") {
		t.Errorf("with many holds, status says\n%s", &out)
	}
	out.Reset()
	cut := statusView{Agents: make([]agentLine, statusAgents), More: true}
	if cut.text(&out); !strings.Contains(out.String(), "the first 50 agents") {
		t.Errorf("with many agents, status says\n%s", &out)
	}
	u.fails(exitUsage, "", []string{"payment", "list", "--state", "bogus"}, "not a state", "settled")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watched := &stopAt{text: "lucky", stop: cancel}
	if code := run(ctx, []string{"status", "--watch"}, u.app(nil, watched, watched)); code != exitOK || !strings.Contains(watched.String(), "lucky") {
		t.Errorf("watched: exit %d\n%s", code, watched)
	}

	var made []string
	for range 3 {
		made = append(made, asked[api.Session](u.machine, "session", "create", "lucky").ID)
	}
	seen := map[string]int{}
	args := []string{"session", "list", "lucky", "--limit", "1"}
	for page := (api.Page{More: true}); page.More; {
		v := asked[api.Sessions](u.machine, args...)
		for _, s := range v.Sessions {
			seen[s.ID]++
		}
		if page = v.Page; page.More && page.Next == "" {
			t.Fatalf("a page without a place to go on: %+v", v)
		}
		args = []string{"session", "list", "lucky", "--limit", "1", "--after", page.Next}
	}
	for _, id := range append(made, "lucky-main") {
		if seen[id] != 1 {
			t.Errorf("%s was listed %d times, want once", id, seen[id])
		}
	}
	var sessions api.Sessions
	one(t, u.call(http.MethodGet, "/v1/sessions?agent=lucky&limit=2", "", nil), &sessions)
	if len(sessions.Sessions) != 2 || !sessions.More {
		t.Errorf("sessions over HTTP: %+v", sessions)
	}
	if res := u.try(http.MethodGet, "/v1/sessions?limit=x", "", nil); res.status != http.StatusBadRequest {
		t.Errorf("limit x: %d", res.status)
	}
	all, err := kongcompletion.Command(u.app(nil, nil, nil).parser(t.Context(), func(int) {}), u.app(nil, nil, nil).predictors(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if got := all.Sub["agent"].Sub["get"].Args.Predict(complete.Args{}); !slices.Contains(got, "lucky") {
		t.Errorf("agent get completes %q, want lucky", got)
	}
}

// TestContextsAtOnce adds a context while another command waits for its token, and checks
// that a command has the lock of the contexts while it changes them.
func TestContextsAtOnce(t *testing.T) {
	t.Parallel()
	m := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
	in, token := io.Pipe()
	reading, ended := make(chan struct{}), make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"context", "add", "one", "nats://x", "--token-file", "-"}, m.app(&signalling{Reader: in, read: reading}, io.Discard, io.Discard))
	}()
	<-reading
	m.cli("context", "add", "two", "nats://x")
	if _, err := io.WriteString(token, "secret"); err != nil {
		t.Fatal(err)
	}
	if err := token.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != exitOK {
		t.Errorf("context add: exit %d", code)
	}
	if out := m.cli("context", "list"); !strings.Contains(out, "one") || !strings.Contains(out, "two") {
		t.Errorf("contexts: got\n%s\nwant both", out)
	}
	err := m.app(nil, nil, nil).changeContexts(func(*contextList) error {
		f, err := os.Open(filepath.Join(m.env["HOME"], ".config", "anima", contextsFile+".lock"))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // read only
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			t.Errorf("lock during a change: got %v, want %v", err, syscall.EWOULDBLOCK)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// signalling is a reader that closes read when it is read.
type signalling struct {
	io.Reader
	once sync.Once
	read chan struct{}
}

func (s *signalling) Read(p []byte) (int, error) {
	s.once.Do(func() { close(s.read) })
	return s.Reader.Read(p)
}

func TestContexts(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	other := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
	other.fails(exitUnavailable, "", []string{"agent", "list"}, "no anima is running", "--context")
	r := other.run(u.token+"\n", "context", "add", "lab", u.NATS, "--token-file", "-")
	if r.code != exitOK || strings.Contains(r.out, u.token) {
		t.Fatalf("add: %+v", r)
	}
	if got := ids(asked[api.Agents](other, "agent", "list", "--context", "lab")); got != "lucky" {
		t.Errorf("with --context: %q", got)
	}
	other.env["ANIMA_CONTEXT"] = "lab"
	if got := ids(asked[api.Agents](other, "agent", "list")); got != "lucky" {
		t.Errorf("with ANIMA_CONTEXT: %q", got)
	}
	delete(other.env, "ANIMA_CONTEXT")
	other.cli("context", "select", "lab")
	if got := ids(asked[api.Agents](other, "agent", "list")); got != "lucky" {
		t.Errorf("selected: %q", got)
	}
	// The doctor uses the context, too, and not the data folder of this machine.
	if out := other.cli("doctor"); !strings.Contains(out, "models can be used") || strings.Contains(out, "data folder") {
		t.Errorf("doctor says\n%s", out)
	}
	other.env["ANIMA_NATS_TOKEN"] = u.token
	if got := asked[statusView](other, "status", "--nats", u.NATS); got.Context != "" {
		t.Errorf("status with --nats names the context %q", got.Context)
	}
	delete(other.env, "ANIMA_NATS_TOKEN")
	if got := asked[statusView](other, "status"); got.Context != "lab" {
		t.Errorf("status names the context %q, want lab", got.Context)
	}
	other.fails(exitUnavailable, "", []string{"agent", "list", "--data", t.TempDir()}, "no anima is running")
	other.fails(exitUnavailable, "", []string{"agent", "list", "--nats", "nats://127.0.0.1:1"})
	other.fails(exitNotFound, "", []string{"agent", "list", "--context", "ghost"}, "anima context list")
	other.fails(exitUsage, "\n", []string{"context", "add", "empty", "nats://x", "--token-file", "-"}, "no secret", "--nkey-file")
	other.fails(exitUsage, strings.Repeat("x", maxSecret+1), []string{"context", "add", "large", "nats://x", "--nkey-file", "-"}, "no secret")
	other.fails(exitUsage, "", []string{"context", "add", "a b", "nats://x"}, "letters")
	other.fails(exitUsage, "", []string{"context", "add", "x", "localhost"}, "nats://")

	file := filepath.Join(other.env["HOME"], ".config", "anima", contextsFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v, want mode 0600", info, err)
	}
	for _, args := range [][]string{{"context", "list"}, {"context", "show"}, {"context", "show", "lab", "-o", "json"}} {
		if out := other.cli(args...); !strings.Contains(out, "lab") || !strings.Contains(out, "token") || strings.Contains(out, u.token) {
			t.Errorf("%v says\n%s", args, out)
		}
	}
	other.cli("context", "add", "secret", "nats://me:hunter2@h:4222")
	if out := other.cli("context", "list"); strings.Contains(out, "hunter2") || !strings.Contains(out, "nats://h:4222") {
		t.Errorf("a list with a password in a URL says\n%s", out)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	other.fails(exitDenied, "", []string{"agent", "list"}, "chmod 600")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	other.cli("context", "remove", "lab")
	other.fails(exitUnavailable, "", []string{"agent", "list"}, "no anima is running")
	other.fails(exitNotFound, "", []string{"context", "remove", "lab"}, "anima context list")
	var raw map[string]json.RawMessage
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	one(t, string(data), &raw)
	write(t, file, "{")
	other.fails(exitUsage, "", []string{"context", "list"}, "anima context add")
}
