package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/loop"
)

type response struct {
	status int
	header http.Header
	body   string
}

// fault decodes the error of a response, which must be JSON with a code, a cause and the
// next step.
func (r response) fault(t testing.TB) api.Error {
	t.Helper()
	var v struct{ Error api.Error }
	if err := json.Unmarshal([]byte(r.body), &v); err != nil || v.Error.Code == "" || v.Error.Message == "" || v.Error.Next == "" {
		t.Errorf("%d with %q (%v), want a JSON error with code, message and next", r.status, r.body, err)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type is %q", got)
	}
	return v.Error
}

func request(t testing.TB, method, url, body string, header map[string]string) response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k == "Host" {
			req.Host = v
			continue
		}
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }() // read completely
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(data)}
}

func get(t testing.TB, url string, header map[string]string) response {
	t.Helper()
	return request(t, http.MethodGet, url, "", header)
}

// call makes a request with the operator's token; it fails the test unless the status is
// 200.
func (r *running) call(method, path, body string, header map[string]string) string {
	r.t.Helper()
	res := r.try(method, path, body, header)
	if res.status != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, res.status, res.body)
	}
	return res.body
}

func (r *running) try(method, path, body string, header map[string]string) response {
	r.t.Helper()
	all := map[string]string{"Authorization": "Bearer " + r.token}
	for k, v := range header {
		all[k] = v
	}
	return request(r.t, method, r.HTTP+path, body, all)
}

