package openaitest

import (
	"encoding/json"
	"io"
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

// Choice is one answer of a [Completion].
type Choice struct {
	Index        int      `json:"index"`
	Message      *Message `json:"message,omitempty"`
	FinishReason *string  `json:"finish_reason"`
}

// Usage holds the tokens of a call.
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

// UsageOf converts a neutral usage to the protocol's form.
func UsageOf(u provider.Usage) *Usage {
	w := &Usage{PromptTokens: u.Input, CompletionTokens: u.Output, TotalTokens: u.Input + u.Output}
	w.PromptDetails.CachedTokens = u.CachedInput
	w.CompletionDetails.ReasoningTokens = u.Reasoning
	return w
}

// CallOf converts a neutral tool call to the protocol's form.
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

// WriteError writes an error object. The caller sets headers such as Retry-After before.
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

// WriteCompletion answers a request without streaming. created is in seconds since 1970.
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

// writeJSON ignores the write error: the client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Stream writes an answer as server-sent events and flushes each. It is not safe for
// concurrent use. An error of its methods means that the client has disconnected.
type Stream struct {
	w     http.ResponseWriter
	head  chunk
	flush func() error
}

type chunk struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *Usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Delta        delta   `json:"delta"`
	FinishReason *string `json:"finish_reason"`
}

type delta struct {
	Role      string     `json:"role,omitempty"`
	Content   string     `json:"content,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// NewStream writes the headers and the first chunk, which contains the role. created is in
// seconds since 1970.
func NewStream(w http.ResponseWriter, id, model string, created int64) (*Stream, error) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	s := &Stream{
		w: w, flush: http.NewResponseController(w).Flush,
		head: chunk{ID: id, Object: "chat.completion.chunk", Created: created, Model: model, Choices: []choice{}},
	}
	return s, s.choice(choice{Delta: delta{Role: provider.Assistant}})
}

// Text sends a piece of text.
func (s *Stream) Text(text string) error { return s.choice(choice{Delta: delta{Content: text}}) }

// Call sends a part of the tool call at index. The first part has the id and the name,
// later parts have arguments only.
func (s *Stream) Call(index int, part provider.ToolCall) error {
	call := CallOf(part)
	call.Index = &index
	if part.ID == "" {
		call.Type = ""
	}
	return s.choice(choice{Delta: delta{ToolCalls: []ToolCall{call}}})
}

// Finish sends the finish reason.
func (s *Stream) Finish(reason string) error { return s.choice(choice{FinishReason: &reason}) }

// Usage sends the chunk without choices that contains the usage.
func (s *Stream) Usage(u provider.Usage) error {
	c := s.head
	c.Usage = UsageOf(u)
	return s.json(c)
}

// Error sends an error as the stream's last event, for an answer that fails after its
// first event. Clients of OpenAI's protocol report it as an error.
func (s *Stream) Error(e Error) error { return s.json(map[string]Error{"error": e}) }

// Done ends the stream.
func (s *Stream) Done() error { return s.send("[DONE]") }

func (s *Stream) choice(c choice) error {
	out := s.head
	out.Choices = []choice{c}
	return s.json(out)
}

func (s *Stream) json(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.send(string(data))
}

func (s *Stream) send(data string) error {
	if _, err := io.WriteString(s.w, "data: "+data+"\n\n"); err != nil {
		return err
	}
	return s.flush()
}
