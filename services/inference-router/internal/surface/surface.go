// Package surface has the protocols in which HTTP callers make model calls: OpenAI's chat
// completions and responses, and Anthropic's messages. A [Dialect] reads requests into a
// neutral form and writes answers and errors.
//
// It makes no calls and no decisions about models and money. Requests that need a feature
// which the router does not have are refused with an error, never changed silently.
package surface

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/strictjson"
)

// Request is a model call in a neutral form. It may be malformed as a conversation; the
// router normalises it.
type Request struct {
	Model     string // as the caller named it; required
	Messages  []api.ChatMessage
	Tools     []api.Tool
	MaxTokens int64 // 0: by the routing matrix
	Options   provider.Options
	User      string // of the request's own field for it; "" if there is none
	Stream    bool
	Usage     bool // the caller asks for the usage in a part of its own
}

// Head holds the fields that precede the text of an answer.
type Head struct {
	ID      string // of the answer, for the caller
	Model   string // as the caller named it
	Created int64  // Unix seconds
	Usage   bool   // as in [Request]
}

// Dialect is one protocol. Its values are safe for concurrent use.
type Dialect interface {
	// Read decodes a request. Errors are Invalid.
	Read(body []byte) (Request, error)
	// Answer writes a whole answer.
	Answer(w http.ResponseWriter, head Head, c api.Completion)
	// Stream returns a writer for a streamed answer. It writes nothing yet.
	Stream(w http.ResponseWriter, head Head) Stream
	// Refuse writes an error as the whole answer, with a status of HTTP.
	Refuse(w http.ResponseWriter, status int, err error)
}

// Lister is a protocol with a list of models.
type Lister interface {
	// Model writes a model.
	Model(w http.ResponseWriter, m api.Model)
	// Models writes a list of all models.
	Models(w http.ResponseWriter, all []api.Model)
	// Refuse is that of [Dialect].
	Refuse(w http.ResponseWriter, status int, err error)
}

// Stream writes the parts of an answer and flushes each. Errors mean that the caller has
// disconnected.
type Stream interface {
	// Comment writes a line that clients skip. It begins the answer, so a later failure can
	// only be written by Fail.
	Comment() error
	Text(piece string) error
	// End writes the rest: tool calls, finish reason, usage and the end of the stream.
	End(c api.Completion) error
	// Fail ends the stream with an error that the caller cannot take for the end of the
	// answer.
	Fail(status int, err error) error
}

// invalid returns the error for a request that cannot be read.
func invalid(format string, args ...any) error {
	e := api.Errorf(api.Invalid, format, args...)
	e.Next = "correct the request; docs/http.md has the fields that are supported"
	return e
}

// maxValues is the most values of a request. The shortest, {} with its comma, take fifty
// times as many bytes in memory as in the body.
const maxValues = 100_000

// values returns about how many values JSON has: the commas and the opening brackets outside
// of its strings.
func values(body []byte) (n int) {
	for {
		before, rest, text := bytes.Cut(body, []byte{'"'})
		for _, c := range before {
			if c == ',' || c == '{' || c == '[' {
				n++
			}
		}
		for body = rest; text; body = rest { // to the quote that ends the text
			before, rest, text = bytes.Cut(body, []byte{'"'})
			text = text && (len(before)-len(bytes.TrimRight(before, `\`)))%2 == 1
		}
		if len(body) == 0 {
			return n
		}
	}
}

// decode decodes a JSON object. Unknown fields are ignored: SDKs send new ones.
func decode(body []byte, v any) error {
	if !utf8.Valid(body) { // encoding/json would replace invalid bytes
		return invalid("the body is not UTF-8")
	}
	if len(body) > 2*maxValues && values(body) > maxValues {
		return invalid("the body has more than %d values", maxValues)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return invalid("the body is not a request of this route: %s", api.JSONFault(err))
	}
	return nil
}

// stringOf returns the text of a valid JSON value, if that is a string. It costs a third of
// what [json.Unmarshal] does, which matters for the long texts of prompts.
func stringOf(raw json.RawMessage) (text string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	err := strictjson.Value(gjson.ParseBytes(raw), &text)
	return text, err == nil
}

// listOf returns the objects of a valid JSON value, if that is a list of them. Most are
// parts with a text, which textual makes without decoding the text twice.
func listOf[T any](raw json.RawMessage, textual func(kind, text string) T) (all []T, ok bool) {
	list := gjson.ParseBytes(raw)
	if ok = list.IsArray(); !ok {
		return nil, false
	}
	list.ForEach(func(_, v gjson.Result) bool {
		var one T
		if kind, text, found := textPart(v); found {
			one = textual(kind, text)
		} else {
			ok = json.Unmarshal([]byte(v.Raw), &one) == nil
		}
		all = append(all, one)
		return ok
	})
	return all, ok
}

// textPart returns the type and the text of a part, if it has both.
func textPart(v gjson.Result) (kind, text string, ok bool) {
	if !v.IsObject() {
		return "", "", false
	}
	v.ForEach(func(name, value gjson.Result) bool {
		switch {
		case name.Str == "type" && value.Type == gjson.String:
			kind = value.Str
		case name.Str == "text" && value.Type == gjson.String:
			ok = strictjson.Value(value, &text) == nil
		}
		return true
	})
	return kind, text, ok && strings.HasSuffix(kind, "text")
}

// events writes server-sent events.
type events struct {
	w     http.ResponseWriter
	begun bool // an event was written
}

// send writes one event and flushes it. The name may be "". The first call writes the head
// of the answer.
func (s *events) send(name string, v any) error {
	data, err := api.Encode(v)
	if err != nil {
		return err
	}
	return s.raw(name, data)
}

// head sets the headers of the answer before its first event or comment.
func (s *events) head() {
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.w.Header().Set("Cache-Control", "no-store")
}

// Comment implements [Stream]. No blank line follows, because some clients read one as the
// end of an event.
func (s *events) Comment() error {
	if !s.begun {
		s.head()
	}
	if _, err := io.WriteString(s.w, ":\n"); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

func (s *events) raw(name string, data []byte) error {
	if !s.begun {
		s.begun = true
		s.head()
	}
	if name != "" {
		if _, err := fmt.Fprintf(s.w, "event: %s\n", name); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", data); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// write writes a JSON document as the whole answer.
func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

// argumentsOf returns the arguments of a call as the JSON text that OpenAI's protocols
// require: some providers send nothing for a call without arguments.
func argumentsOf(c api.ToolCall) string {
	if strings.TrimSpace(c.Arguments) == "" {
		return "{}"
	}
	return c.Arguments
}

// message returns the text of an error for callers, with what to do next.
func message(err error) string {
	e := api.Wire(err)
	if next := api.Advice(e); next != "" {
		return e.Message + "; " + next
	}
	return e.Message
}
