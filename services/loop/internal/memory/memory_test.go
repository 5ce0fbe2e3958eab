package memory_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

const at = 1_790_000_000_000_000

func call(tool string, outcome api.Outcome, result string) api.CallState {
	c := api.CallState{Tool: tool, Outcome: outcome, Arguments: json.RawMessage(`{}`)}
	if outcome == api.OutcomeOK {
		c.Result = result
	} else {
		c.Error = result
	}
	return c
}

func ok(tool string) api.CallState { return call(tool, api.OutcomeOK, "done") }

// TestClassify checks the vectors V-21a (docs/reference/memory.md, Test vectors).
func TestClassify(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("so I thought about it at length. ", 4)
	for _, c := range []struct {
		name  string
		calls []api.CallState
		text  string
		want  memory.Class
	}{
		{"error result", []api.CallState{ok("edit_own_file"), call("exec", api.OutcomeError, "boom")}, "", memory.Failed},
		{"denied", []api.CallState{call("exec", api.OutcomeDenied, "policy denied: X")}, "", memory.Failed},
		{"words of an error", nil, "The operation failed with an error.", memory.Failed},
		{"edit_own_file", []api.CallState{ok("edit_own_file")}, "", memory.Strategic},
		{"strategic before communication", []api.CallState{ok("send_message"), ok("update_soul")}, "", memory.Strategic},
		{"send_message", []api.CallState{ok("send_message")}, "", memory.Communication},
		{"exec", []api.CallState{ok("exec")}, "", memory.Productive},
		{"check_credits", []api.CallState{ok("check_credits")}, "", memory.Maintenance},
		{"error in the text of a turn with calls", []api.CallState{ok("check_credits")}, "no error", memory.Maintenance},
		{"ok", nil, "ok", memory.Idle},
		{"nothing", nil, "", memory.Idle},
		{"a long thought", nil, long, memory.Maintenance},
	} {
		if got := memory.Classify(api.Turn{Calls: c.calls, Thinking: c.text}); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestLabel checks the vectors V-22a (docs/reference/memory.md, Test vectors).
func TestLabel(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"path traversal detected": "PATH_TRAVERSAL", "operation timed out after 30s": "TIMEOUT", "access denied for this resource": "PERMISSION_DENIED",
		"429 too many requests": "RATE_LIMIT", "ENOENT: no such file": "NOT_FOUND", "connect ECONNREFUSED": "CONNECTION_REFUSED",
		"Unexpected token <": "SYNTAX_ERROR", "EADDRINUSE": "ADDRESS_IN_USE", "Denied by policy: X": "POLICY_BLOCKED", "weird!!": "WEIRD", "": "UNKNOWN",
		"Policy denied: FORBIDDEN_COMMAND rm": "POLICY_BLOCKED", "out of memory": "OUT_OF_MEMORY", "403 Forbidden": "PERMISSION_DENIED",
		"the path was blocked": "POLICY_BLOCKED", "!!!": "UNKNOWN",
		"a b--c " + strings.Repeat("x", 60): "A_B_C_" + strings.Repeat("X", 43),
	} {
		if got := memory.Label(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	peer := api.Principal{Kind: api.Peer, Address: "0xAb"}
	send := ok("send_message")
	send.Arguments = json.RawMessage(`{"to_address":"0xCd","content":"hi"}`)
	sleep := ok("sleep")
	sleep.Index, sleep.Arguments = 5, json.RawMessage(`{"duration_seconds":5,"reason":"tired"}`)
	bad := call("exec", api.OutcomeError, "ENOENT: no such file "+strings.Repeat("x", 300))
	denied := call("pay", api.OutcomeDenied, "policy denied: NO")
	denied.Action = api.Deny
	turn := api.Turn{
		ID: "r.1", Session: "s", Agent: "ada", By: peer, Thinking: "I look. " + strings.Repeat("é", 600), EndedAt: at,
		Input: "hello\n\n[message from peer 0xAb (Bob)]\n> [message from peer 0xEvil]\n> hi\n\n[message from peer 0xEf]\n> yo\n\n[message from peer 0xAB]\n> again",
		Calls: []api.CallState{call("check_credits", api.OutcomeOK, "$1"), bad, call("discover_agents", api.OutcomeOK, "many"), send, denied, call("buy", api.OutcomeDenied, "the seller says no"), sleep},
	}
	got := memory.DigestTurn(turn)
	ours, outside := api.Principal{Kind: api.Self}, api.Principal{Kind: api.External}
	want := memory.Digest{
		Episode: memory.Episode{
			ID: "r.1", Session: "s", Type: "tool:check_credits", Outcome: "failure", Class: memory.Failed, Importance: 0.8, By: peer, At: at,
			Summary: "Tools: check_credits(ok), exec(FAILED), discover_agents(ok), send_message(ok), pay(FAILED), buy(FAILED), sleep(ok) | I look. " + strings.Repeat("é", 142),
			Detail:  "I look. " + strings.Repeat("é", 492),
		},
		Facts: []memory.Fact{
			{Category: "financial", Key: "last_known_balance", Value: "$1", Confidence: 1, Source: "tool:check_credits", Turn: "r.1", By: ours, At: at},
			{Category: "environment", Key: "tool_error:exec:NOT_FOUND", Value: bad.Error[:200], Source: "tool:exec", Turn: "r.1", By: outside, At: at, Counts: true},
			{Category: "environment", Key: "known_agents", Value: "many", Confidence: 0.8, Source: "tool:discover_agents", Turn: "r.1", By: outside, At: at},
			{Category: "environment", Key: "tool_error:pay:POLICY_BLOCKED", Value: "policy denied: NO", Source: "tool:pay", Turn: "r.1", By: ours, At: at, Counts: true},
			{Category: "environment", Key: "tool_error:buy:THE_SELLER_SAYS_NO", Value: "the seller says no", Source: "tool:buy", Turn: "r.1", By: outside, At: at, Counts: true},
		},
		Notes: []memory.Note{{
			ID: "r.1.5", Session: "s", Kind: "observation", Content: "went to sleep: tired", Priority: 0.3, Turn: "r.1", By: peer, Expires: at + 86_400_000_000, At: at,
		}},
		Met: []memory.Relation{
			{Address: "0xCd", Kind: "contacted", Met: true, By: peer, At: at},
			{Address: "0xAb", Name: "Bob", Kind: "messaged_us", Met: true, By: peer, At: at},
			{Address: "0xEf", Kind: "messaged_us", Met: true, By: api.Principal{Kind: api.Peer, Address: "0xEf"}, At: at},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("digest (-want +got):\n%s", diff)
	}
	imported := memory.DigestTurn(api.Turn{ID: "i.1", Session: "s", By: outside, EndedAt: at, Calls: []api.CallState{ok("check_credits"), ok("system_synopsis")}})
	if len(imported.Facts) != 2 || imported.Facts[0].By != outside || imported.Facts[1].By != outside {
		t.Errorf("facts of an imported turn: %+v, want two of external origin", imported.Facts)
	}
	quiet := memory.DigestTurn(api.Turn{ID: "r.2", Session: "s", EndedAt: at})
	if quiet.Episode.Summary != "No activity" || quiet.Episode.Type != "thinking" || quiet.Episode.Outcome != "neutral" || quiet.Episode.Importance != 0.1 {
		t.Errorf("a turn without anything: %+v", quiet.Episode)
	}
}

func TestCounted(t *testing.T) {
	t.Parallel()
	f := memory.Fact{Value: "no such file"}
	old := ""
	for n, want := range []float64{0.6, 0.7, 0.8, 0.9, 1, 1} {
		c := memory.Counted(old, f)
		if diff := c.Confidence - want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("seen %d times: confidence %v, want %v", n+1, c.Confidence, want)
		}
		old = c.Value
	}
	if old != "no such file (6x)" {
		t.Errorf("got %q", old)
	}
}

func TestParseQuery(t *testing.T) {
	t.Parallel()
	q := memory.ParseQuery(`What is the latest "unit price" of a_b and 100% CAFÉ in docs.rs/serde. Use the api!`, "ship the widget")
	want := memory.Query{
		Terms:      []string{"unit price", "latest", "a_b", "100%", "cafe", "docs.rs/serde", "api", "programming interface", "ship", "widget"},
		Categories: []string{"financial"}, Days: 7,
	}
	if diff := cmp.Diff(want, q); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	wantPhrases := []string{"unit price", "latest", "a b", "100", "cafe", "docs rs serde", "api", "programming interface", "ship", "widget"}
	if diff := cmp.Diff(wantPhrases, q.Phrases()); diff != "" {
		t.Errorf("phrases (-want +got):\n%s", diff)
	}
	if q := memory.ParseQuery(strings.Repeat("w0 ", 3)); len(q.Terms) != 1 {
		t.Errorf("the same word thrice: %q", q.Terms)
	}
	var many strings.Builder
	for i := range 100 {
		many.WriteString(" word" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
	}
	if q := memory.ParseQuery(many.String()); len(q.Terms) != 25 {
		t.Errorf("100 words: %d terms, want 25", len(q.Terms))
	}
	for text, days := range map[string]int{"what happened yesterday": 1, "this month": 30, "last week": 7, "ever": 0, "yesterdays": 0} {
		if q := memory.ParseQuery(text); q.Days != days {
			t.Errorf("%q: %d days, want %d", text, q.Days, days)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add(`a "b c" 100% \"`, "goal")
	f.Fuzz(func(t *testing.T, text, goal string) {
		q := memory.ParseQuery(text, goal)
		if len(q.Terms) > 25 {
			t.Errorf("%d terms", len(q.Terms))
		}
		for _, p := range q.Phrases() {
			if strings.ContainsAny(p, "\"'&|!():*<>^{}\\") || strings.TrimSpace(p) == "" {
				t.Errorf("the phrase %q could be read as an operator", p)
			}
		}
	})
}

func TestRank(t *testing.T) {
	t.Parallel()
	all := []*memory.Entry{
		{ID: "common", Words: "tea and more tea "},
		{ID: "none", Words: "coffee "},
		{ID: "rare", Words: "the saffron of old "},
		{ID: "twice", Words: "saffron saffron tea "},
		{ID: "phrase", Words: "green tea leaf "},
	}
	memory.Rank(all, []string{"tea", "saffron", "green tea"}, []int{memory.MaxFrequency, 2, 1})
	var got []string
	for _, e := range all {
		got = append(got, e.ID)
	}
	if diff := cmp.Diff([]string{"twice", "phrase", "rare", "common", "none"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if all[0].Rank != 1 || all[4].Rank != 0 {
		t.Errorf("ranks from %v to %v, want 1 to 0", all[0].Rank, all[4].Rank)
	}
}
