package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestStories runs every story in one process and in many.
func TestStories(t *testing.T) {
	t.Parallel()
	worlds := map[string]func(testing.TB, map[string]string) *world{"one process": oneProcess, "many processes": manyProcesses}
	stories := map[string]func(*testing.T, *world){
		"an agent uses its tools":                  works,
		"a message wakes its recipient":            wakesAnother,
		"policy refuses a call":                    refuses,
		"an agent sleeps and its alarm wakes it":   sleeps,
		"the creator wakes an agent":               woken,
		"a schedule entry wakes an agent":          ticks,
		"a run without credits fails":              cannotPay,
		"a busy provider is called again":          asksAgain,
		"messages of a session keep their order":   keepsOrder,
		"invalid input changes nothing":            wrongInput,
		"HTTP returns the same as NATS":            overHTTP,
		"a definition is applied twice":            appliedTwice,
		"a repeated message starts one run":        sentTwice,
		"concurrent equal calls are paid once":     paidOnce,
		"a call with another prompt ends its hold": askedOtherwise,
		"a cancelled run is not resumed":           cancelled,
		"mode interrupt":                           interrupts,
		"mode steer":                               steers,
		"mode collect":                             collects,
		"a session is terminated":                  terminated,
		"the creator puts an agent to sleep":       explains,
	}
	for name, begin := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, nil)
			all := map[string]func(*testing.T){}
			for story, tell := range stories {
				all[story] = func(t *testing.T) { tell(t, w) }
			}
			together(t, all)
		})
	}
}

func works(t *testing.T, w *world) {
	a := born(t, w, "Worker", api.Dollar)
	end := send(t, w, a.ID, "work")
	if !end.Success || end.Response != "I counted: remembered self / words" || end.Turns != 4 {
		t.Fatalf("end: %+v", end)
	}
	turns := turnsOf(t, w, end.Run)
	if len(turns) != 4 {
		t.Fatalf("%d turns", len(turns))
	}
	type want struct{ tool, result string }
	for i, calls := range [][]want{
		{{"write_file", "wrote 13 bytes to a/notes.txt"}},
		{{"exec", "3\n"}, {"read_file", "one two three"}},
		{{"check_credits", "available $"}, {"remember_fact", "remembered self / words"}},
		{},
	} {
		if len(turns[i].Calls) != len(calls) {
			t.Fatalf("turn %d: calls %+v", i+1, turns[i].Calls)
		}
		for j, c := range calls {
			got := turns[i].Calls[j]
			if got.Tool != c.tool || got.Outcome != api.OutcomeOK || !strings.HasPrefix(got.Result, c.result) || got.Decision == "" {
				t.Errorf("turn %d call %d: got %+v, want %+v", i+1, j, got, c)
			}
		}
	}
	var cost api.Micros
	for _, turn := range turns {
		cost += turn.Cost
		if turn.Cost <= 0 || turn.By.Kind != api.Creator {
			t.Errorf("turn %s: cost %s, by %+v", turn.ID, turn.Cost, turn.By)
		}
		decisions := call[api.Decisions](t, w, api.ListDecisions{Turn: turn.ID}).Decisions
		if len(decisions) != len(turn.Calls) {
			t.Errorf("turn %s: %d decisions for %d calls", turn.ID, len(decisions), len(turn.Calls))
		}
		for _, d := range decisions {
			if d.Trace != turn.Trace {
				t.Errorf("decision %s is in trace %s, its turn in %s", d.ID, d.Trace, turn.Trace)
			}
		}
	}
	b := call[api.Balance](t, w, api.GetBalance{Agent: a.ID})
	if cost != end.Cost || b.Available != api.Dollar-cost || b.Held != 0 {
		t.Errorf("paid %s, the run says %s, left %s, held %s", cost, end.Cost, b.Available, b.Held)
	}
	g := call[api.Agent](t, w, api.GetAgent{Agent: a.ID})
	if g.State != api.StateSleeping || g.Turns != 4 {
		t.Errorf("agent: %+v", g)
	}
	transcript := call[api.Transcript](t, w, api.GetTranscript{Session: a.Session}).Lines
	var roles []string
	for _, l := range transcript {
		roles = append(roles, l.Role)
	}
	if got, want := strings.Join(roles, " "), "user assistant tool assistant tool tool assistant tool tool assistant"; got != want {
		t.Errorf("transcript: got %s, want %s", got, want)
	}
	if data, err := os.ReadFile(filepath.Join(w.data, "loop", "workspaces", a.ID, "a", "notes.txt")); err != nil || string(data) != "one two three" {
		t.Errorf("the file: %q, %v", data, err)
	}
	events := eventNames(t, w, a.Session, end.Run)
	want1 := "loop_start loop_context loop_execute tool_start tool_end loop_persist loop_context loop_execute tool_start tool_end tool_start tool_end loop_persist " +
		"loop_context loop_execute tool_start tool_end tool_start tool_end loop_persist loop_context loop_execute loop_persist loop_end"
	if got := strings.Join(events, " "); got != want1 {
		t.Errorf("events\n got %s\nwant %s", got, want1)
	}
	if again := send(t, w, a.ID, "recall"); again.Response != "said: recall" {
		t.Errorf("second run: %+v", again)
	}
}

