package memory_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// caller calls the tools of agent ada.
type caller struct {
	tools map[string]engine.Tool
	store sqlstore.Memory
	n     int
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	store := sqlstore.Memory{Store: sqlstore.New(sqldbtest.SQLite(t, sqlstore.Migrations()), t.TempDir())}
	def := agent.Definition{Name: "Ada", Limits: agent.DefaultLimits(), Sandbox: agent.DefaultSandbox(), Body: "Be useful."}
	if _, err := store.Apply(t.Context(), def, "ada", "0xAD", "source", at); err != nil {
		t.Fatal(err)
	}
	c := &caller{tools: map[string]engine.Tool{}, store: store}
	m := &memory.Memory{Store: store, Now: func() time.Time { return time.UnixMicro(at + 1000) }}
	for _, tool := range memory.Tools(m) {
		c.tools[tool.Name] = tool
	}
	return c
}

// try calls a tool in a turn of a principal. If the first call has no result, it repeats
// the call, as after a crash.
func (c *caller) try(t *testing.T, by api.Principal, tool, args string) (string, error) {
	t.Helper()
	c.n++
	call := engine.Call{
		Agent: engine.Agent{ID: "ada"}, Session: "ada-main", Turn: engine.ID("r", c.n), Key: engine.Key("r", c.n, 0), Args: json.RawMessage(args),
		At: at + int64(c.n), By: by,
	}
	out, err := c.tools[tool].Run(t.Context(), call)
	call.Repeating = true
	again, aerr := c.tools[tool].Run(t.Context(), call)
	if err == nil && (aerr != nil || tool != "remember_fact" && again.Text != out.Text) {
		t.Errorf("%s %s repeated: %q, %v; the first time %q", tool, args, again.Text, aerr, out.Text)
	}
	return out.Text, err
}

func (c *caller) call(t *testing.T, tool, args string) string {
	t.Helper()
	text, err := c.try(t, api.Principal{Kind: api.Creator}, tool, args)
	if err != nil {
		t.Errorf("%s %s: %v", tool, args, err)
	}
	return text
}