func TestHTTPGuards(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	for _, path := range []string{"/v1/agents", "/v1/agents/lucky", "/v1/sessions/lucky-main/events", "/v1/credits/balance?agent=lucky"} {
		for _, header := range []map[string]string{nil, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}} {
			if res := get(t, u.HTTP+path, header); res.status != http.StatusUnauthorized || res.fault(t).Code != api.Denied {
				t.Errorf("GET %s with %v: %d, want 401", path, header, res.status)
			}
		}
	}
	// The routes of models answer with the error object of their dialect.
	var dialect struct {
		Error struct{ Message, Type, Code string }
	}
	res := get(t, u.HTTP+"/v1/models", map[string]string{"Authorization": "Bearer wrong"})
	if err := json.Unmarshal([]byte(res.body), &dialect); err != nil || res.status != http.StatusUnauthorized || dialect.Error.Message == "" || dialect.Error.Code != "invalid_api_key" {
		t.Errorf("GET /v1/models with a wrong token: %d %s, %v, want 401 and an error of OpenAI", res.status, res.body, err)
	}
	if res := get(t, u.HTTP+"/v1/agents", map[string]string{"Authorization": u.token}); res.status != http.StatusOK {
		t.Errorf("the bare token: %d, want 200", res.status)
	}
	for _, tt := range []struct {
		header map[string]string
		want   int
	}{
		{map[string]string{"Host": "evil.example"}, http.StatusForbidden},
		{map[string]string{"Host": "evil.example:8080"}, http.StatusForbidden},
		{map[string]string{"Host": "localhost:1"}, http.StatusOK},
		{map[string]string{"Origin": "https://evil.example"}, http.StatusForbidden},
		{map[string]string{"Origin": "null"}, http.StatusForbidden},
		{map[string]string{"Origin": "http://localhost:3000"}, http.StatusOK},
	} {
		res := u.try(http.MethodGet, "/v1/agents", "", tt.header)
		if res.status != tt.want {
			t.Errorf("%v: %d, want %d", tt.header, res.status, tt.want)
		}
		if tt.want != http.StatusOK && res.fault(t).Code != api.Denied {
			t.Errorf("%v: %s", tt.header, res.body)
		}
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
		code               api.Code
	}{
		{http.MethodGet, "/", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/nothing", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/agents/ghost", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/turns/ghost", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/sessions/ghost/transcript", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/sessions/ghost/events", "", http.StatusNotFound, api.NotFound},
		{http.MethodDelete, "/v1/agents", "", http.StatusMethodNotAllowed, api.Invalid},
		{http.MethodPut, "/v1/agents", "---\nname: -\nflavour: 1\n---\n", http.StatusBadRequest, api.Invalid},
		{http.MethodPut, "/v1/agents/other", "---\nname: Nova\n---\nBe.\n", http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/sessions/lucky-main/messages", "{", http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":""}`, http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":"hi","mode":"shout"}`, http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":"` + strings.Repeat("x", api.MaxMessageBytes+1) + `"}`, http.StatusRequestEntityTooLarge, api.Invalid},
		{http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":"` + strings.Repeat("x", 7*api.MaxMessageBytes) + `"}`, http.StatusRequestEntityTooLarge, api.Invalid},
		{http.MethodPut, "/v1/agents/nova", strings.Repeat("x", 70_000), http.StatusRequestEntityTooLarge, api.Invalid},
		{http.MethodPut, "/v1/agents/nova", "---\nname: Nova\n---\nBe \xff.\n", http.StatusBadRequest, api.Invalid},
		// A fault in another field does not hide a fault of the name.
		{http.MethodPut, "/v1/agents/other", "---\nname: Nova\ntools: [exec]\n---\nBe.\n", http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/agents/ghost/wake", "", http.StatusNotFound, api.NotFound},
		{http.MethodPost, "/v1/agents/ghost/sleep", "", http.StatusNotFound, api.NotFound},
		{http.MethodPost, "/v1/agents/lucky/sleep", `{"until":1}`, http.StatusBadRequest, api.Invalid},
		{http.MethodPost, "/v1/agents/lucky/sleep", `{"for":"1h"}`, http.StatusBadRequest, api.Invalid},
		{http.MethodGet, "/v1/agents/ghost/explain", "", http.StatusNotFound, api.NotFound},
		{http.MethodGet, "/v1/agents/lucky/explain?limit=x", "", http.StatusBadRequest, api.Invalid},
		{http.MethodGet, "/v1/agents/lucky/explain?limit=100000", "", http.StatusBadRequest, api.Invalid},
		{http.MethodGet, "/v1/goals?status=bogus", "", http.StatusBadRequest, api.Invalid},
		{http.MethodGet, "/v1/turns?after=zzz", "", http.StatusBadRequest, api.Invalid},
		{http.MethodGet, "/v1/runs/ghost", "", http.StatusNotFound, api.NotFound},
		{http.MethodDelete, "/v1/runs/ghost", "", http.StatusNotFound, api.NotFound},
		{http.MethodDelete, "/v1/runs/ghost?session=lucky-main", "", http.StatusNotFound, api.NotFound},
		{http.MethodPost, "/v1/sessions/ghost/terminate", "", http.StatusNotFound, api.NotFound},
	} {
		res := u.try(tt.method, tt.path, tt.body, nil)
		if res.status != tt.status || res.fault(t).Code != tt.code {
			t.Errorf("%s %s: %d %s, want %d %s", tt.method, tt.path, res.status, res.body, tt.status, tt.code)
		}
		if tt.status == http.StatusMethodNotAllowed && !strings.Contains(res.header.Get("Allow"), http.MethodPut) {
			t.Errorf("Allow is %q, want PUT in it", res.header.Get("Allow"))
		}
	}
	if strings.Contains(u.log(), u.token) {
		t.Error("the token is in the log")
	}
}

// sse is one server-sent event.
type sse struct{ ID, Event, Data string }

// stream reads a session's events until one fits, then closes the connection.
func (r *running) stream(session, lastID string, fits func(sse) bool) []sse {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.HTTP+"/v1/sessions/"+session+"/events", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }() // closed before the end of the stream
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		r.t.Fatalf("%d, %s", res.StatusCode, got)
	}
	var all []sse
	var e sse
	scan := bufio.NewScanner(res.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ": ")
		switch {
		case name == "id":
			e.ID = value
		case name == "event":
			e.Event = value
		case name == "data":
			e.Data = value
		case scan.Text() == "" && e.Event != "":
			if e.Event != "stream:delta" && e.Event != "loop:thinking" { // these events are not stored
				all = append(all, e)
			}
			if fits(e) {
				return all
			}
			e = sse{}
		}
	}
	r.t.Fatalf("the stream of %s ended: %v, after %v", session, scan.Err(), all)
	return nil
}

