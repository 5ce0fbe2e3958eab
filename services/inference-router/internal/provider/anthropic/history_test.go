package anthropic_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic/anthropictest"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
)

func TestHistories(t *testing.T) {
	t.Parallel()
	providertest.RunHistories(t, func(t *testing.T) (provider.Provider, func() []provider.Message) {
		var got anthropictest.Request
		p := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var refused error
			if got, refused = anthropictest.Decode(r.Body); refused != nil {
				anthropictest.WriteError(w, http.StatusBadRequest, "invalid_request_error", refused.Error())
				return
			}
			play(events(`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`)).ServeHTTP(w, r)
		}))
		return p, func() []provider.Message { return got.Neutral().Messages }
	})
}

// TestUnparsedArguments checks how arguments that are not an object are sent in a history
// that was not normalised.
func TestUnparsedArguments(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string]string{
		``: `{}`, `{"a": 1}`: `{"a": 1}`, `[1]`: `{"value":[1]}`, `"x"`: `{"value":"x"}`, `null`: `{"value":null}`, `{"a`: `{"_raw":"{\"a"}`,
	} {
		data, err := anthropic.Body(provider.Request{Model: "m", Messages: []provider.Message{
			{Role: provider.User, Content: "a"},
			{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: arguments}}},
			{Role: provider.ToolRole, ToolCallID: "c1", Content: "b"},
		}, Tools: providertest.Tools()})
		if err != nil {
			t.Fatal(err)
		}
		req, err := anthropictest.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(req.Messages[1].Content[0].Input); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s: got %s, want %s", arguments, got, want)
		}
	}
}

// TestCachedPrefix checks that a longer conversation has the encoding of a shorter one as
// its beginning, except for the marks, and how many marks there are.
func TestCachedPrefix(t *testing.T) {
	t.Parallel()
	messages := []provider.Message{{Role: provider.System, Content: "be brief"}, {Role: provider.User, Content: "a"}}
	encode := func() string {
		data, err := anthropic.Body(provider.Request{Model: "m", Messages: messages, Tools: providertest.Tools()})
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(data, []byte(`"cache_control":{"type":"ephemeral"}`)); n != 3 {
			t.Errorf("got %d cache marks, want 3: %s", n, data)
		}
		return strings.ReplaceAll(string(data), `,"cache_control":{"type":"ephemeral"}`, "")
	}
	before, _, _ := strings.Cut(encode(), `],"stream"`)
	messages = append(messages, provider.Message{Role: provider.Assistant, Content: "b"}, provider.Message{Role: provider.User, Content: "c"})
	if after := encode(); !strings.HasPrefix(after, before) {
		t.Errorf("got %s, want the beginning %s", after, before)
	}
}

// FuzzBody checks that a strict server accepts every normalised conversation.
func FuzzBody(f *testing.F) {
	f.Add([]byte("us\x00assistant calls\x01"), true)
	f.Fuzz(func(t *testing.T, data []byte, tools bool) {
		req := provider.Request{Model: "m", Messages: chat.Normalize(conversation(data), tools)}
		if tools {
			req.Tools = providertest.Tools()
		}
		sent, err := anthropic.Body(req)
		if err != nil {
			t.Fatalf("%v: %+v", err, req.Messages)
		}
		if _, err := anthropictest.Decode(bytes.NewReader(sent)); err != nil {
			t.Fatalf("%v: %s", err, sent)
		}
	})
}

// conversation returns messages made from bytes: each message takes a byte for its role
// and texts up to the next zero byte.
func conversation(data []byte) (all []provider.Message) {
	roles := []string{provider.System, provider.User, provider.Assistant, provider.ToolRole, "critic"}
	for part := range bytes.SplitSeq(data, []byte{0}) {
		if len(part) == 0 {
			continue
		}
		m := provider.Message{Role: roles[int(part[0])%len(roles)], Content: string(part[1:])}
		if m.Role == provider.ToolRole {
			m.ToolCallID = string(part[1:min(len(part), 3)])
		}
		if m.Role == provider.Assistant && len(part) > 2 {
			for c := range bytes.SplitSeq(part[1:], []byte{','}) {
				m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: string(c), Name: string(c), Arguments: string(c)})
			}
		}
		all = append(all, m)
	}
	return all
}