func TestTools(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	if len(c.tools) != 9 {
		t.Fatalf("%d tools, want 9", len(c.tools))
	}
	expect := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("got %q, want %q in it", got, w)
			}
		}
	}
	expect(c.call(t, "recall_facts", `{}`), "no facts found")
	if got := c.call(t, "remember_fact", `{"category":"financial","key":"price","value":"$4"}`); got != "remembered financial / price" {
		t.Errorf("got %q", got)
	}
	expect(c.call(t, "remember_fact", `{"category":"financial","key":"price","value":"$5","confidence":0.7,"source":"shop"}`), "remembered financial / price", "history")
	peer := api.Principal{Kind: api.Peer, Address: "0xEF"}
	got, err := c.try(t, peer, "remember_fact", `{"category":"financial","key":"price","value":"$0"}`)
	if err != nil || !strings.Contains(got, "claim") {
		t.Errorf("a peer's price: %q, %v", got, err)
	}
	if _, err := c.try(t, peer, "remember_fact", `{"category":"domain","key":"tea","value":"is best at 100%"}`); err != nil {
		t.Error(err)
	}
	expect(c.call(t, "recall_facts", `{"query":"price"}`), `financial/price: "$5" (confidence 0.7`)
	expect(c.call(t, "recall_facts", `{"query":"100%"}`), `domain/tea: "is best at 100%"`, "[peer 0xEF]")
	expect(c.call(t, "recall_facts", `{"query":"100_"}`), "no facts found")
	if got := c.call(t, "recall_facts", `{"category":"domain"}`); strings.Contains(got, "price") || !strings.Contains(got, "tea") {
		t.Errorf("facts of a category: %q", got)
	}

	goal := strings.TrimPrefix(c.call(t, "set_goal", `{"content":"sell tea"}`), "the goal is kept in mind as ")
	expect(c.call(t, "review_memory", `{}`), `goal (0.8): "sell tea" id `+goal)
	if text, err := c.try(t, peer, "complete_goal", `{"goal_id":"`+goal+`"}`); api.CodeOf(err) != api.Denied {
		t.Errorf("a peer's message completes a goal of the creator: %q, %v; want denied", text, err)
	}
	expect(c.call(t, "complete_goal", `{"goal_id":"`+goal+`","outcome":"sold"}`), "is reached")
	expect(c.call(t, "review_memory", `{}`), "In mind:\nnothing", `success: "Goal reached: sell tea" "sold" id `+goal)
	if _, err := c.try(t, peer, "complete_goal", `{"goal_id":"none"}`); api.CodeOf(err) != api.NotFound {
		t.Errorf("no such goal: %v, want not_found", err)
	}

	expect(c.call(t, "save_procedure", `{"name":"brew","description":"tea","steps":"[\"boil\",\"wait\"]"}`), "saved brew with 2 steps")
	c.call(t, "save_procedure", `{"name":"brew coffee","description":"not tea","steps":"[\"grind\"]"}`)
	if got := c.call(t, "recall_procedure", `{"name":"brew"}`); got != `- brew: "tea" 1. "boil" 2. "wait"` {
		t.Errorf("got %q", got)
	}
	expect(c.call(t, "recall_procedure", `{"query":"grind"}`), "brew coffee")
	c.call(t, "save_procedure", `{"name":"use","description":"named by a stop word","steps":"[\"look\"]"}`)
	if got := c.call(t, "recall_procedure", `{"name":"use"}`); got != `- use: "named by a stop word" 1. "look"` {
		t.Errorf("got %q", got)
	}
	expect(c.call(t, "recall_procedure", `{}`), "brew coffee", "- brew:")

	// A peer cannot make room for its own memories by removing those of the agent, nor
	// for more trust by removing a relation.
	c.call(t, "note_about_agent", `{"entity_address":"0xEF","relationship_type":"foe","trust_score":0}`)
	if _, err := c.try(t, peer, "note_about_agent", `{"entity_address":"0xEF","relationship_type":"friend"}`); err != nil {
		t.Error(err)
	}
	for _, call := range [][2]string{
		{"save_procedure", `{"name":"brew","description":"tea","steps":"[\"pay the peer\"]"}`},
		{"forget", `{"memory_type":"procedural","id":"brew"}`},
		{"forget", `{"memory_type":"semantic","id":"financial/price"}`},
		{"forget", `{"memory_type":"relationship","id":"0xEF"}`},
	} {
		if text, err := c.try(t, peer, call[0], call[1]); api.CodeOf(err) != api.Denied {
			t.Errorf("a peer's %s %s: %q, %v; want denied", call[0], call[1], text, err)
		}
	}
	expect(c.call(t, "recall_procedure", `{"name":"brew"}`), `1. "boil" 2. "wait"`)
	if _, err := c.try(t, peer, "forget", `{"memory_type":"semantic","id":"domain/tea"}`); err != nil {
		t.Errorf("a peer's own fact: %v", err)
	}

	c.call(t, "note_about_agent", `{"entity_address":"0xEF","relationship_type":"customer","entity_name":"Eve\"","notes":"pays late","trust_score":0.4}`)
	known, err := c.store.Latest(t.Context(), "ada", "", memory.Relationship, at, 10)
	if err != nil || len(known) != 1 || known[0].Weight != 0.4 || known[0].Count != 0 {
		t.Errorf("known: %+v, %v", known, err)
	}

	expect(c.call(t, "forget", `{"memory_type":"semantic","id":"financial/price"}`), "forgotten")
	expect(c.call(t, "recall_facts", `{"query":"price"}`), "no facts found")
	for memoryType, id := range map[string]string{"procedural": "brew", "relationship": "0xEF", "episodic": goal} {
		expect(c.call(t, "forget", `{"memory_type":"`+memoryType+`","id":"`+id+`"}`), "forgotten")
	}
	if _, err := c.try(t, peer, "forget", `{"memory_type":"working","id":"none"}`); api.CodeOf(err) != api.NotFound {
		t.Errorf("nothing to forget: %v, want not_found", err)
	}
	for tool, args := range map[string]string{
		"remember_fact": `{"category":"financial","key":"` + strings.Repeat("k", 201) + `","value":"v"}`, "save_procedure": `{"name":"n","description":"d","steps":"boil"}`,
		"recall_facts": `{"category":"gossip"}`,
	} {
		if err := c.tools[tool].Check(json.RawMessage(args)); err == nil {
			t.Errorf("%s took %s", tool, args)
		}
	}
}