// eventNames returns the names of a run's events in the order of the stream.
func eventNames(t *testing.T, w *world, session, run string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var got []string
	err := w.bus.Events(ctx, 0, func(s bus.Stored) error {
		var head struct {
			Run string `json:"runId"`
		}
		if err := json.Unmarshal(s.Data, &head); err != nil {
			return err
		}
		if head.Run != run {
			return nil
		}
		name := strings.Split(s.Subject, ".")[3]
		got = append(got, name)
		if name == "loop_end" {
			cancel()
		}
		return nil
	}, bus.SessionEvents(session)...)
	if ctx.Err() == nil {
		t.Fatal(err)
	}
	return got
}

func wakesAnother(t *testing.T, w *world) {
	a, b := born(t, w, "Caller", api.Dollar), born(t, w, "Callee", api.Dollar)
	end := send(t, w, a.ID, "tell "+b.Address+" good morning")
	if !end.Success || !strings.HasPrefix(end.Response, "told: sent as ") {
		t.Fatalf("sender: %+v", end)
	}
	got := await(t, w, api.LoopEnd{Session: b.Mail}, func(e api.LoopEnd) bool { return e.Agent == b.ID })
	if !got.Success || got.Response != "peer "+a.Address+" wrote to me" {
		t.Errorf("receiver: %+v", got)
	}
	turn := turnsOf(t, w, got.Run)[0]
	if turn.By.Kind != api.Peer || turn.By.Address != a.Address {
		t.Errorf("the turn's principal is %+v, want the peer", turn.By)
	}
	if !strings.Contains(turn.Input, "[message from peer "+a.Address+" (Caller)]\n> good morning") {
		t.Errorf("input: %q", turn.Input)
	}
	inbox := call[api.Inbox](t, w, api.ListInbox{Agent: b.ID}).Messages
	if len(inbox) != 1 || inbox[0].Status != "processed" || inbox[0].Content != "good morning" {
		t.Errorf("inbox: %+v", inbox)
	}
}

func refuses(t *testing.T, w *world) {
	a := born(t, w, "Rebel", api.Dollar)
	end := send(t, w, a.ID, "forbidden")
	if !end.Success || !strings.HasPrefix(end.Response, "refused: policy denied: FORBIDDEN_COMMAND") {
		t.Fatalf("end: %+v", end)
	}
	c := turnsOf(t, w, end.Run)[0].Calls[0]
	if c.Outcome != api.OutcomeDenied || c.Action != api.Deny {
		t.Errorf("call: %+v", c)
	}
	for _, e := range eventNames(t, w, a.Session, end.Run) {
		if e == "tool_start" {
			t.Error("a denied call was started")
		}
	}
	d := call[api.Decisions](t, w, api.ListDecisions{Agent: a.ID}).Decisions
	if len(d) != 1 || d[0].Action != api.Deny || d[0].Token != "" {
		t.Errorf("decisions: %+v", d)
	}
}

