package wire

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Completion is a whole answer.
type Completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"` // seconds since 1970
	Model   string   `json:"model"`
	Choices []Choice `json:"choices"`
	Usage   *Usage   `json:"usage,omitempty"`
}

// Choice is one answer: a message in whole ones, a delta in streams.
type Choice struct {
	Index        int      `json:"index"`
	Message      *Message `json:"message,omitempty"`
	Delta        *Delta   `json:"delta,omitempty"`
	FinishReason *string  `json:"finish_reason"`
}

// Delta is a piece of an answer.
type Delta struct {
	Role      string     `json:"role,omitempty"`
	Content   string     `json:"content,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// Usage is the tokens of a call.
type Usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// UsageOf writes a neutral usage in the protocol's words.
func UsageOf(u provider.Usage) *Usage {
	w := &Usage{PromptTokens: u.Input, CompletionTokens: u.Output, TotalTokens: u.Input + u.Output}
	w.PromptDetails.CachedTokens = u.CachedInput
	w.CompletionDetails.ReasoningTokens = u.Reasoning
	return w
}

// CallOf writes a neutral call; index is its place in the answer.
func CallOf(c provider.ToolCall) ToolCall {
	w := ToolCall{ID: c.ID, Type: "function"}
	w.Function.Name, w.Function.Arguments = c.Name, c.Arguments
	return w
}

// Error is OpenAI's error object.
type Error struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Param   string `json:"param,omitempty"`
}

// WriteError answers with an error object. Headers such as Retry-After are the
// caller's to set before.
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

// WriteCompletion answers a request that did not ask for a stream. created is in
// seconds since 1970.
func WriteCompletion(w http.ResponseWriter, created int64, res provider.Response) {
	m := &Message{Role: string(provider.Assistant), Content: Content(res.Text)}
	for _, c := range res.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, CallOf(c))
	}
	writeJSON(w, http.StatusOK, Completion{
		ID: res.ID, Object: "chat.completion", Created: created, Model: res.Model,
		Choices: []Choice{{Message: m, FinishReason: &res.Finish}},
		Usage:   UsageOf(res.Usage),
	})
}

// WriteModels answers GET /v1/models.
func WriteModels(w http.ResponseWriter, owner string, ids ...string) {
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := make([]entry, 0, len(ids))
	for _, id := range ids {
		list = append(list, entry{ID: id, Object: "model", OwnedBy: owner})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// writeJSON ignores the error of a client that went away; there is nobody to
// tell.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Stream writes an answer as server-sent events, each flushed as it is written.
// It is for one goroutine. Errors mean that the client is gone.
type Stream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	head Completion
}

// NewStream sends the headers and the first chunk, which names the role.
// created is in seconds since 1970.
func NewStream(w http.ResponseWriter, id, model string, created int64) (*Stream, error) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // proxies must not collect the stream
	w.WriteHeader(http.StatusOK)
	s := &Stream{
		w: w, rc: http.NewResponseController(w),
		head: Completion{ID: id, Object: "chat.completion.chunk", Created: created, Model: model},
	}
	return s, s.delta(Delta{Role: string(provider.Assistant)})
}

// Text sends a piece of text.
func (s *Stream) Text(text string) error { return s.delta(Delta{Content: text}) }

// Call sends a part of the tool call at index: the first with id and name, later
// ones with arguments only.
func (s *Stream) Call(index int, part provider.ToolCall) error {
	c := CallOf(part)
	c.Index = &index
	if part.ID == "" {
		c.Type = ""
	}
	return s.delta(Delta{ToolCalls: []ToolCall{c}})
}

// Finish sends the reason why the answer ends.
func (s *Stream) Finish(reason string) error {
	return s.chunk([]Choice{{Delta: &Delta{}, FinishReason: &reason}}, nil)
}

// Usage sends the chunk without choices that carries the usage.
func (s *Stream) Usage(u provider.Usage) error { return s.chunk([]Choice{}, UsageOf(u)) }

// Error sends an error as the stream's last event, for answers that break after
// they began. Clients of OpenAI's protocol raise it.
func (s *Stream) Error(e Error) error {
	data, err := json.Marshal(map[string]Error{"error": e})
	if err != nil {
		return err
	}
	return s.event(data)
}

// Done ends the stream.
func (s *Stream) Done() error { return s.event([]byte("[DONE]")) }

func (s *Stream) delta(d Delta) error { return s.chunk([]Choice{{Delta: &d}}, nil) }

func (s *Stream) chunk(choices []Choice, usage *Usage) error {
	c := s.head
	c.Choices, c.Usage = choices, usage
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.event(data)
}

func (s *Stream) event(data []byte) error {
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", data); err != nil {
		return err
	}
	return s.rc.Flush()
}
