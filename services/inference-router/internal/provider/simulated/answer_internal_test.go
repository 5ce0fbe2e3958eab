package simulated

import (
	"reflect"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// TestDigest checks the digest of requests. Answers and the ids of their calls depend on
// it, so it must not change.
func TestDigest(t *testing.T) {
	t.Parallel()
	const odd = "a \"b\" <c> & \\ é\u2028\xff\x00\t\n"
	call := provider.ToolCall{ID: "1" + odd, Name: "2" + odd, Arguments: "3" + odd}
	for want, req := range map[string]provider.Request{
		"8bc89619a3f055c2def9d95659e4ec0d25b20f729d3756f2fd7c219bf55b07ea": {Messages: []provider.Message{{}}},
		"3807ec7f2d52175abc9f7ea6230dc337300e38c3b80a01bb5c19b8b6c125b23e": {Model: "m" + odd, MaxTokens: -7, Messages: []provider.Message{
			{Role: provider.System, Content: odd},
			{Role: provider.Assistant, ToolCalls: []provider.ToolCall{call, {}, call}, ToolCallID: "4" + odd},
			{Role: odd, ToolCalls: []provider.ToolCall{{}}},
			{Content: "x", ToolCalls: []provider.ToolCall{}},
		}},
	} {
		if got := digestOf(req); got != want {
			t.Errorf("%+v: got %s, want %s", req, got, want)
		}
	}
	if got := reflect.TypeFor[provider.Message]().NumField() + reflect.TypeFor[provider.ToolCall]().NumField(); got != 5+3 {
		t.Errorf("got %d fields of messages and calls, want 8: the digest includes the new ones", got)
	}
}