func sleeps(t *testing.T, w *world) {
	a := born(t, w, "Sleeper", api.Dollar)
	end := send(t, w, a.ID, "sleep")
	if !end.Success || end.Turns != 1 {
		t.Fatalf("end: %+v", end)
	}
	asleep := await(t, w, api.AgentChanged{Agent: a.ID}, func(c api.AgentChanged) bool { return c.SleepUntil > 0 })
	if asleep.State != api.StateSleeping || asleep.Reason != "one second" {
		t.Errorf("asleep: %+v", asleep)
	}
	up := await(t, w, api.LoopEnd{Session: a.Session}, func(e api.LoopEnd) bool { return e.Run != end.Run })
	if up.Response != "awake: one second" {
		t.Errorf("woken: %+v", up)
	}
	turn := turnsOf(t, w, up.Run)[0]
	if turn.By.Kind != api.HeartbeatKind || turn.StartedAt < asleep.SleepUntil {
		t.Errorf("woken by %+v at %d, the alarm was at %d", turn.By, turn.StartedAt, asleep.SleepUntil)
	}
	t.Logf("first thought %.1f ms after the alarm's time", float64(turn.StartedAt-asleep.SleepUntil)/1000)
}

func woken(t *testing.T, w *world) {
	a := born(t, w, "Woken", api.Dollar)
	await(t, w, api.AgentChanged{Agent: a.ID}, func(api.AgentChanged) bool { return true })
	call[api.Wake](t, w, api.RequestWake{Agent: a.ID, Cause: "creator-1", Reason: "breakfast"})
	end := await(t, w, api.LoopEnd{Session: a.Session}, func(api.LoopEnd) bool { return true })
	if end.Response != "awake: breakfast" {
		t.Errorf("end: %+v", end)
	}
	refused[api.Wake](t, w, api.RequestWake{Agent: "unknown", Cause: "creator-1"}, api.NotFound)
}

// ticks checks that an entry of the schedule wakes its agent. The entry fires every
// minute on the real clock, so the test takes about a minute.
func ticks(t *testing.T, w *world) {
	a := call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: Ticker\nschedule:\n  - {name: minute, cron: '* * * * *', reason: look around}\n---\nBe on time.\n"})
	s := call[api.Schedule](t, w, api.GetSchedule{Agent: a.ID}).Entries
	now := time.Now().UnixMicro()
	if len(s) != 1 || s[0].Beat.Name != "minute" || s[0].Beat.Next <= now-1_000_000 || s[0].Beat.Next > now+61_000_000 {
		t.Fatalf("schedule: %+v", s)
	}
	call[api.Posted](t, w, api.Deposit{ID: "birth-ticker", Agent: a.ID, Amount: api.Dollar, Source: "faucet"})
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
	defer cancel()
	var end api.LoopEnd
	err := w.bus.Events(ctx, 0, func(m bus.Stored) error {
		defer cancel()
		return api.Decode(m.Data, &end)
	}, api.LoopEnd{Session: a.Session}.Subject())
	if end.Response != "awake: look around" {
		t.Fatalf("end: %+v, %v", end, err)
	}
	ticked := call[api.Ticks](t, w, api.ListTicks{Agent: a.ID}).Ticks
	if len(ticked) == 0 || ticked[0].Name != "minute" || ticked[0].Due%60_000_000 != 0 {
		t.Errorf("ticks: %+v", ticked)
	}
}

