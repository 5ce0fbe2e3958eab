package responsestest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Stream writes an answer as the events of the protocol and flushes each. It aborts the
// connection if the client has disconnected.
type Stream struct {
	w         http.ResponseWriter
	id, model string
	begun     bool
	number    int
	items     int         // begun so far
	message   int         // index of the message, -1 before it
	calls     map[int]int // indexes of items by the index of the call
	ending    fields      // the response at its end
}

// NewStream returns the answer of a model. It writes nothing.
func NewStream(w http.ResponseWriter, id, model string) *Stream {
	return &Stream{w: w, id: id, model: model, message: -1, calls: map[int]int{}}
}

// fields are the fields of an event or a part of one.
type fields map[string]any

func (s *Stream) response(status string) fields {
	return fields{"id": s.id, "object": "response", "created_at": 1, "status": status, "model": s.model, "output": []any{}, "error": nil, "incomplete_details": nil, "usage": nil}
}

// send writes an event, and before the first one the head of the answer.
func (s *Stream) send(kind string, f fields) {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		s.send("response.created", fields{"response": s.response("in_progress")})
	}
	f["type"], f["sequence_number"] = kind, s.number
	s.number++
	data, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	s.Raw(fmt.Sprintf("event: %s\ndata: %s\n\n", kind, data))
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

// add begins an item and returns its index.
func (s *Stream) add(item fields) int {
	s.items++
	s.send("response.output_item.added", fields{"output_index": s.items - 1, "item": item})
	return s.items - 1
}

// Text writes a piece of text.
func (s *Stream) Text(text string) {
	if s.message < 0 {
		s.message = s.add(fields{"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []any{}})
	}
	s.send("response.output_text.delta", fields{"output_index": s.message, "content_index": 0, "item_id": "msg_1", "delta": text, "logprobs": []any{}})
}

// Reasoning writes a piece of the summary of the reasoning.
func (s *Stream) Reasoning(text string) {
	s.send("response.reasoning_summary_text.delta", fields{"output_index": 0, "summary_index": 0, "item_id": "rs_1", "delta": text})
}

// Call writes a part of the call with an index: the first part has id and name, each part
// has some of the arguments.
func (s *Stream) Call(index int, id, name, arguments string) {
	if _, ok := s.calls[index]; !ok {
		s.calls[index] = s.add(fields{"type": "function_call", "id": "fc_" + id, "call_id": id, "name": name, "arguments": "", "status": "in_progress"})
	}
	s.send("response.function_call_arguments.delta", fields{"output_index": s.calls[index], "item_id": "fc_" + id, "delta": arguments})
}

// Empty writes an event without content.
func (s *Stream) Empty() {
	s.send("response.in_progress", fields{"response": s.response("in_progress")})
}

// Finish writes the end of the response with a finish reason of package provider, without
// usage.
func (s *Stream) Finish(reason string) {
	s.ending = s.response("completed")
	switch reason {
	case provider.FinishLength:
		s.ending["status"], s.ending["incomplete_details"] = "incomplete", fields{"reason": "max_output_tokens"}
	case provider.FinishFilter:
		s.ending["status"], s.ending["incomplete_details"] = "incomplete", fields{"reason": "content_filter"}
	}
	s.end()
}

func (s *Stream) end() {
	s.send(fmt.Sprint("response.", s.ending["status"]), fields{"response": s.ending})
}

// Usage writes the end of the response again, with the usage.
func (s *Stream) Usage(u provider.Usage) {
	s.ending["usage"] = usage(u)
	s.end()
}

func usage(u provider.Usage) fields {
	return fields{
		"input_tokens": u.Input, "input_tokens_details": fields{"cached_tokens": u.CachedInput}, "output_tokens": u.Output,
		"output_tokens_details": fields{"reasoning_tokens": u.Reasoning}, "total_tokens": u.Input + u.Output,
	}
}

// Done does nothing: the end of the connection is the end of the stream.
func (s *Stream) Done() {}

// Fail writes an error event.
func (s *Stream) Fail(code, message string) {
	s.send("error", fields{"code": code, "message": message, "param": nil})
}

// WriteResponse answers a request that is not streamed.
func WriteResponse(w http.ResponseWriter, res provider.Response) {
	s := NewStream(w, res.ID, res.Model)
	out := s.response("completed")
	var items []fields
	if res.Reasoning != "" {
		items = append(items, fields{"type": "reasoning", "id": "rs_1", "summary": []fields{{"type": "summary_text", "text": res.Reasoning}}})
	}
	if res.Text != "" {
		items = append(items, fields{"type": "message", "id": "msg_1", "role": "assistant", "content": []fields{{"type": "output_text", "text": res.Text, "annotations": []any{}}}})
	}
	for _, c := range res.ToolCalls {
		items = append(items, fields{"type": "function_call", "id": "fc_" + c.ID, "call_id": c.ID, "name": c.Name, "arguments": c.Arguments, "status": "completed"})
	}
	out["output"], out["usage"] = items, usage(res.Usage)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may have disconnected
}

// IsPath reports whether a request is for this protocol.
func IsPath(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/responses") }
