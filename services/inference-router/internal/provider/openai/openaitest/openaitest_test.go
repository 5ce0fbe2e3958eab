package openaitest_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai/openaitest"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	const body = `{
		"model": "m", "stream": true, "stream_options": {"include_usage": true, "other": 1}, "max_completion_tokens": 9, "unknown": {},
		"messages": [
			{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
			{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
			{"role": "tool", "tool_call_id": "c1", "content": "r"}
		],
		"tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
	}`
	req, err := openaitest.Decode(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if !req.Stream || !req.StreamOptions.IncludeUsage {
		t.Errorf("stream: got %+v", req)
	}
	want := provider.Request{
		Model: "m",
		Messages: []provider.Message{
			{Role: provider.System, Content: "ab"},
			{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}}},
			{Role: provider.ToolRole, ToolCallID: "c1", Content: "r"},
		},
		Tools:     []provider.Tool{{Name: "f", Description: "d", Schema: []byte(`{"type": "object"}`)}},
		MaxTokens: 9, TokenParam: model.MaxCompletionTokens,
	}
	if diff := cmp.Diff(want, req.Neutral()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"no model":        `{"messages":[]}`,
		"an image":        `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
		"a number":        `{"model":"m","messages":[{"role":"user","content":1}]}`,
		"cut":             `{"model":"m"`,
		"nothing":         ``,
		"a nameless tool": `{"model":"m","tools":[{"type":"function"}]}`,
	} {
		if _, err := openaitest.Decode(strings.NewReader(body)); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestStreamBytes(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	s, err := openaitest.NewStream(w, "id", "m", 5)
	if err != nil {
		t.Fatal(err)
	}
	if !w.Flushed {
		t.Error("the first chunk is not flushed")
	}
	for _, err := range []error{
		s.Text("hi"), s.Call(0, provider.ToolCall{ID: "c", Name: "f", Arguments: "{"}), s.Call(0, provider.ToolCall{Arguments: "}"}),
		s.Finish("tool_calls"), s.Usage(provider.Usage{Input: 3, CachedInput: 1, Output: 2}), s.Done(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	chunk := func(rest string) string {
		return `data: {"id":"id","object":"chat.completion.chunk","created":5,"model":"m","choices":[` + rest + "}\n\n"
	}
	want := chunk(`{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"content":"hi"},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{},"finish_reason":"tool_calls"}]`) +
		chunk(`],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}`) +
		"data: [DONE]\n\n"
	if diff := cmp.Diff(want, w.Body.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := w.Header().Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type: got %q", got)
	}
}

func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	openaitest.WriteCompletion(w, 5, provider.Response{ID: "id", Model: "m", Text: "hi", Finish: "stop", Usage: provider.Usage{Input: 1, Output: 2}})
	const want = `{"id":"id","object":"chat.completion","created":5,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}` + "\n"
	if diff := cmp.Diff(want, w.Body.String()); diff != "" {
		t.Errorf("completion (-want +got):\n%s", diff)
	}
	for status, kind := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 503: "server_error"} {
		w := httptest.NewRecorder()
		openaitest.WriteError(w, status, openaitest.Error{Message: "no"})
		var got struct {
			Error openaitest.Error `json:"error"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != status || got.Error.Type != kind || got.Error.Message != "no" {
			t.Errorf("%d: got %d %s, %v", status, w.Code, w.Body, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`)
	f.Add(`{"model":"m","messages":[{"role":"tool","content":null}],"tools":[{"type":"function","function":{"name":"f"}}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		req, err := openaitest.Decode(strings.NewReader(body))
		if err != nil {
			return
		}
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := openaitest.Decode(strings.NewReader(string(data)))
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if diff := cmp.Diff(req.Neutral().Messages, again.Neutral().Messages); diff != "" {
			t.Errorf("messages (-first +again):\n%s", diff)
		}
	})
}