func cannotPay(t *testing.T, w *world) {
	a := born(t, w, "Poor", 0)
	end := send(t, w, a.ID, "hello")
	if end.Success || end.Cost != 0 {
		t.Fatalf("end: %+v", end)
	}
	why := await(t, w, api.LoopError{Session: a.Session}, func(e api.LoopError) bool { return e.Run == end.Run })
	if why.Reason != api.ReasonInsufficient && why.Reason != api.ReasonNoModel {
		t.Errorf("error: %+v", why)
	}
	lines := call[api.Transcript](t, w, api.GetTranscript{Session: a.Session}).Lines
	if len(lines) != 1 || lines[0].Role != "user" || lines[0].Content != "hello" {
		t.Errorf("the transcript has %+v, want the message and no answer", lines)
	}
	call[api.Posted](t, w, api.Deposit{ID: "rescue-" + a.ID, Agent: a.ID, Amount: api.Dollar, Source: "faucet"})
	if again := send(t, w, a.ID, "hello"); !again.Success {
		t.Errorf("with money: %+v", again)
	}
}

func asksAgain(t *testing.T, w *world) {
	a := born(t, w, "Patient", api.Dollar)
	end := send(t, w, a.ID, "busy provider")
	if !end.Success || end.Response != "at last" {
		t.Errorf("end: %+v", end)
	}
}

func keepsOrder(t *testing.T, w *world) {
	a := born(t, w, "Orderly", api.Dollar)
	var runs []string
	for _, n := range []string{"1", "2", "3", "4", "5", "6"} {
		runs = append(runs, call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall " + n}).Run)
	}
	for _, r := range runs {
		ended(t, w, a.Session, r)
	}
	var said []string
	for _, l := range call[api.Transcript](t, w, api.GetTranscript{Session: a.Session}).Lines {
		if l.Role == "user" {
			said = append(said, strings.TrimPrefix(l.Content, "recall "))
		}
	}
	if got := strings.Join(said, ""); got != "123456" {
		t.Errorf("order: %s", got)
	}
}

func wrongInput(t *testing.T, w *world) {
	a := born(t, w, "Strict", api.Dollar)
	refused[api.Accepted](t, w, api.SendMessage{Agent: "unknown", Content: "x"}, api.NotFound)
	refused[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: " \n"}, api.Invalid)
	refused[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: strings.Repeat("x", api.MaxMessageBytes+1)}, api.Invalid)
	refused[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "x", Mode: "shout"}, api.Invalid)
	refused[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "x", Session: "strict-other"}, api.NotFound)
	refused[api.Transcript](t, w, api.GetTranscript{Session: "none"}, api.NotFound)
	refused[api.Turn](t, w, api.GetTurn{Turn: "none"}, api.NotFound)
	faults := refused[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: Br*ken\ntools: [fly]\nschedule:\n  - {name: x, cron: '61 * * * *'}\n---\n"}, api.Invalid)
	if len(faults) < 4 {
		t.Errorf("faults: %q, want the name, the tool, the cron and the empty body", faults)
	}
	for _, d := range faults {
		if !strings.HasPrefix(d, "line ") {
			t.Errorf("a fault without its line: %q", d)
		}
	}
	if s := call[api.Session](t, w, api.GetSession{Session: a.Session}); s.Messages != 0 || s.Turns != 0 {
		t.Errorf("something was written: %+v", s)
	}
	for _, g := range call[api.Agents](t, w, api.ListAgents{}).Agents {
		if strings.HasPrefix(g.ID, "br") {
			t.Errorf("a broken definition made %+v", g)
		}
	}
}

