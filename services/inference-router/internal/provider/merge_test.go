package provider_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// TestMerge checks the vector V-17 (docs/reference/inference-router.md, Test vectors).
func TestMerge(t *testing.T) {
	t.Parallel()
	in := []api.ChatMessage{
		{Role: "system", Content: "S1"},
		{Role: "system", Content: "S2"},
		{Role: "user", Content: "A"},
		{Role: "user", Content: "B"},
		{Role: "assistant", Content: "c1", ToolCalls: []api.ToolCall{{ID: "1"}}},
		{Role: "assistant", Content: "c2", ToolCalls: []api.ToolCall{{ID: "2"}}},
		{Role: "tool", Content: "r1", ToolCallID: "1"},
		{Role: "tool", Content: "r2", ToolCallID: "2"},
		{Role: "user", Content: "D"},
	}
	want := []api.ChatMessage{
		in[0], in[1],
		{Role: "user", Content: "A\nB"},
		{Role: "assistant", Content: "c1\nc2", ToolCalls: []api.ToolCall{{ID: "1"}, {ID: "2"}}},
		in[6], in[7], in[8],
	}
	got, err := chat.Merge(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in[2].Content != "A" || len(in[4].ToolCalls) != 1 {
		t.Error("the input changed")
	}
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	if _, err := chat.Merge(nil); !errors.Is(err, chat.ErrNoMessages) {
		t.Errorf("empty: got %v, want %v", err, chat.ErrNoMessages)
	}
	if _, err := chat.Merge([]api.ChatMessage{{Role: "developer"}}); err == nil {
		t.Error("unknown role: got no error")
	}
}

func TestMergeKeepsEveryCallAndAlternates(t *testing.T) {
	t.Parallel()
	roles := rapid.SampledFrom([]string{"system", "user", "assistant", "tool"})
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) api.ChatMessage {
			m := api.ChatMessage{Role: roles.Draw(t, "role"), Content: rapid.StringN(0, 3, -1).Draw(t, "content")}
			if m.Role == chat.Assistant {
				for range rapid.IntRange(0, 2).Draw(t, "calls") {
					m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: rapid.String().Draw(t, "id")})
				}
			}
			return m
		}), 1, 20).Draw(t, "messages")
		out, err := chat.Merge(in)
		if err != nil {
			t.Fatal(err)
		}
		var before, after []string
		for _, m := range in {
			for _, c := range m.ToolCalls {
				before = append(before, c.ID)
			}
		}
		for i, m := range out {
			for _, c := range m.ToolCalls {
				after = append(after, c.ID)
			}
			if i > 0 && m.Role == out[i-1].Role && (m.Role == chat.User || m.Role == chat.Assistant) {
				t.Fatalf("messages %d and %d are both of %s", i-1, i, m.Role)
			}
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("calls (-in +out):\n%s", diff)
		}
	})
}
