package anthropictest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Stream writes an answer as the events of the Messages API and flushes each. It aborts the
// connection if the client has disconnected.
type Stream struct {
	w         http.ResponseWriter
	id, model string
	begun     bool
	index     int    // of the current block, -1 before the first
	kind      string // type of the current block, "" if none is open
	calls     map[int]int
	prompt    fields // usage in the first event, nil: none
}

// NewStream returns the answer of a model. It writes nothing.
func NewStream(w http.ResponseWriter, id, model string) *Stream {
	return &Stream{w: w, id: id, model: model, index: -1, calls: map[int]int{}}
}

// fields are the fields of an event or a part of one.
type fields map[string]any

// Start sets the usage that message_start reports. It must be called before any other
// method.
func (s *Stream) Start(u provider.Usage) { s.prompt = usage(u) }

// send writes an event, and before the first one the head of the answer and message_start.
func (s *Stream) send(name string, f fields) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		message := fields{
			"id": s.id, "type": "message", "role": "assistant", "model": s.model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		}
		if s.prompt != nil {
			message["usage"] = s.prompt
		}
		s.send("message_start", fields{"message": message})
	}
	f["type"] = name
	data, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	s.Raw(fmt.Sprintf("event: %s\ndata: %s\n\n", name, data))
}

// Raw writes bytes into the stream unchanged.
func (s *Stream) Raw(text string) {
	if _, err := io.WriteString(s.w, text); err != nil {
		panic(http.ErrAbortHandler)
	}
	if err := http.NewResponseController(s.w).Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// begin ends the current block and begins another one.
func (s *Stream) begin(kind string, block fields) {
	s.end()
	s.index++
	s.kind, block["type"] = kind, kind
	s.send("content_block_start", fields{"index": s.index, "content_block": block})
}

func (s *Stream) end() {
	if s.kind != "" {
		s.kind = ""
		s.send("content_block_stop", fields{"index": s.index})
	}
}

func (s *Stream) delta(index int, f fields) {
	s.send("content_block_delta", fields{"index": index, "delta": f})
}

// Text writes a piece of text.
func (s *Stream) Text(text string) {
	if s.kind != "text" {
		s.begin("text", fields{"text": ""})
	}
	s.delta(s.index, fields{"type": "text_delta", "text": text})
}

// Call writes a part of the call with an index: the first part has id and name, each part
// has some of the arguments.
func (s *Stream) Call(index int, id, name, arguments string) {
	if _, ok := s.calls[index]; !ok {
		s.begin("tool_use", fields{"id": id, "name": name, "input": fields{}})
		s.calls[index] = s.index
	}
	s.delta(s.calls[index], fields{"type": "input_json_delta", "partial_json": arguments})
}

// Empty writes an event without content.
func (s *Stream) Empty() { s.send("ping", fields{}) }

// Finish ends the current block and writes a finish reason of package provider.
func (s *Stream) Finish(reason string) {
	s.end()
	words := map[string]string{
		provider.FinishStop: "end_turn", provider.FinishLength: "max_tokens", provider.FinishToolCalls: "tool_use", provider.FinishRefusal: "refusal",
	}
	if word, ok := words[reason]; ok {
		reason = word
	}
	s.send("message_delta", fields{"delta": fields{"stop_reason": reason, "stop_sequence": nil}})
}

// Usage writes the usage of the whole answer.
func (s *Stream) Usage(u provider.Usage) {
	s.send("message_delta", fields{"delta": fields{}, "usage": usage(u)})
}

func usage(u provider.Usage) fields {
	return fields{
		"input_tokens": u.Input - u.CachedInput - u.CacheWrite, "cache_read_input_tokens": u.CachedInput, "cache_creation_input_tokens": u.CacheWrite,
		"output_tokens": u.Output, "output_tokens_details": fields{"thinking_tokens": u.Reasoning},
	}
}

// Done writes the last event.
func (s *Stream) Done() { s.send("message_stop", fields{}) }

// Error writes an error into the stream.
func (s *Stream) Error(kind, message string) {
	s.send("error", fields{"error": fields{"type": kind, "message": message}})
}

// WriteError answers with an error object.
func WriteError(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may have disconnected.
	_ = json.NewEncoder(w).Encode(fields{"type": "error", "error": fields{"type": kind, "message": message}})
}

// Model is an entry in the list of models.
type Model struct {
	ID             string `json:"id"`
	Type           string `json:"type"`
	DisplayName    string `json:"display_name"`
	CreatedAt      string `json:"created_at"`
	MaxInputTokens int64  `json:"max_input_tokens,omitempty"`
	MaxTokens      int64  `json:"max_tokens,omitempty"`
}

// WriteModels answers with one page of the list of models.
func WriteModels(w http.ResponseWriter, more bool, models ...Model) {
	page := fields{"data": models, "has_more": more, "first_id": nil, "last_id": nil}
	if n := len(models); n > 0 {
		page["first_id"], page["last_id"] = models[0].ID, models[n-1].ID
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(page) // the client may have disconnected
}
