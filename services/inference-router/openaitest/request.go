// Package openaitest is the server side of OpenAI's chat completions, for tests: it
// decodes requests and writes answers, whole or as server-sent events. [Simulated] serves
// the simulated model. The package must not decide about a request beyond whether it can
// be read.
package openaitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/strictjson"
)

// Request is the body of POST /v1/chat/completions.
type Request struct {
	provider.Request // TokenParam is empty if the request has no output limit

	Stream        bool
	StreamOptions bool // the request has stream_options
	IncludeUsage  bool // the stream has to report the usage
	ToolChoice    bool // the request has tool_choice
}

// maxBody is the largest request that is read, in bytes.
const maxBody = 32 << 20

// Decode reads one request. size is the length that the client announced, 0 or less if it
// announced none. Decode refuses a body that is not JSON, a field that is not in OpenAI's
// documentation or that the tests do not need, and a value of another type. It does not
// check the values. Errors are suitable for an answer to the client.
func Decode(r io.Reader, size int64) (Request, error) {
	var data bytes.Buffer
	data.Grow(int(min(max(size, 0), maxBody)) + bytes.MinRead) // with room for the read that returns io.EOF
	if _, err := data.ReadFrom(io.LimitReader(r, maxBody)); err != nil {
		return Request{}, errors.New("the body cannot be read")
	}
	body := data.String()
	if !utf8.ValidString(body) || !gjson.Valid(body) {
		return Request{}, fmt.Errorf("the body is not JSON or is larger than %d bytes", maxBody)
	}
	var req Request
	if err := strictjson.Object(gjson.Parse(body), req.field); err != nil {
		return Request{}, fmt.Errorf("the body is not a request: %w", err)
	}
	return req, nil
}

// errUnknown is the error for a field that the protocol does not have.
var errUnknown = errors.New("unknown field")

func (r *Request) field(name string, v gjson.Result) error {
	switch name {
	case "model":
		return strictjson.Value(v, &r.Model)
	case "messages":
		return strictjson.Array(v, r.message)
	case "tools":
		return strictjson.Array(v, r.tool)
	case "tool_choice":
		r.ToolChoice = v.Type != gjson.Null
		return nil
	case "stream":
		return strictjson.Value(v, &r.Stream)
	case "stream_options":
		r.StreamOptions = v.Type != gjson.Null
		return strictjson.Object(v, func(name string, v gjson.Result) error {
			if name != "include_usage" {
				return errUnknown
			}
			return strictjson.Value(v, &r.IncludeUsage)
		})
	case string(model.MaxTokens), string(model.MaxCompletionTokens):
		if r.TokenParam != "" {
			return errors.New("max_tokens and max_completion_tokens cannot both be set")
		}
		r.TokenParam = model.TokenParam(name)
		return strictjson.Value(v, &r.MaxTokens)
	case "top_p":
		return optional(v, &r.TopP)
	case "temperature":
		return optional(v, &r.Temperature)
	case "frequency_penalty":
		return optional(v, &r.FrequencyPenalty)
	case "presence_penalty":
		return optional(v, &r.PresencePenalty)
	case "stop":
		return json.Unmarshal([]byte(v.Raw), &r.Stop)
	case "parallel_tool_calls":
		several := true
		err := strictjson.Value(v, &several)
		r.SingleCall = !several
		return err
	case "response_format":
		r.ResponseFormat = []byte(v.Raw)
		_, err := provider.FormatOf(r.ResponseFormat)
		return err
	case "reasoning_effort":
		return strictjson.Value(v, &r.Effort)
	case "seed":
		return optional(v, &r.Seed)
	}
	return errUnknown
}

// optional reads a value that a request may leave out.
func optional[T int64 | float64](v gjson.Result, out **T) error {
	*out = new(T)
	return strictjson.Value(v, *out)
}

func (r *Request) message(v gjson.Result) error {
	r.Messages = append(r.Messages, provider.Message{})
	m := &r.Messages[len(r.Messages)-1]
	spoken := false
	err := strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "role":
			return strictjson.Value(v, &m.Role)
		case "content":
			if v.IsArray() {
				return strictjson.Array(v, func(v gjson.Result) error { return part(v, m) })
			}
			spoken = v.Type == gjson.String
			return strictjson.Value(v, &m.Content)
		case "tool_calls":
			return strictjson.Array(v, func(v gjson.Result) error { return call(v, m) })
		case "tool_call_id":
			return strictjson.Value(v, &m.ToolCallID)
		}
		return errUnknown
	})
	switch {
	case err != nil:
		return err
	case m.Role == provider.ToolRole && !spoken:
		return errors.New("a result needs content")
	case m.Role == provider.Assistant && spoken && m.Content == "":
		return errors.New("content is empty; leave it out")
	}
	return nil
}

// part adds a part of a content: a text, or an image.
func part(v gjson.Result, m *provider.Message) error {
	var kind, text, address, detail string
	err := strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "type":
			return strictjson.Value(v, &kind)
		case "text":
			return strictjson.Value(v, &text)
		case "image_url":
			return strictjson.Object(v, func(name string, v gjson.Result) error {
				switch name {
				case "url":
					return strictjson.Value(v, &address)
				case "detail":
					return strictjson.Value(v, &detail)
				}
				return errUnknown
			})
		}
		return errUnknown
	})
	switch {
	case err != nil:
		return err
	case kind == "text" && text != "":
		chat.Add(m, chat.Part{Text: text})
		return nil
	case kind != "image_url" || m.Role != provider.User:
		return fmt.Errorf("a part of type %q is not allowed for the role %s", kind, m.Role)
	}
	picture, err := chat.ImageOf(address)
	if err != nil {
		return err
	}
	picture.Detail = detail
	chat.Add(m, chat.Part{Image: &picture})
	return chat.CheckImages([]provider.Message{*m})
}

func call(v gjson.Result, m *provider.Message) error {
	var c provider.ToolCall
	err := function(v, &c.ID, func(name string, v gjson.Result) error {
		switch name {
		case "name":
			return strictjson.Value(v, &c.Name)
		case "arguments":
			return strictjson.Value(v, &c.Arguments)
		}
		return errUnknown
	})
	m.ToolCalls = append(m.ToolCalls, c)
	return err
}

func (r *Request) tool(v gjson.Result) error {
	var t provider.Tool
	err := function(v, nil, func(name string, v gjson.Result) error {
		switch name {
		case "name":
			return strictjson.Value(v, &t.Name)
		case "description":
			return strictjson.Value(v, &t.Description)
		case "parameters":
			t.Schema = []byte(v.Raw)
			return nil
		case "strict":
			return strictjson.Value(v, &t.Strict)
		}
		return errUnknown
	})
	r.Tools = append(r.Tools, t)
	return err
}

// function reads an object of the type "function": a tool call, which has an id, or a
// tool.
func function(v gjson.Result, id *string, field func(name string, v gjson.Result) error) error {
	var kind string
	err := strictjson.Object(v, func(name string, v gjson.Result) error {
		switch {
		case name == "type":
			return strictjson.Value(v, &kind)
		case name == "function":
			return strictjson.Object(v, field)
		case name == "id" && id != nil:
			return strictjson.Value(v, id)
		}
		return errUnknown
	})
	if err == nil && kind != "function" {
		err = fmt.Errorf("the type is %q, not 'function'", kind)
	}
	return err
}
