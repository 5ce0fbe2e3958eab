package openaitest

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Stream writes an answer as server-sent events. The first chunk is preceded by one with
// the role. The methods abort the connection if the client has disconnected. They are not
// safe for concurrent use.
type Stream struct {
	// Burst leaves the events in the buffer of the connection, for an answer that is
	// written without pauses. Otherwise each event is flushed.
	Burst bool

	w     http.ResponseWriter
	flush func() error
	head  []byte // beginning of each chunk, up to its choices
	buf   []byte // of the current event
	begun bool
}

// NewStream returns a stream. It writes nothing. created is in seconds since 1970.
func NewStream(w http.ResponseWriter, id, model string, created int64) *Stream {
	head := gjson.AppendJSONString([]byte(`data: {"id":`), id)
	head = strconv.AppendInt(append(head, `,"object":"chat.completion.chunk","created":`...), created, 10)
	head = append(gjson.AppendJSONString(append(head, `,"model":`...), model), `,"choices":[`...)
	return &Stream{w: w, flush: http.NewResponseController(w).Flush, head: head}
}

// Raw writes bytes of the event stream.
func (s *Stream) Raw(text string) { s.write([]byte(text)) }

func (s *Stream) write(data []byte) {
	if !s.begun {
		s.begun = true
		if h := s.w.Header(); h.Get("Content-Type") == "" {
			h.Set("Content-Type", "text/event-stream")
		}
		s.w.WriteHeader(http.StatusOK)
	}
	_, err := s.w.Write(data)
	if err == nil && !s.Burst {
		err = s.flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
}

// chunk returns the beginning of a chunk, up to its first choice.
func (s *Stream) chunk() []byte {
	if !s.begun {
		s.send(append(append(s.buf, s.head...), `{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}`...))
	}
	return append(s.buf[:0], s.head...)
}

// delta returns the beginning of a chunk, up to the fields of its delta.
func (s *Stream) delta() []byte { return append(s.chunk(), `{"index":0,"delta":{`...) }

// part ends a chunk after the fields of its delta and writes it.
func (s *Stream) part(chunk []byte) { s.send(append(chunk, `},"finish_reason":null}]}`...)) }

func (s *Stream) send(event []byte) {
	s.buf = append(event, "\n\n"...)
	s.write(s.buf)
}

// Text writes a piece of text.
func (s *Stream) Text(text string) {
	s.part(gjson.AppendJSONString(append(s.delta(), `"content":`...), text))
}

// Call writes a part of the tool call at index. Usually the first part has the id and the
// name, and later parts have only arguments.
func (s *Stream) Call(index int, id, name, arguments string) {
	out := strconv.AppendInt(append(s.delta(), `"tool_calls":[{"index":`...), int64(index), 10)
	if id != "" {
		out = gjson.AppendJSONString(append(out, `,"id":`...), id)
	}
	if name != "" {
		out = append(gjson.AppendJSONString(append(out, `,"type":"function","function":{"name":`...), name), ',')
	} else {
		out = append(out, `,"function":{`...)
	}
	s.part(append(gjson.AppendJSONString(append(out, `"arguments":`...), arguments), `}}]`...))
}

// Field writes a chunk with one other field in its delta, such as a refusal.
func (s *Stream) Field(name, text string) {
	out := append(gjson.AppendJSONString(s.delta(), name), ':')
	s.part(gjson.AppendJSONString(out, text))
}

// Finish writes the finish reason.
func (s *Stream) Finish(reason string) {
	s.send(append(gjson.AppendJSONString(append(s.chunk(), `{"index":0,"delta":{},"finish_reason":`...), reason), `}]}`...))
}

// Usage writes the chunk without choices that contains the usage.
func (s *Stream) Usage(u provider.Usage) {
	s.send(append(append(append(s.chunk(), `],"usage":`...), usage(u)...), '}'))
}

// Error writes an error as an event. Clients of OpenAI's protocol report it as an error.
func (s *Stream) Error(e Error) {
	data, _ := json.Marshal(map[string]Error{"error": e}) // strings have no errors
	s.send(append(append(s.buf[:0], "data: "...), data...))
}

// Done writes the end of the stream.
func (s *Stream) Done() { s.Raw("data: [DONE]\n\n") }
