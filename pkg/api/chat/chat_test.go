package chat_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// measure returns the size of messages that [chat.Check] should return.
func measure(messages []api.ChatMessage) chat.Measure {
	var m chat.Measure
	for _, x := range messages {
		m.Messages++
		m.Tokens += chat.Tokens(x.Content)
		for _, c := range x.ToolCalls {
			m.Calls++
			m.Tokens += chat.Tokens(c.Name) + chat.Tokens(c.Arguments)
		}
	}
	return m
}

func TestEncode(t *testing.T) {
	t.Parallel()
	messages := []api.ChatMessage{
		{Role: "system", Content: "a \"b\" \\ <c>\n\t\x01é"},
		{Role: "user", Content: "do it"},
		{Role: "assistant", ToolCalls: []api.ToolCall{{ID: "a", Name: "exec", Arguments: `{"x":"\n"}`}, {ID: "b", Name: "look", Arguments: "{}"}}},
		{Role: "tool", ToolCallID: "a", Content: "1"},
		{Role: "tool", ToolCallID: "b", Content: "2"},
	}
	want := `[{"role":"system","content":"a \"b\" \\ <c>\n\t\u0001é"},{"role":"user","content":"do it"},` +
		`{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"exec","arguments":"{\"x\":\"\\n\"}"}},` +
		`{"id":"b","type":"function","function":{"name":"look","arguments":"{}"}}]},` +
		`{"role":"tool","content":"1","tool_call_id":"a"},{"role":"tool","content":"2","tool_call_id":"b"}]`
	got := chat.Encode(messages)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if back, err := chat.Decode(got); err != nil || !cmp.Equal(back, messages) {
		t.Errorf("decoded: %+v, %v", back, err)
	}
	if m, ok := chat.Check(got); !ok || m != measure(messages) {
		t.Errorf("got %+v, %v; want that it is normal and %+v", m, ok, measure(messages))
	}
}

func TestEncodeTools(t *testing.T) {
	t.Parallel()
	tools := []api.Tool{{Name: "exec", Description: "Run\nit.", Schema: []byte(`{"type": "object"}`)}, {Name: "look", Strict: true}}
	got, err := chat.EncodeTools(tools)
	want := `[{"type":"function","function":{"name":"exec","description":"Run\nit.","parameters":{"type": "object"}}},{"type":"function","function":{"name":"look","strict":true}}]`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if back, err := chat.DecodeTools(got); err != nil || !cmp.Equal(back, tools) {
		t.Errorf("decoded: %+v, %v", back, err)
	}
	if _, err := chat.EncodeTools([]api.Tool{{Name: "bad", Schema: []byte("{")}}); err == nil {
		t.Error("a schema that is no JSON is encoded")
	}
}

