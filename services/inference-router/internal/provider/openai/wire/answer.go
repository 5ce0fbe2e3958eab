package wire

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/anima-run/anima/services/inference-router/internal/jsontext"
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

// Stream writes an answer as server-sent events. It is not safe for concurrent use. An
// error of its methods means that the client has disconnected.
type Stream struct {
	w     http.ResponseWriter
	flush func() error
	head  []byte // the beginning of each chunk
	buf   []byte // buffer of the current event
}

// NewStream writes the headers and the first chunk, which contains the role. The stream
// flushes each event. created is in seconds since 1970.
func NewStream(w http.ResponseWriter, id, model string, created int64) (*Stream, error) {
	return open(w, id, model, created, http.NewResponseController(w).Flush)
}

// NewBurst is [NewStream] for an answer that is written without pauses: its events are
// sent when the buffer of w is full and when the handler returns.
func NewBurst(w http.ResponseWriter, id, model string, created int64) (*Stream, error) {
	return open(w, id, model, created, func() error { return nil })
}

func open(w http.ResponseWriter, id, model string, created int64, flush func() error) (*Stream, error) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	w.WriteHeader(http.StatusOK)
	s := &Stream{w: w, flush: flush}
	s.head = jsontext.Append(append(s.head, `data: {"id":`...), id)
	s.head = strconv.AppendInt(append(s.head, `,"object":"chat.completion.chunk","created":`...), created, 10)
	s.head = append(jsontext.Append(append(s.head, `,"model":`...), model), `,"choices":[`...)
	return s, s.send(append(jsontext.Append(append(s.delta(), `"role":`...), string(provider.Assistant)), noReason...))
}

// Ends of a chunk: within its delta, and after its choices.
const (
	noReason = `},"finish_reason":null}]` + end
	end      = "}\n\n"
)

// Text sends a piece of text.
func (s *Stream) Text(text string) error {
	out := s.delta()
	if text != "" {
		out = jsontext.Append(append(out, `"content":`...), text)
	}
	return s.send(append(out, noReason...))
}

// Call sends a part of the tool call at index. The first part has the id and the name,
// later parts have arguments only.
func (s *Stream) Call(index int, part provider.ToolCall) error {
	out := strconv.AppendInt(append(s.delta(), `"tool_calls":[{"index":`...), int64(index), 10)
	if part.ID != "" {
		out = append(jsontext.Append(append(out, `,"id":`...), part.ID), `,"type":"function"`...)
	}
	out = append(out, `,"function":{`...)
	if part.Name != "" {
		out = append(jsontext.Append(append(out, `"name":`...), part.Name), ',')
	}
	out = append(jsontext.Append(append(out, `"arguments":`...), part.Arguments), `}}]`...)
	return s.send(append(out, noReason...))
}

// Finish sends the finish reason.
func (s *Stream) Finish(reason string) error {
	out := jsontext.Append(append(s.delta(), `},"finish_reason":`...), reason)
	return s.send(append(out, `}]`+end...))
}

// Usage sends the chunk without choices that contains the usage.
func (s *Stream) Usage(u provider.Usage) error {
	data, err := json.Marshal(UsageOf(u))
	if err != nil {
		return err
	}
	out := append(append(s.chunk(), `],"usage":`...), data...)
	return s.send(append(out, end...))
}

// Error sends an error as the stream's last event, for an answer that fails after its
// first event. Clients of OpenAI's protocol report it as an error.
func (s *Stream) Error(e Error) error {
	data, err := json.Marshal(map[string]Error{"error": e})
	if err != nil {
		return err
	}
	return s.send(append(append(append(s.buf[:0], "data: "...), data...), "\n\n"...))
}

// Done ends the stream.
func (s *Stream) Done() error { return s.send(append(s.buf[:0], "data: [DONE]\n\n"...)) }

// chunk returns the beginning of a chunk up to its first choice.
func (s *Stream) chunk() []byte { return append(s.buf[:0], s.head...) }

// delta returns the beginning of a chunk up to the fields of its delta.
func (s *Stream) delta() []byte { return append(s.chunk(), `{"index":0,"delta":{`...) }

func (s *Stream) send(event []byte) error {
	s.buf = event
	if _, err := s.w.Write(event); err != nil {
		return err
	}
	return s.flush()
}