func overHTTP(t *testing.T, w *world) {
	status, _, body := web(t, w, "loop", http.MethodPut, "/v1/agents/webby", "---\nname: Webby\n---\nAnswer.\n")
	var a api.Agent
	if err := json.Unmarshal([]byte(body), &a); err != nil || status != http.StatusOK {
		t.Fatalf("apply: %d %s", status, body)
	}
	call[api.Posted](t, w, api.Deposit{ID: "birth-webby", Agent: a.ID, Amount: api.Dollar, Source: "faucet"})
	status, _, body = web(t, w, "loop", http.MethodPost, "/v1/sessions/webby-main/messages", `{"content":"recall web"}`)
	var acc api.Accepted
	if err := json.Unmarshal([]byte(body), &acc); err != nil || status != http.StatusOK {
		t.Fatalf("send: %d %s", status, body)
	}
	end := ended(t, w, acc.Session, acc.Run)
	status, _, body = web(t, w, "loop", http.MethodGet, "/v1/sessions/webby-main/transcript", "")
	if lines := strings.Split(strings.TrimSpace(body), "\n"); status != http.StatusOK || len(lines) != 2 || !strings.Contains(lines[1], "said: recall web") {
		t.Errorf("transcript: %d %s", status, body)
	}
	status, _, body = web(t, w, "loop", http.MethodGet, "/v1/turns/"+turnsOf(t, w, end.Run)[0].ID, "")
	if status != http.StatusOK || !strings.Contains(body, end.Run) {
		t.Errorf("turn: %d %s", status, body)
	}
	for _, c := range []struct {
		service, method, path string
		status                int
	}{
		{"loop", http.MethodGet, "/v1/agents/none", 404},
		{"loop", http.MethodGet, "/v1/turns/none", 404},
		{"loop", http.MethodGet, "/nothing", 404},
		{"loop", http.MethodDelete, "/v1/agents", 405},
		{"inference-router", http.MethodGet, "/v1/models", 200},
		{"treasury", http.MethodGet, "/v1/credits/balance?agent=webby", 200},
		{"treasury", http.MethodGet, "/v1/credits/balance?agent=none", 404},
	} {
		status, _, body := web(t, w, c.service, c.method, c.path, "")
		if status != c.status || !json.Valid([]byte(body)) {
			t.Errorf("%s %s: got %d %s, want %d and JSON", c.method, c.path, status, body, c.status)
		}
	}
	status, _, _ = web(t, w, "loop", http.MethodGet, "/v1/agents", "", "Authorization", "Bearer wrong")
	if status != http.StatusUnauthorized {
		t.Errorf("a wrong token: got %d", status)
	}
	status, _, _ = web(t, w, "loop", http.MethodGet, "/v1/agents", "", "Origin", "https://evil.example")
	if status != http.StatusForbidden {
		t.Errorf("a foreign origin: got %d", status)
	}
}

func appliedTwice(t *testing.T, w *world) {
	a := born(t, w, "Twice", api.Dollar)
	b := born(t, w, "Twice", api.Dollar)
	if a.Address != b.Address || b.Version != 1 {
		t.Errorf("applied again: %+v", b)
	}
	c := call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: Twice\ntools: [sleep]\n---\nBe brief.\n"})
	if c.Version != 2 || c.Address != a.Address || len(c.Tools) != 1 {
		t.Errorf("changed: %+v", c)
	}
	if bal := call[api.Balance](t, w, api.GetBalance{Agent: a.ID}); bal.Available != api.Dollar {
		t.Errorf("the same deposit twice left %s", bal.Available)
	}
}

func sentTwice(t *testing.T, w *world) {
	a := born(t, w, "Echo", api.Dollar)
	one := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", ID: "m-1"})
	two := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", ID: "m-1"})
	if one.Run != two.Run {
		t.Errorf("two runs: %s, %s", one.Run, two.Run)
	}
	ended(t, w, a.Session, one.Run)
	three := send(t, w, a.ID, "recall again")
	if s := call[api.Session](t, w, api.GetSession{Session: a.Session}); s.Messages != 2 || three.Turns != 1 {
		t.Errorf("session: %+v", s)
	}
}

