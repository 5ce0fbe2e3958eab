package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/openai/openai-go/v3/packages/ssestream"
)

// Errors for answers that are not in the protocol.
var (
	errPage  = errors.New("the server answered with a web page, not with a completion: check the base URL, which ends with the version (…/v1)")
	errEmpty = errors.New("the server sent an empty answer")
)

// maxWhole is the largest unstreamed answer that is read, in bytes: text and arguments at
// their bound, escaped.
const maxWhole = 4 * maxAnswer

// events reads the answer of a server: a stream of events, possibly after a byte order
// mark, or one JSON document from a server without streaming. The first character
// decides, because servers send wrong content types for both. It takes ownership of
// res.Body.
func events(res *http.Response) ssestream.Decoder {
	in := bufio.NewReader(res.Body)
	body := &buffered{Reader: in, Closer: res.Body}
	first, err := start(in)
	switch {
	case errors.Is(err, io.EOF):
		return &single{body: body, err: errEmpty}
	case err != nil:
		return &single{body: body, err: err}
	case first == '{':
		return &single{body: body}
	case first == '<':
		return &single{body: body, err: errPage}
	}
	// Without the content type, because the client would select another decoder by it.
	return &lenient{ssestream.NewDecoder(&http.Response{Header: http.Header{}, Body: body})}
}

type buffered struct {
	io.Reader
	io.Closer
}

// start skips a byte order mark and white space. It returns the next byte without
// consuming it.
func start(in *bufio.Reader) (byte, error) {
	if mark, err := in.Peek(3); err == nil && bytes.Equal(mark, []byte("\uFEFF")) {
		if _, err := in.Discard(3); err != nil {
			return 0, err
		}
	}
	for {
		b, err := in.ReadByte()
		if err != nil {
			return 0, err
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return b, in.UnreadByte()
	}
}

// lenient is a stream decoder that removes "error": null from events, because the client
// would treat it as an error.
type lenient struct{ ssestream.Decoder }

func (l *lenient) Event() ssestream.Event {
	e := l.Decoder.Event()
	e.Data = withoutNullError(e.Data)
	return e
}

func withoutNullError(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"error"`)) {
		return data
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil || string(all["error"]) != "null" {
		return data
	}
	delete(all, "error")
	clean, err := json.Marshal(all)
	if err != nil {
		return data
	}
	return clean
}

// single decodes an answer in one document as a stream of one event.
type single struct {
	body io.ReadCloser
	err  error
	data []byte
	read bool
}

func (s *single) Next() bool {
	if s.err != nil || s.read {
		return false
	}
	s.read = true
	data, err := io.ReadAll(io.LimitReader(s.body, maxWhole+1))
	switch {
	case err != nil:
		s.err = err
	case len(data) > maxWhole:
		s.err = fmt.Errorf("the answer is larger than %d bytes", maxWhole)
	default:
		s.data, s.err = chunkOf(data)
	}
	return s.err == nil
}

func (s *single) Event() ssestream.Event { return ssestream.Event{Data: s.data} }

func (s *single) Err() error { return s.err }

func (s *single) Close() error { return s.body.Close() }

// chunkOf converts a whole completion to the single chunk of a stream. An error object
// passes unchanged. A missing finish reason becomes "stop".
func chunkOf(data []byte) ([]byte, error) {
	var whole struct {
		ID      json.RawMessage `json:"id,omitempty"`
		Model   json.RawMessage `json:"model,omitempty"`
		Choices []struct {
			Index   json.RawMessage            `json:"index,omitempty"`
			Message map[string]json.RawMessage `json:"message"`
			Finish  *string                    `json:"finish_reason"`
		} `json:"choices"`
		Usage json.RawMessage `json:"usage,omitempty"`
		Error json.RawMessage `json:"error,omitempty"`
	}
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, errors.New("the answer is not a completion: its JSON cannot be read")
	}
	if len(whole.Error) > 0 && string(whole.Error) != "null" {
		return data, nil
	}
	if len(whole.Choices) == 0 {
		return nil, errors.New("the answer is not a completion: it has no choices")
	}
	chunk := map[string]any{}
	for name, raw := range map[string]json.RawMessage{"id": whole.ID, "model": whole.Model, "usage": whole.Usage} {
		if len(raw) > 0 {
			chunk[name] = raw
		}
	}
	choices := make([]map[string]any, 0, len(whole.Choices))
	for _, c := range whole.Choices {
		reason := "stop"
		if c.Finish != nil && *c.Finish != "" {
			reason = *c.Finish
		}
		choice := map[string]any{"delta": numbered(c.Message), "finish_reason": reason}
		if len(c.Index) > 0 {
			choice["index"] = c.Index
		}
		choices = append(choices, choice)
	}
	chunk["choices"] = choices
	return json.Marshal(chunk)
}

// numbered adds to the tool calls of a whole message the indexes that a delta has.
func numbered(message map[string]json.RawMessage) map[string]json.RawMessage {
	var calls []map[string]json.RawMessage
	if json.Unmarshal(message["tool_calls"], &calls) != nil {
		return message
	}
	for i, c := range calls {
		if c != nil {
			c["index"] = json.RawMessage(fmt.Sprint(i))
		}
	}
	if raw, err := json.Marshal(calls); err == nil {
		message["tool_calls"] = raw
	}
	return message
}
