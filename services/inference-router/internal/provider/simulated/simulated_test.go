package simulated_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
)

func parse(t testing.TB, script string) *simulated.Provider {
	t.Helper()
	s, err := simulated.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return newProvider(t, s)
}

func byDefault(t testing.TB) *simulated.Provider {
	t.Helper()
	s, err := simulated.Default()
	if err != nil {
		t.Fatal(err)
	}
	return newProvider(t, s)
}

func newProvider(t testing.TB, s simulated.Script) *simulated.Provider {
	t.Helper()
	p, err := simulated.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestModels(t *testing.T) {
	t.Parallel()
	got, err := parse(t, `{"model":"m","aliases":["b","a"]}`).Models(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]provider.Listed{{ID: "m"}, {ID: "b"}, {ID: "a"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var allTools = []provider.Tool{
	{Name: "write_file"}, {Name: "exec"}, {Name: "check_credits"}, {Name: "remember_fact"}, {Name: "send_message"}, {Name: "sleep"},
}

// converse runs a conversation to its end as loop would: it answers each tool call with
// "result of <tool>".
func converse(t *testing.T, p provider.Provider, text string) []provider.Response {
	t.Helper()
	req := provider.Request{
		Model:    "anima-sim-1",
		Messages: []provider.Message{{Role: provider.System, Content: "you are an agent"}, {Role: provider.User, Content: text}},
		Tools:    allTools,
	}
	var all []provider.Response
	for range 10 {
		res, err := p.Complete(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, res)
		if len(res.ToolCalls) == 0 {
			return all
		}
		req.Messages = append(req.Messages, provider.Message{Role: provider.Assistant, Content: res.Text, ToolCalls: res.ToolCalls})
		for _, c := range res.ToolCalls {
			req.Messages = append(req.Messages, provider.Message{Role: provider.ToolRole, ToolCallID: c.ID, Content: "result of " + c.Name})
		}
	}
	t.Fatalf("%q does not come to an end", text)
	return nil
}

func TestDefaultScript(t *testing.T) {
	t.Parallel()
	p := byDefault(t)
	const peer = "0x00000000000000000000000000000000000000Aa"
	for _, c := range []struct {
		text  string
		calls []string // names and arguments, in order
		last  string   // a part of the final text
	}{
		{"Research the history of tea.", []string{
			"write_file Research the history", `exec {"command":"wc -w notes.txt"}`, "check_credits {}", "remember_fact history of tea",
		}, "notes.txt"},
		{"do something forbidden and write it down", []string{`exec {"command":"rm -rf /"}`, `exec {"command":"cat ~/.ssh/id_rsa"}`}, "result of exec"},
		{"go to sleep", []string{`sleep {"duration_seconds":60,"reason":"asked to sleep"}`}, "sleep"},
		{"tell " + peer + ": good \"work\"", []string{`send_message {"content":"good \"work\"","to_address":"` + peer + `"}`}, "result of send_message"},
		{"Greet " + peer, []string{`send_message {"content":"Hello from a fellow agent.","to_address":"` + peer + `"}`}, peer},
		{"[message from peer " + peer + "]\n> tell 0x1 to sleep", nil, `from ` + peer + `: "tell 0x1 to sleep"`},
		{"[wake] inbox\n\n[message from peer " + peer + " (bob)]\n> write to me", nil, `"write to me"`},
		{"[wake] alarm: slept enough", nil, "awake (alarm: slept enough)"},
		{"hello {{.User}}", nil, `"hello {{.User}}"`},
	} {
		all := converse(t, p, c.text)
		var calls []provider.ToolCall
		for _, res := range all {
			calls = append(calls, res.ToolCalls...)
		}
		if len(calls) != len(c.calls) {
			t.Errorf("%q: got calls %+v, want %q", c.text, calls, c.calls)
			continue
		}
		for i, want := range c.calls {
			name, arguments, _ := strings.Cut(want, " ")
			if calls[i].Name != name || !strings.Contains(calls[i].Arguments, arguments) {
				t.Errorf("%q: call %d: got %s %s, want %s", c.text, i, calls[i].Name, calls[i].Arguments, want)
			}
		}
		if last := all[len(all)-1]; !strings.Contains(last.Text, c.last) || last.Finish != provider.FinishStop {
			t.Errorf("%q: got %q (%s), want %q in it", c.text, last.Text, last.Finish, c.last)
		}
	}
}

// TestAnswersDependOnTheRequestAlone checks that a restart and a repeated call do not
// change the answers.
func TestAnswersDependOnTheRequestAlone(t *testing.T) {
	t.Parallel()
	const text = "write about rivers"
	first := byDefault(t)
	one, two := converse(t, first, text), converse(t, first, text)
	three := converse(t, byDefault(t), text)
	if diff := cmp.Diff(one, two); diff != "" {
		t.Errorf("again (-first +again):\n%s", diff)
	}
	if diff := cmp.Diff(one, three); diff != "" {
		t.Errorf("after a restart (-first +again):\n%s", diff)
	}
	ids := map[string]bool{}
	for _, res := range one {
		for _, c := range res.ToolCalls {
			if ids[c.ID] || !strings.HasPrefix(c.ID, "call_") {
				t.Errorf("call id %q comes twice or is odd", c.ID)
			}
			ids[c.ID] = true
		}
	}
}

func TestToolsThatAreNotOffered(t *testing.T) {
	t.Parallel()
	p := byDefault(t)
	req := provider.Request{Model: "anima-sim-1", Messages: []provider.Message{{Role: provider.User, Content: "write"}}}
	res, err := p.Complete(t.Context(), req, nil)
	if err != nil || res.ToolCalls != nil || !strings.HasPrefix(res.Text, "Done.") {
		t.Errorf("none: got %+v, %v; want the final words", res, err)
	}
	req.Tools = []provider.Tool{{Name: "check_credits"}}
	res, err = p.Complete(t.Context(), req, nil)
	if err != nil || len(res.ToolCalls) != 1 || res.ToolCalls[0].Name != "check_credits" {
		t.Errorf("one: got %+v, %v; want check_credits first", res, err)
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	const script = `{"model":"anima-sim-1","rules":[
		{"when":{"system":"pirate"},"steps":[{"text":"Arr."}]},
		{"when":{"last_user":"^count"},"steps":[{"text":"one"},{"text":"two after {{.ToolResult}}"}]},
		{"when":{"last_user":"^calls"},"steps":[{"tool_calls":[
			{"name":"exec","arguments":{"list":["{{.User}}",{"n":12345678901234567890}],"flag":true}},{"name":"sleep"},{"name":"not_offered"}]}]}]}`
	p := parse(t, script)
	history := func(roles ...string) []provider.Message {
		var out []provider.Message
		for _, r := range roles {
			role, content, _ := strings.Cut(r, ":")
			out = append(out, provider.Message{Role: role, Content: content})
		}
		return out
	}
	for _, c := range []struct {
		messages []provider.Message
		want     string
	}{
		{history("user:count"), "one"},
		{history("user:old", "assistant:a", "user:count"), "one"},
		{history("user:count", "assistant:one"), "two after "},
		{history("user:count", "assistant:one", "system:x", "assistant:two", "system:x"), "two after "},
		{history("system:be a pirate", "user:count"), "Arr."},
		{history("user:other"), "Done."},
		{history("user:calls", "assistant:x"), "Done."},
	} {
		res, err := p.Complete(t.Context(), provider.Request{Model: "anima-sim-1", Messages: c.messages}, nil)
		if err != nil || res.Text != c.want {
			t.Errorf("%v: got %q, %v; want %q", c.messages, res.Text, err, c.want)
		}
	}
	res, err := p.Complete(t.Context(), provider.Request{Model: "anima-sim-1", Messages: history(`user:calls "quoted"`), Tools: allTools}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []provider.ToolCall{
		{Name: "exec", Arguments: `{"flag":true,"list":["calls \"quoted\"",{"n":12345678901234567890}]}`},
		{Name: "sleep", Arguments: `{}`},
	}
	if diff := cmp.Diff(want, res.ToolCalls, cmpopts.IgnoreFields(provider.ToolCall{}, "ID")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOutputLimitHolds(t *testing.T) {
	t.Parallel()
	p := byDefault(t)
	for _, limit := range []int64{1, 5, 20, 40, 80, 200} {
		req := provider.Request{Model: "anima-sim-1", Messages: []provider.Message{{Role: provider.User, Content: "write 日本語"}}, Tools: allTools, MaxTokens: limit}
		res, err := p.Complete(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.Usage.Output > limit || res.Usage.Estimated || res.Usage.Input != req.Estimate() {
			t.Errorf("limit %d: got usage %+v, prompt %d", limit, res.Usage, req.Estimate())
		}
		if whole := len(res.ToolCalls) == 1; whole != (res.Finish == provider.FinishToolCalls) || (!whole && res.Finish != provider.FinishLength) {
			t.Errorf("limit %d: got %d calls, finish %s", limit, len(res.ToolCalls), res.Finish)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	const script = `{"model":"anima-sim-1","context_window":100,"rules":[
		{"when":{"last_user":"twice"},"steps":[{"text":"at last","error":{"status":429,"retry_after":3,"code":"rate_limit_exceeded","times":2}}]},
		{"when":{"last_user":"always"},"steps":[{"error":{"status":503}}]}]}`
	p := parse(t, script)
	complete := func(req provider.Request) (provider.Response, error) { return p.Complete(t.Context(), req, nil) }
	say := func(text string) provider.Request {
		return provider.Request{Model: "anima-sim-1", Messages: []provider.Message{{Role: provider.User, Content: text}}}
	}
	for i := range 2 {
		_, err := complete(say("twice"))
		var e *provider.Error
		if !errors.As(err, &e) || e.Kind != provider.RateLimited || e.RetryAfter != 3*time.Second {
			t.Errorf("time %d: got %v, want a rate limit", i+1, err)
		}
	}
	if res, err := complete(say("twice")); err != nil || res.Text != "at last" {
		t.Errorf("third time: got %q, %v", res.Text, err)
	}
	other := say("x")
	other.Model = "gpt-5.2"
	orphan := say("x")
	orphan.Messages = append(orphan.Messages, provider.Message{Role: provider.ToolRole, ToolCallID: "c"})
	unanswered := say("x")
	unanswered.Messages = append(unanswered.Messages, provider.Message{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c", Name: "exec"}}})
	interrupted := unanswered
	interrupted.Messages = append(interrupted.Messages[:2:2], provider.Message{Role: provider.User, Content: "y"})
	for name, c := range map[string]struct {
		req  provider.Request
		want provider.Kind
	}{
		"always":      {say("always"), provider.RetrySame},
		"other model": {other, provider.NoModel},
		"too long":    {say(strings.Repeat("x", 500)), provider.ContextTooLong},
		"orphan":      {orphan, provider.Fatal},
		"unanswered":  {unanswered, provider.Fatal},
		"interrupted": {interrupted, provider.Fatal},
	} {
		if _, err := complete(c.req); provider.KindOf(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

// TestDelaysEnd checks that delays end with the context and that an answer that broke off
// has the text that was sent.
func TestDelaysEnd(t *testing.T) {
	t.Parallel()
	const whole = "a text that is longer than one piece of a stream can be"
	p := parse(t, `{"model":"m","rules":[
		{"when":{"last_user":"slow start"},"steps":[{"text":"x","delay_ms":3600000}]},
		{"when":{"last_user":"slow text"},"steps":[{"text":"`+whole+`","delta_ms":3600000}]}]}`)
	req := func(text string) provider.Request {
		return provider.Request{Model: "m", Messages: []provider.Message{{Role: provider.User, Content: text}}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	res, err := p.Complete(ctx, req("slow start"), nil)
	if !errors.Is(err, context.DeadlineExceeded) || provider.KindOf(err) != provider.Canceled || !cmp.Equal(res, provider.Response{}) {
		t.Errorf("slow start: got %+v, %v, want the deadline", res, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	var said string
	res, err = p.Complete(ctx, req("slow text"), func(text string) error {
		said += text
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || res.Text != said || said == "" || !strings.HasPrefix(whole, said) || !res.Usage.Estimated || res.Usage.Output == 0 {
		t.Errorf("slow text: got %+v, %v, want the text %q", res, err, said)
	}
	refused := errors.New("no more")
	if _, err := p.Complete(t.Context(), req("slow text"), func(string) error { return refused }); !errors.Is(err, refused) || provider.KindOf(err) != provider.Canceled {
		t.Errorf("onDelta fails: got %v, want %v", err, refused)
	}
}

// TestWatch checks that each piece of an answer counts as a token, also without text.
func TestWatch(t *testing.T) {
	t.Parallel()
	p := parse(t, `{"model":"m","default":{"steps":[{"tool_calls":[{"name":"f","arguments":{"a":"a text that is longer than one piece of a stream can be"}}],"delta_ms":3600000}]}}`)
	ctx, stop := provider.Watch(t.Context(), provider.TokenTimeouts{First: time.Hour, Between: time.Millisecond}, nil)
	defer stop()
	req := provider.Request{Model: "m", Messages: []provider.Message{{Role: provider.User, Content: "x"}}, Tools: []provider.Tool{{Name: "f"}}}
	res, err := p.Complete(ctx, req, nil)
	if err == nil || provider.StalledBy(ctx, p.Name()) == nil || len(res.ToolCalls) != 1 || res.ToolCalls[0].Name != "f" {
		t.Errorf("got %+v, %v, want a stalled answer with a part of a call", res, err)
	}
}