// endOf returns a condition for stream: the end of the run.
func endOf(run string) func(sse) bool {
	return func(e sse) bool { return e.Event == "loop:end" && strings.Contains(e.Data, run) }
}

func TestHTTPStory(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	var g, same api.Agent
	one(t, u.call(http.MethodPut, "/v1/agents", "---\nname: Nova\n---\nBe useful.\n", nil), &g)
	one(t, u.call(http.MethodPut, "/v1/agents/nova", "---\nname: Nova\n---\nBe useful.\n", nil), &same)
	if g.ID != "nova" || g.Version != 1 || same.Version != 1 {
		t.Errorf("applied twice: %+v, %+v, want version 1", g, same)
	}
	u.cli("agent", "fund", "nova", "1")

	path := "/v1/sessions/" + g.Session + "/messages"
	var first, again, second api.Accepted
	key := map[string]string{"Idempotency-Key": "monday"}
	one(t, u.call(http.MethodPost, path, `{"content":"work"}`, key), &first)
	one(t, u.call(http.MethodPost, path, `{"content":"work"}`, key), &again)
	if first.Run != again.Run {
		t.Errorf("one key gave the runs %s and %s", first.Run, again.Run)
	}
	before := u.stream(g.Session, "", endOf(first.Run))
	one(t, u.call(http.MethodPost, path, `{"content":"work"}`, key), &again)
	if first.Run != again.Run {
		t.Errorf("one key gave the runs %s and, after its end, %s", first.Run, again.Run)
	}
	if res := u.try(http.MethodPost, path, `{"content":"rest"}`, key); res.status != http.StatusConflict || res.fault(t).Reason != api.ReasonKeyTaken {
		t.Errorf("one key for another content: %d %s, want 409 and %s", res.status, res.body, api.ReasonKeyTaken)
	}
	one(t, u.call(http.MethodPost, path, `{"content":"hello"}`, nil), &second)

	// A reader that resumes in the middle gets the remaining events without a gap or a
	// repetition.
	middle := len(before) / 2
	for before[middle].ID == "" { // of events that were stored together, only the last one has an id
		middle++
	}
	after := u.stream(g.Session, before[middle].ID, endOf(second.Run))
	joined := slices.Concat(before[:middle+1], after)
	if diff := cmp.Diff(u.stream(g.Session, "", endOf(second.Run)), joined); diff != "" {
		t.Errorf("a stream that was cut is not what an uncut one is (-whole +joined):\n%s", diff)
	}
	var names []string
	ends := map[string]int{}
	for _, e := range before {
		names = append(names, e.Event)
	}
	for _, e := range joined {
		if e.Event == "loop:end" {
			var end api.LoopEnd
			one(t, e.Data, &end)
			ends[end.Run]++
		}
	}
	if diff := cmp.Diff(map[string]int{first.Run: 1, second.Run: 1}, ends); diff != "" {
		t.Errorf("ends by run (-want +got):\n%s", diff)
	}
	for _, want := range []string{"loop:start", "loop:context", "loop:execute", "tool:start", "tool:end", "loop:persist", "loop:end"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s among %v", want, names)
		}
	}
	for _, id := range []string{"x", "-1", "1000000", "9223372036854775807", "9223372036854775808", "18446744073709551615"} {
		if res := u.try(http.MethodGet, "/v1/sessions/"+g.Session+"/events", "", map[string]string{"Last-Event-ID": id}); res.status != http.StatusBadRequest || res.fault(t).Code != api.Invalid {
			t.Errorf("Last-Event-ID %s: %d %s, want 400", id, res.status, res.body)
		}
	}
	for _, args := range [][]string{{"session", "events", g.Session, "--watch"}, {"session", "watch", g.Session}} {
		u.fails(exitUsage, "", append(args, "--after", "18446744073709551615"), "no event 18446744073709551615")
	}

	transcript := lines[api.TranscriptLine](t, u.call(http.MethodGet, "/v1/sessions/"+g.Session+"/transcript", "", nil))
	if n := len(transcript); n < 4 || transcript[0].Role != "user" || transcript[0].Content != "work" || !strings.Contains(transcript[n-1].Content, "hello") {
		t.Errorf("the transcript is %+v", transcript)
	}
	var turn api.Turn
	one(t, u.call(http.MethodGet, "/v1/turns/"+transcript[0].Turn, "", nil), &turn)
	if rest := u.call(http.MethodGet, "/v1/turns?agent=nova&after="+turn.ID, "", nil); !strings.Contains(rest, `"turns":[]`) {
		t.Errorf("the turns before the first one are %s, want none", rest)
	}
	if turn.Run != first.Run || turn.Agent != "nova" || len(turn.Trace) != 32 || turn.Cost <= 0 {
		t.Errorf("the first turn is %+v", turn)
	}
	var agents api.Agents
	one(t, u.call(http.MethodGet, "/v1/agents", "", nil), &agents)
	if len(agents.Agents) != 2 {
		t.Errorf("%d agents, want 2", len(agents.Agents))
	}
	var wake api.Wake
	one(t, u.call(http.MethodPost, "/v1/agents/nova/wake", `{"reason":"rise"}`, nil), &wake)
	if wake.Agent != "nova" || wake.Reason != "rise" {
		t.Errorf("the wake is %+v", wake)
	}
}

