package openaitest_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

func decode(body string) (openaitest.Request, error) {
	return openaitest.Decode(strings.NewReader(body), int64(len(body)))
}

func TestDecode(t *testing.T) {
	t.Parallel()
	const body = `{
		"model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_completion_tokens": 9, "seed": 7, "temperature": 0.5, "tool_choice": "auto",
		"messages": [
			{"role": "user", "content": "a \u00e9\n\ud83d\ude00"},
			{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
			{"role": "tool", "tool_call_id": "c1", "content": ""}
		],
		"tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
	}`
	got, err := decode(body)
	if err != nil {
		t.Fatal(err)
	}
	seed, temperature := int64(7), 0.5
	want := openaitest.Request{
		Request: provider.Request{
			Model: "m",
			Messages: []provider.Message{
				{Role: provider.User, Content: "a é\n😀"},
				{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}}},
				{Role: provider.ToolRole, ToolCallID: "c1"},
			},
			Tools:     []provider.Tool{{Name: "f", Description: "d", Schema: []byte(`{"type": "object"}`)}},
			MaxTokens: 9, TokenParam: model.MaxCompletionTokens, Options: provider.Options{Seed: &seed, Temperature: &temperature},
		},
		Stream: true, StreamOptions: true, IncludeUsage: true, ToolChoice: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"an image":           `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
		"a number":           `{"model":"m","messages":[{"role":"user","content":1}]}`,
		"cut":                `{"model":"m"`,
		"nothing":            ``,
		"something after it": `{"model":"m"} {}`,
		"no UTF-8":           "{\"model\":\"\xff\"}",
		"an unknown field":   `{"model":"m","messages":[{"role":"user","content":"x","name":"n"}]}`,
		"a repeated field":   `{"model":"m","model":"m"}`,
		"two limits":         `{"model":"m","max_tokens":1,"max_completion_tokens":1}`,
		"a typeless tool":    `{"model":"m","tools":[{"function":{"name":"f"}}]}`,
		"a tool with an id":  `{"model":"m","tools":[{"type":"function","id":"x","function":{"name":"f"}}]}`,
		"an empty content":   `{"model":"m","messages":[{"role":"assistant","content":"","tool_calls":[]}]}`,
		"an empty result":    `{"model":"m","messages":[{"role":"tool","tool_call_id":"c"}]}`,
	} {
		if got, err := decode(body); err == nil {
			t.Errorf("%s: got %+v and no error", name, got)
		}
	}
}

func TestStreamBytes(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	s := openaitest.NewStream(w, "id", "m", 5)
	s.Burst = true
	s.Text("hi")
	if w.Flushed {
		t.Error("an event of a burst is flushed")
	}
	s.Burst = false
	s.Call(0, "c", "f", "{")
	if !w.Flushed {
		t.Error("an event is not flushed")
	}
	s.Call(0, "", "", "}")
	s.Field("refusal", "no")
	s.Finish("tool_calls")
	s.Usage(provider.Usage{Input: 3, CachedInput: 1, Output: 2})
	s.Error(openaitest.Error{Message: "bad", Type: "server_error"})
	s.Done()
	chunk := func(rest string) string {
		return `data: {"id":"id","object":"chat.completion.chunk","created":5,"model":"m","choices":[` + rest + "}\n\n"
	}
	want := chunk(`{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"content":"hi"},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{"refusal":"no"},"finish_reason":null}]`) +
		chunk(`{"index":0,"delta":{},"finish_reason":"tool_calls"}]`) +
		chunk(`],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}`) +
		"data: {\"error\":{\"message\":\"bad\",\"type\":\"server_error\"}}\n\ndata: [DONE]\n\n"
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
	const want = `{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"hi","role":"assistant"}}],"created":5,"id":"id","model":"m","object":"chat.completion",` +
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

// FuzzDecode checks that a request that Decode reads has the values that encoding/json
// reads.
func FuzzDecode(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":"a\n\u00e9\ud83d\ude00 \ud83d"}],"stream":true,"max_tokens":5,"temperature":1e-3,"seed":null}`)
	f.Add(`{"model":"m","messages":[{"role":"tool","content":""}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1]}}}]}`)
	f.Add(`{"messages":[{"content":"0\ud800\u0000"}]}`)
	f.Add(`{"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`)
	type function struct {
		Name, Description, Arguments string
		Parameters                   json.RawMessage
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, err := decode(body)
		if err != nil {
			return
		}
		var want struct {
			Model    string
			Messages []struct {
				Role, Content string
				ToolCallID    string `json:"tool_call_id"`
				ToolCalls     []struct {
					ID       string
					Function function
				} `json:"tool_calls"`
			}
			Tools               []struct{ Function function }
			Stream              bool
			MaxTokens           int64 `json:"max_tokens"`
			MaxCompletionTokens int64 `json:"max_completion_tokens"`
			Temperature         float64
			Seed                int64
		}
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		again := openaitest.Request{Request: provider.Request{
			Model: want.Model, TokenParam: got.TokenParam, MaxTokens: want.MaxTokens + want.MaxCompletionTokens,
		}, Stream: want.Stream, StreamOptions: got.StreamOptions, IncludeUsage: got.IncludeUsage, ToolChoice: got.ToolChoice}
		for _, m := range want.Messages {
			message := provider.Message{Role: m.Role, Content: m.Content, ToolCallID: m.ToolCallID}
			for _, c := range m.ToolCalls {
				message.ToolCalls = append(message.ToolCalls, provider.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
			}
			again.Messages = append(again.Messages, message)
		}
		for _, c := range want.Tools {
			again.Tools = append(again.Tools, provider.Tool{Name: c.Function.Name, Description: c.Function.Description, Schema: c.Function.Parameters})
		}
		if got.Temperature != nil {
			again.Temperature = &want.Temperature
		}
		if got.Seed != nil {
			again.Seed = &want.Seed
		}
		if diff := cmp.Diff(again, got); diff != "" {
			t.Errorf("%q: (-encoding/json +got):\n%s", body, diff)
		}
	})
}