// TestCheckRefuses checks that Check refuses messages that are not normal, that have
// another form or that are not JSON.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	const system, user = `{"role":"system","content":"S"}`, `{"role":"user","content":"U"}`
	call := func(id, name, arguments string) string {
		return `{"role":"assistant","tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"` + name + `","arguments":"` + arguments + `"}}]}`
	}
	result := func(id string) string { return `{"role":"tool","content":"R","tool_call_id":"` + id + `"}` }
	const said = `{"role":"assistant","content":"A"}`
	list := func(all ...string) string { return "[" + strings.Join(all, ",") + "]" }
	if m, ok := chat.Check([]byte(list(system, user, call("a", "x", "{}"), result("a")))); !ok || m.Messages != 4 || m.Calls != 1 {
		t.Fatalf("what is normal is refused: %+v", m)
	}
	for name, text := range map[string]string{
		"nothing":                          ``,
		"no message":                       `[]`,
		"no user":                          list(system),
		"the assistant last":               list(user, said),
		"the assistant first":              list(said, user),
		"two messages of the user":         list(user, user),
		"a user after a result":            list(user, call("a", "x", "{}"), result("a"), user),
		"system text later":                list(user, system),
		"a call without a result":          list(user, call("a", "x", "{}")),
		"a result without a call":          list(user, result("a")),
		"another call's result":            list(user, call("a", "x", "{}"), result("b")),
		"an id twice":                      list(user, call("a", "x", "{}"), result("a"), call("a", "x", "{}"), result("a")),
		"an invalid id":                    list(user, call("a b", "x", "{}"), result("a b")),
		"an empty name":                    list(user, call("a", "", "{}"), result("a")),
		"arguments that are not an object": list(user, call("a", "x", "[1]"), result("a")),
		"arguments that are not JSON":      list(user, call("a", "x", `{\"`), result("a")),
		"a blank text":                     list(user, `{"role":"assistant","content":" \n\u000b"}`, user),
		"a no-break space":                 list(user, "{\"role\":\"assistant\",\"content\":\"\u00a0\"}", user),
		"an unknown role":                  list(`{"role":"critic","content":"U"}`),
		"text after the list":              list(user) + ` ,"model":"dear"`,
		"an unknown field":                 list(`{"role":"user","content":"U","name":"x"}`),
		"space between":                    list(` ` + user),
		"a string that does not end":       `[{"role":"user","content":"U`,
		"an escape that does not end":      `[{"role":"user","content":"U\`,
		"an invalid escape":                list(`{"role":"user","content":"\x"}`),
		"a newline in a string":            list("{\"role\":\"user\",\"content\":\"a\nb\"}"),
		"not UTF-8":                        list("{\"role\":\"user\",\"content\":\"a\xffb\"}"),
		"a content that is not a string":   list(`{"role":"user","content":null}`),
	} {
		if m, ok := chat.Check([]byte(text)); ok {
			t.Errorf("%s: taken as %+v: %s", name, m, text)
		}
	}
}

// TestManyParts merges, decodes and checks prompts with so many parts that quadratic time
// would take minutes.
func TestManyParts(t *testing.T) {
	t.Parallel()
	const n = 100_000
	said := "a message of about fifty bytes from the same user."
	want := strings.Repeat(said+"\n", n-1) + said
	messages := make([]api.ChatMessage, n)
	for i := range messages {
		messages[i] = api.ChatMessage{Role: chat.User, Content: said}
	}
	if merged, err := chat.Merge(messages); err != nil || len(merged) != 1 || merged[0].Content != want {
		t.Errorf("merged to %d messages, %v; want one", len(merged), err)
	}
	part := `{"type":"text","text":"` + said + `"}`
	decoded, err := chat.Decode([]byte(`[{"role":"user","content":[` + strings.Repeat(part+",", n-1) + part + `]}]`))
	if err != nil || len(decoded) != 1 || decoded[0].Content != want {
		t.Errorf("decoded to %d messages, %v; want one", len(decoded), err)
	}

	prompt := []api.ChatMessage{{Role: chat.User, Content: "go"}, {Role: chat.Assistant}}
	for i := range n {
		id := strconv.Itoa(i)
		prompt[1].ToolCalls = append(prompt[1].ToolCalls, api.ToolCall{ID: id, Name: "f", Arguments: "{}"})
		prompt = append(prompt, api.ChatMessage{Role: chat.ToolRole, ToolCallID: id, Content: "ok"})
	}
	if m, ok := chat.Check(chat.Encode(prompt)); !ok || m.Calls != n {
		t.Errorf("check: %v with %d calls, want true with %d", ok, m.Calls, n)
	}
	for _, same := range []int{1, n / 2} { // among the few that are compared, and beyond
		other := slices.Clone(prompt)
		other[1].ToolCalls = slices.Clone(prompt[1].ToolCalls)
		other[1].ToolCalls[same].ID, other[2+same].ToolCallID = "0", "0"
		if _, ok := chat.Check(chat.Encode(other)); ok {
			t.Errorf("check: two calls have an id, the first and number %d; want false", same)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	var messages []api.ChatMessage
	messages = append(messages, api.ChatMessage{Role: "system", Content: strings.Repeat("You are an agent. \"Mind\" the rules.\n", 500)})
	for range 10 {
		messages = append(messages, api.ChatMessage{Role: "user", Content: strings.Repeat("go on ", 100)}, api.ChatMessage{Role: "assistant", Content: strings.Repeat("yes ", 100)})
	}
	messages = append(messages, api.ChatMessage{Role: "user", Content: "and now?"})
	encoded := chat.Encode(messages)
	b.SetBytes(int64(len(encoded)))
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(encoded)))
		for b.Loop() {
			chat.Encode(messages)
		}
	})
	b.Run("normalize", func(b *testing.B) {
		for b.Loop() {
			chat.Normalize(messages, true)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.SetBytes(int64(len(encoded)))
		for b.Loop() {
			if _, ok := chat.Check(encoded); !ok {
				b.Fatal("not normal")
			}
		}
	})
}
