package openaitest

import (
	"encoding/json"
	"net/http"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
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

// toolCall is a tool call of a whole answer.
type toolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type usage struct {
	Prompt        int64 `json:"prompt_tokens"`
	Completion    int64 `json:"completion_tokens"`
	Total         int64 `json:"total_tokens"`
	PromptDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func usageOf(u provider.Usage) usage {
	out := usage{Prompt: u.Input, Completion: u.Output, Total: u.Input + u.Output}
	out.PromptDetails.Cached, out.CompletionDetails.Reasoning = u.CachedInput, u.Reasoning
	return out
}

// WriteCompletion answers a request without streaming. created is in seconds since 1970.
func WriteCompletion(w http.ResponseWriter, created int64, res provider.Response) {
	var calls []toolCall
	for _, c := range res.ToolCalls {
		call := toolCall{ID: c.ID, Type: "function"}
		call.Function.Name, call.Function.Arguments = c.Name, c.Arguments
		calls = append(calls, call)
	}
	message := map[string]any{"role": provider.Assistant, "content": res.Text}
	if calls != nil {
		message["tool_calls"] = calls
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"id": res.ID, "object": "chat.completion", "created": created, "model": res.Model, "usage": usageOf(res.Usage),
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": res.Finish}},
	})
}

// writeJSON ignores the write error: the client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