// TestHTTPLife checks over HTTP a full queue, the cancellation of a waiting run and of
// one in progress, the end of a session, and an agent that sleeps and explains its state.
func TestHTTPLife(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	const path = "/v1/sessions/lucky-main/messages"
	send := func(body string) api.Accepted {
		t.Helper()
		var acc api.Accepted
		one(t, u.call(http.MethodPost, path, body, nil), &acc)
		return acc
	}
	slow := send(`{"content":"long thought"}`)
	if res := u.try(http.MethodPost, path, `{"content":"hi","mode":"drop"}`, nil); res.status != http.StatusConflict || res.fault(t).Code != api.Conflict {
		t.Errorf("dropped: %d %s, want 409", res.status, res.body)
	}
	waits := make([]api.Accepted, api.QueueDepth)
	for i := range waits {
		waits[i] = send(`{"content":"hello","mode":"collect"}`)
	}
	if res := u.try(http.MethodPost, path, `{"content":"one too many"}`, nil); res.status != http.StatusTooManyRequests || res.header.Get("Retry-After") == "" || res.fault(t).Reason != api.ReasonLimit {
		t.Errorf("over the queue's depth: %d %s, want 429 with Retry-After", res.status, res.body)
	}
	run := func(method, id, query string) api.RunState {
		t.Helper()
		var st api.RunState
		one(t, u.call(method, "/v1/runs/"+id+query, "", nil), &st)
		return st
	}
	if st := run(http.MethodGet, waits[0].Run, "?session=lucky-main"); st.Status != api.RunQueued || st.Cancelled {
		t.Errorf("the first that waits is %+v", st)
	}
	if res := u.try(http.MethodGet, "/v1/runs/"+waits[0].Run, "", nil); res.status != http.StatusNotFound || res.fault(t).Next == "" {
		t.Errorf("without its session: %d %s, want 404 with what to do", res.status, res.body)
	}
	for range 2 { // the second request changes nothing
		if st := run(http.MethodDelete, waits[0].Run, "?session=lucky-main&reason=enough"); !st.Cancelled {
			t.Errorf("the first that waits is %+v, want it cancelled", st)
		}
	}
	run(http.MethodDelete, slow.Run, "?session=lucky-main")
	u.stream("lucky-main", "", endOf(waits[len(waits)-1].Run))
	for id, want := range map[string]api.RunOutcome{slow.Run: api.OutcomeConsumed, waits[0].Run: api.OutcomeDropped, waits[1].Run: api.OutcomeConsumed, waits[9].Run: api.OutcomeMerged} {
		if st := run(http.MethodGet, id, ""); st.Status != api.RunEnded || st.Outcome != want || st.Cancelled != (id == slow.Run || id == waits[0].Run) {
			t.Errorf("the end of %s is %+v, want %s", id, st, want)
		}
	}

	own := asked[api.LoopEnd](u.machine, "session", "send", "lucky", "hello", "--session", "new")
	var over api.Session
	one(t, u.call(http.MethodPost, "/v1/sessions/"+own.Session+"/terminate", `{"reason":"done"}`, nil), &over)
	if over.Terminated == 0 || over.Reason != "done" {
		t.Errorf("terminated: %+v", over)
	}
	if res := u.try(http.MethodPost, "/v1/sessions/"+own.Session+"/messages", `{"content":"hi"}`, nil); res.status != http.StatusConflict || res.fault(t).Reason != api.ReasonTerminated {
		t.Errorf("a message after the end: %d %s, want 409", res.status, res.body)
	}
	var g api.Agent
	one(t, u.call(http.MethodPost, "/v1/agents/lucky/sleep", `{"reason":"hush"}`, nil), &g)
	var x api.Explanation
	one(t, u.call(http.MethodGet, "/v1/agents/lucky/explain?limit=3", "", nil), &x)
	if g.State != api.StateSleeping || g.Reason != "hush" || x.Agent.Reason != "hush" || len(x.History) != 3 || x.Next == "" {
		t.Errorf("asleep: %+v, explained: %+v", g, x)
	}
}

