package anthropic_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic"
)

// vector is the input of the vectors V-17.
func vector() []provider.Message {
	return []provider.Message{
		{Role: provider.System, Content: "S1"},
		{Role: provider.System, Content: "S2"},
		{Role: provider.User, Content: "A"},
		{Role: provider.User, Content: "B"},
		{Role: provider.Assistant, Content: "c1", ToolCalls: []provider.ToolCall{{ID: "1", Name: "f", Arguments: `{"n":1}`}}},
		{Role: provider.Assistant, Content: "c2", ToolCalls: []provider.ToolCall{{ID: "2", Name: "g", Arguments: `{"n":2}`}}},
		{Role: provider.ToolRole, Content: "r1", ToolCallID: "1"},
		{Role: provider.ToolRole, Content: "r2", ToolCallID: "2"},
		{Role: provider.User, Content: "D"},
	}
}

// TestVectorsOfBlocks checks the vectors V-17 in the form of blocks: the roles and the
// order are those of the vector, and results are blocks instead of its texts.
func TestVectorsOfBlocks(t *testing.T) {
	t.Parallel()
	merged, err := chat.Merge(vector())
	if err != nil {
		t.Fatal(err)
	}
	data, err := anthropic.Body(provider.Request{Model: "m", MaxTokens: 9, Messages: merged})
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte(`,"cache_control":{"type":"ephemeral"}`), nil)
	var got struct {
		System   json.RawMessage `json:"system"`
		Messages json.RawMessage `json:"messages"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`[{"type":"text","text":"S1"},{"type":"text","text":"S2"}]`, string(got.System)); diff != "" {
		t.Errorf("system (-want +got):\n%s", diff)
	}
	const want = `[{"role":"user","content":[{"type":"text","text":"A\nB"}]},` +
		`{"role":"assistant","content":[{"type":"text","text":"c1\nc2"},` +
		`{"type":"tool_use","id":"1","name":"f","input":{"n":1}},{"type":"tool_use","id":"2","name":"g","input":{"n":2}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r1"},{"type":"tool_result","tool_use_id":"2","content":"r2"},` +
		`{"type":"text","text":"D"}]}]`
	if diff := cmp.Diff(want, string(got.Messages)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if _, err := anthropic.Body(provider.Request{Model: "m"}); !errors.Is(err, chat.ErrNoMessages) {
		t.Errorf("no messages: got %v, want %v", err, chat.ErrNoMessages)
	}
}

// TestVectorsOfText checks the vectors V-17 in the form of texts, which is sent to a server
// that has refused the blocks.
func TestVectorsOfText(t *testing.T) {
	t.Parallel()
	got, err := chat.Merge(chat.Plain(vector()))
	if err != nil {
		t.Fatal(err)
	}
	want := []provider.Message{
		{Role: provider.System, Content: "S1"},
		{Role: provider.System, Content: "S2"},
		{Role: provider.User, Content: "A\nB"},
		{Role: provider.Assistant, Content: "c1\n[tool_call:1] f {\"n\":1}\nc2\n[tool_call:2] g {\"n\":2}"},
		{Role: provider.User, Content: "[tool_result:1] r1\n[tool_result:2] r2\nD"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := chat.Plain([]provider.Message{{Role: provider.ToolRole, Content: "r"}})[0].Content; got != "[tool_result:unknown] r" {
		t.Errorf("without an id: got %q", got)
	}
}
