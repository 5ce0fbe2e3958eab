package openaitest

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Usage and Response have names here for packages that cannot import package provider.
type (
	Usage    = provider.Usage
	Response = provider.Response
)

// Error is OpenAI's error object.
type Error struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Param   string `json:"param,omitempty"`
}

// WriteError answers with an error object. The caller sets headers such as Retry-After
// before.
func WriteError(w http.ResponseWriter, status int, e Error) {
	if e.Type == "" {
		e.Type = errorType(status)
	}
	writeJSON(w, status, map[string]Error{"error": e})
}

func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_request_error"
}

// Model is an entry of the list of models.
type Model struct {
	ID            string            `json:"id"`
	Object        string            `json:"object"`
	Created       int64             `json:"created"`
	OwnedBy       string            `json:"owned_by,omitempty"`
	ContextLength int64             `json:"context_length,omitempty"` // as OpenRouter reports it
	Pricing       map[string]string `json:"pricing,omitempty"`        // as OpenRouter reports it
}

// WriteModels answers GET /v1/models with models that differ only in their ids.
func WriteModels(w http.ResponseWriter, m Model, ids ...string) {
	list := []Model{}
	for _, m.ID = range ids {
		m.Object = "model"
		list = append(list, m)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// usage returns the JSON of a usage.
func usage(u provider.Usage) json.RawMessage {
	return fmt.Appendf(nil, `{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}`,
		u.Input, u.Output, u.Input+u.Output, u.CachedInput, u.Reasoning)
}

// WriteCompletion answers a request without streaming. created is in seconds since 1970.
func WriteCompletion(w http.ResponseWriter, created int64, res provider.Response) {
	type object = map[string]any
	message := object{"role": provider.Assistant, "content": res.Text}
	var calls []object
	for _, c := range res.ToolCalls {
		calls = append(calls, object{"id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": c.Arguments}})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	writeJSON(w, http.StatusOK, object{
		"id": res.ID, "object": "chat.completion", "created": created, "model": res.Model, "usage": usage(res.Usage),
		"choices": []object{{"index": 0, "message": message, "finish_reason": res.Finish}},
	})
}

// writeJSON ignores the write error: the client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