// TestAgentCard reads the card of the only agent without the token; with several agents the
// request has to name one.
func TestAgentCard(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up("--empty")
	const path = "/.well-known/agent-card.json"
	if res := get(t, u.HTTP+path, nil); res.status != http.StatusNotFound {
		t.Errorf("without agents: %d %s, want 404", res.status, res.body)
	}
	for _, name := range []string{"Nova", "Vega"} {
		u.born(name)
		var got, want loop.Card
		one(t, get(t, u.HTTP+path+"?agent="+name, nil).body, &got)
		one(t, u.cli("social", "card", name), &want)
		if diff := cmp.Diff(want, got); diff != "" || got.Name != name || !got.Active {
			t.Errorf("the card of %s (-command +route):\n%s", name, diff)
		}
		if res := get(t, u.HTTP+path, nil); name == "Nova" {
			one(t, res.body, &got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the card of the only agent (-command +route):\n%s", diff)
			}
		} else if res.status != http.StatusBadRequest || !strings.Contains(res.fault(t).Next, "?agent=") {
			t.Errorf("with two agents: %d %s, want 400", res.status, res.body)
		}
	}
	if res := get(t, u.HTTP+path+"?agent=ghost", nil); res.status != http.StatusNotFound {
		t.Errorf("of an agent that does not exist: %d %s, want 404", res.status, res.body)
	}
}

// TestHTTPNamesInAnyCase names an agent in another case than its id, with the operator's
// token and with a key of the agent.
func TestHTTPNamesInAnyCase(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	key := strings.TrimSpace(u.run("", "key", "create", "lucky").out)
	for who, credential := range map[string]string{"the operator": u.token, "a key": key} {
		header := map[string]string{"Authorization": credential, "Anima-Agent": "LUCKY"}
		if res := request(t, http.MethodGet, u.HTTP+"/v1/credits/balance?agent=Lucky", "", header); res.status != http.StatusOK {
			t.Errorf("the balance for %s: %d %s", who, res.status, res.body)
		}
		if res := request(t, http.MethodPost, u.HTTP+"/v1/chat/completions", `{"model":"anima-sim-1","messages":[{"role":"user","content":"hello"}]}`, header); res.status != http.StatusOK {
			t.Errorf("a model call for %s: %d %s", who, res.status, res.body)
		}
	}
}