// paidOnce requests the same completion from the router twice, while both calls are in
// progress. They cannot share a hold, because the first hold was released before the
// second call. The agent must pay once.
func paidOnce(t *testing.T, w *world) {
	a := born(t, w, "Hasty", api.Dollar)
	req := api.Complete{
		ID: "hasty.1", Agent: a.ID, Session: a.Session, Turn: "hasty.1", Task: api.TaskTurn, Tier: api.TierNormal,
		Messages: []api.ChatMessage{{Role: "user", Content: "slow thought"}},
	}
	answers := make(chan error, 2)
	ask := func() {
		_, err := bus.CallStream[api.Delta, api.Completion](t.Context(), w.bus, req, func(api.Delta) error { return nil })
		answers <- err
	}
	go ask()
	held := func() []api.HoldState {
		return call[api.Holds](t, w, api.ListHolds{Agent: a.ID, Status: api.HoldActive, Limit: 10}).Holds
	}
	first := held()
	for ; len(first) == 0; first = held() {
		if t.Context().Err() != nil {
			t.Fatal("the first call holds nothing")
		}
	}
	call[api.HoldState](t, w, api.Release{ID: first[0].ID, Reason: "to see what becomes of the second"})
	go ask()
	for range 2 {
		if err := <-answers; err != nil {
			t.Errorf("an answer: %v", err)
		}
	}
	if left := held(); len(left) != 0 {
		t.Errorf("got %d active holds %+v, want none", len(left), left)
	}
	if paid := settled(t, w, a); paid != 1 {
		t.Errorf("paid %d times, want once", paid)
	}
}

// settled counts the settled holds of an agent.
func settled(t *testing.T, w *world, a api.Agent) (n int) {
	t.Helper()
	for _, p := range call[api.Entries](t, w, api.ListEntries{Agent: a.ID, Limit: 100}).Entries {
		if p.Kind == "settle" {
			n++
		}
	}
	return n
}

// askedOtherwise repeats a request for a completion with a longer prompt, so that the
// hold of the first request does not match: once while the first call is in progress, and
// once for a call whose router has crashed. The hold of the crashed router is paid whole,
// because the provider may have billed the call.
func askedOtherwise(t *testing.T, w *world) {
	a := born(t, w, "Undecided", api.Dollar)
	ask := func(id, text string, more ...api.ChatMessage) error {
		_, err := bus.CallStream[api.Delta, api.Completion](t.Context(), w.bus, api.Complete{
			ID: id, Agent: a.ID, Session: a.Session, Turn: id, Task: api.TaskTurn, Tier: api.TierNormal,
			Messages: append(more, api.ChatMessage{Role: "user", Content: text}),
		}, func(api.Delta) error { return nil })
		return err
	}
	held := func() []api.HoldState {
		return call[api.Holds](t, w, api.ListHolds{Agent: a.ID, Status: api.HoldActive, Limit: 10}).Holds
	}
	first := make(chan error, 1)
	go func() { first <- ask("undecided.1", "slow thought") }()
	id := ""
	for all := held(); id == ""; all = held() {
		if t.Context().Err() != nil {
			t.Fatal("the first call holds nothing")
		}
		if len(all) > 0 {
			id = all[0].ID
		}
	}
	longer := api.ChatMessage{Role: "system", Content: strings.Repeat("and more ", 200)}
	if err := errors.Join(ask("undecided.1", "slow thought", longer), <-first); err != nil {
		t.Error(err)
	}
	if left := held(); len(left) != 0 {
		t.Errorf("after one that was under way: got the active holds %+v, want none", left)
	}

	call[api.HoldState](t, w, api.Hold{
		ID: strings.Replace(id, ".1", ".2", 1), Agent: a.ID, Amount: api.Cent, Category: "inference", Turn: "undecided.2", ExpiresAt: time.Now().Add(time.Minute).UnixMicro(),
	})
	if err := ask("undecided.2", "hello"); err != nil {
		t.Error(err)
	}
	if left := held(); len(left) != 0 {
		t.Errorf("after a router that crashed: got the active holds %+v, want none", left)
	}
	if paid := settled(t, w, a); paid != 3 {
		t.Errorf("paid %d times, want once for each call, and once for the call of the crashed router", paid)
	}
}
