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
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
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

// Stream writes the parts of an answer and flushes each. Errors mean that the caller has
// disconnected.
type Stream interface {
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

// decode decodes a JSON object. Unknown fields are ignored: SDKs send new ones.
func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	err := d.Decode(v)
	if err != nil {
		return invalid("the body is not a request of this route: %s", api.JSONFault(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("the body has more than one JSON value")
	}
	return nil
}

// events writes server-sent events.
type events struct {
	w     http.ResponseWriter
	begun bool
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

func (s *events) raw(name string, data []byte) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		s.w.Header().Set("Cache-Control", "no-store")
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

// message returns the text of an error for callers, with what to do next.
func message(err error) string {
	e := api.Wire(err)
	if next := api.Advice(e); next != "" {
		return e.Message + "; " + next
	}
	return e.Message
}