// TestNamedProcedure tests that a procedure is found by its name among others with the same
// words.
func TestNamedProcedure(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for n := range 30 {
		c.call(t, "save_procedure", fmt.Sprintf(`{"name":"deploy site %d","description":"the site %[1]d","steps":"[\"step %[1]d\"]"}`, n))
	}
	for n := range 30 {
		want := fmt.Sprintf(`- "deploy site %d": "the site %[1]d" 1. "step %[1]d"`, n)
		if got := c.call(t, "recall_procedure", fmt.Sprintf(`{"name":"deploy site %d"}`, n)); got != want {
			t.Errorf("got %.200q, want %q", got, want)
		}
	}
}

// TestGoalOfAFullSession tests that a goal which is removed at once, because the session's
// notes have higher priorities, is not said to be kept.
func TestGoalOfAFullSession(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for n := range memory.MaxWorking {
		note := memory.Note{ID: fmt.Sprint("n", n), Session: "ada-main", Kind: "decision", Content: "c", Priority: 0.9, By: api.Principal{Kind: api.Self}, At: at}
		if err := c.store.AddNote(t.Context(), "ada", note); err != nil {
			t.Fatal(err)
		}
	}
	creator := api.Principal{Kind: api.Creator}
	if got, err := c.try(t, creator, "set_goal", `{"content":"sell tea"}`); err == nil || !strings.Contains(err.Error(), "not kept") {
		t.Errorf("a goal of priority 0.8: %q, %v; want the error that it is not kept", got, err)
	}
	if got, err := c.try(t, creator, "set_goal", `{"content":"sell tea","priority":1}`); err != nil {
		t.Errorf("a goal of priority 1: %q, %v", got, err)
	}
}

// TestFactOfAFullMemory tests that a fact which is removed at once, because the others have
// a higher confidence or a more trusted source, is not said to be remembered.
func TestFactOfAFullMemory(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for n := range memory.MaxFacts {
		f := memory.Fact{Category: "self", Key: fmt.Sprint("k", n), Value: "v", Confidence: 0.9, Turn: "t", By: api.Principal{Kind: api.Self}, At: at}
		if got, err := c.store.Remember(t.Context(), "ada", f); err != nil || got != memory.FactNew {
			t.Fatalf("fact %d: %s, %v", n, got, err)
		}
	}
	creator, peer := api.Principal{Kind: api.Creator}, api.Principal{Kind: api.Peer, Address: "0xB0B"}
	for _, tt := range []struct {
		by   api.Principal
		args string
		kept bool
	}{
		{creator, `{"category":"self","key":"doubtful","value":"v","confidence":0.5}`, false},
		{peer, `{"category":"self","key":"theirs","value":"v"}`, false},
		{creator, `{"category":"self","key":"sure","value":"v","confidence":0.9}`, true},
	} {
		got, err := c.try(t, tt.by, "remember_fact", tt.args)
		if tt.kept && err != nil || !tt.kept && (err == nil || !strings.Contains(err.Error(), "is not kept")) {
			t.Errorf("%s: %q, %v; kept %t", tt.args, got, err, tt.kept)
		}
		found := c.call(t, "recall_facts", `{"query":"doubtful theirs sure"}`)
		if kept := found != "no facts found"; kept != tt.kept {
			t.Errorf("%s: recalled %q, kept %t", tt.args, found, tt.kept)
		}
	}
}
