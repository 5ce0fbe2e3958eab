package simulated

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// TestDigestIsOfJSON checks that the digest is the one over the bytes of encoding/json.
// Answers and the ids of their calls depend on it, so it must not change.
func TestDigestIsOfJSON(t *testing.T) {
	t.Parallel()
	const odd = "a \"b\" <c> & \\ é\u2028\xff\x00\t\n"
	call := provider.ToolCall{ID: "1" + odd, Name: "2" + odd, Arguments: "3" + odd}
	for name, req := range map[string]provider.Request{
		"one": {Messages: []provider.Message{{}}},
		"all": {Model: "m" + odd, MaxTokens: -7, Messages: []provider.Message{
			{Role: provider.System, Content: odd},
			{Role: provider.Assistant, ToolCalls: []provider.ToolCall{call, {}, call}, ToolCallID: "4" + odd},
			{Role: odd, ToolCalls: []provider.ToolCall{{}}},
			{Content: "x", ToolCalls: []provider.ToolCall{}},
		}},
	} {
		data, err := json.Marshal([]any{req.Model, req.Messages, req.MaxTokens})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(append(data, '\n'))
		if got, want := digestOf(req), hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if got := reflect.TypeFor[provider.Message]().NumField() + reflect.TypeFor[provider.ToolCall]().NumField(); got != 4+3 {
		t.Errorf("got %d fields of messages and calls, want 7: the digest does not know the new ones", got)
	}
}
