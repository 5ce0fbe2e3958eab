package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Errors for answers that are not in the protocol.
var (
	errPage  = errors.New("the server answered with a web page, not with a completion: check the base URL, which ends with the version (…/v1)")
	errEmpty = errors.New("the server sent an empty answer")
)

// streamError is an event of a stream that contains an error.
type streamError []byte

func (e streamError) Error() string { return "received error while streaming: " + string(e) }

// maxWhole is the largest unstreamed answer that is read, in bytes: text and arguments at
// their bound, escaped.
const maxWhole = 4 * maxAnswer

// events returns the chunks of an answer: a stream of events, possibly after a byte order
// mark, or one JSON document from a server without streaming. The first character
// decides, because servers send wrong content types for both. whole reads a document, and
// read an event; it returns true for the last event of the answer. An error is the last
// value.
func events(body io.Reader, whole func([]byte) (chunk, error), read func([]byte) (chunk, bool, error)) iter.Seq2[chunk, error] {
	return func(yield func(chunk, error) bool) {
		in := bufio.NewReader(body)
		first, err := start(in)
		switch {
		case errors.Is(err, io.EOF):
			yield(chunk{}, errEmpty)
		case err != nil:
			yield(chunk{}, err)
		case first == '{':
			data, err := readAll(in)
			if err != nil {
				yield(chunk{}, err)
				return
			}
			yield(whole(data))
		case first == '<':
			yield(chunk{}, errPage)
		default:
			stream(in, read, yield)
		}
	}
}

func stream(in io.Reader, read func([]byte) (chunk, bool, error), yield func(chunk, error) bool) {
	// Without the content type, because the client would select another decoder by it.
	events := ssestream.NewDecoder(&http.Response{Body: io.NopCloser(in)})
	for events.Next() {
		data := events.Event().Data
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			return
		}
		if isError(data) {
			yield(chunk{}, streamError(data))
			return
		}
		c, last, err := read(data)
		if !yield(c, err) || err != nil || last {
			return
		}
	}
	if err := events.Err(); err != nil {
		yield(chunk{}, err)
	}
}

// isError reports whether an event has an error that is not null.
func isError(data []byte) bool {
	return bytes.Contains(data, []byte(`"error"`)) && gjson.GetBytes(data, "error").Type != gjson.Null
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

// readAll reads an answer in one document.
func readAll(in io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxWhole+1))
	if err == nil && len(data) > maxWhole {
		err = fmt.Errorf("the answer is larger than %d bytes", maxWhole)
	}
	return data, err
}

// document reads a completion. A missing finish reason becomes "stop", and the tool calls
// get the indexes that those of a stream have.
func document(data []byte) (chunk, error) {
	var whole map[string]json.RawMessage
	var choices []map[string]json.RawMessage
	err := json.Unmarshal(data, &whole)
	if raw := whole["choices"]; err == nil && raw != nil {
		err = json.Unmarshal(raw, &choices)
	}
	switch {
	case err != nil:
		return chunk{}, errors.New("the answer is not a completion: its JSON cannot be read")
	case isError(data):
		return chunk{}, streamError(data)
	case len(choices) == 0:
		return chunk{}, errors.New("the answer is not a completion: it has no choices")
	}
	for _, c := range choices {
		if c != nil {
			c["delta"] = c["message"]
		}
	}
	if whole["choices"], err = json.Marshal(choices); err == nil {
		data, err = json.Marshal(whole)
	}
	if err != nil {
		return chunk{}, err
	}
	c, err := chunkOf(data)
	for i := range c.choices {
		if c.choices[i].finish == "" {
			c.choices[i].finish = provider.FinishStop
		}
		for k := range c.choices[i].calls {
			c.choices[i].calls[k].index = int64(k)
		}
	}
	return c, err
}
