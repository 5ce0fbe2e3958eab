// Package chat encodes prompts as JSON, in the form of the messages and tools of
// OpenAI's chat completions. A prompt is normalised and encoded once; the same bytes
// are hashed, stored and sent to the provider. [Check] checks whether the bytes are a
// normal prompt, without decoding them.
//
// It must not do I/O and must not contain rules for a single provider.
package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// The roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// Encode returns the JSON of messages in the only form that [Check] accepts. It
// replaces invalid UTF-8 by U+FFFD.
func Encode(messages []api.ChatMessage) []byte {
	n := 2
	for _, m := range messages {
		n += len(m.Content) + len(m.Content)/16 + 64
		for _, c := range m.ToolCalls {
			n += len(c.Arguments) + len(c.Arguments)/4 + 128
		}
	}
	out := append(make([]byte, 0, n), '[')
	for i, m := range messages {
		if i > 0 {
			out = append(out, ',')
		}
		out = text(append(out, `{"role":`...), m.Role)
		if m.Content != "" || len(m.ToolCalls) == 0 { // some servers refuse an empty text beside calls
			out = text(append(out, `,"content":`...), m.Content)
		}
		for k, c := range m.ToolCalls {
			if k == 0 {
				out = append(out, `,"tool_calls":[`...)
			} else {
				out = append(out, ',')
			}
			out = text(append(out, `{"id":`...), c.ID)
			out = text(append(out, `,"type":"function","function":{"name":`...), c.Name)
			out = append(text(append(out, `,"arguments":`...), c.Arguments), `}}`...)
		}
		if len(m.ToolCalls) > 0 {
			out = append(out, ']')
		}
		if m.ToolCallID != "" {
			out = text(append(out, `,"tool_call_id":`...), m.ToolCallID)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

// EncodeTools returns the JSON of the tools that are offered to a model. It does not
// change their schemas. It returns an error for a schema that is not JSON.
func EncodeTools(tools []api.Tool) ([]byte, error) {
	out := []byte{'['}
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = text(append(out, `{"type":"function","function":{"name":`...), t.Name)
		if t.Description != "" {
			out = text(append(out, `,"description":`...), t.Description)
		}
		if len(t.Schema) > 0 {
			if !json.Valid(t.Schema) {
				return nil, fmt.Errorf("the schema of tool %s is not JSON", t.Name)
			}
			out = append(append(out, `,"parameters":`...), t.Schema...)
		}
		out = append(out, `}}`...)
	}
	return append(out, ']'), nil
}

const hex = "0123456789abcdef"

// text appends s to out as a JSON string.
func text(out []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	out = append(out, '"')
	for {
		i := 0
		for i < len(s) && kinds[s[i]]&1 == 1 { // letters, space and wide are odd
			i++
		}
		out = append(out, s[:i]...)
		if i == len(s) {
			return append(out, '"')
		}
		c := s[i]
		s = s[i+1:]
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
}

// message is a message in any JSON of the protocol, normal or not.
type message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	ToolCallID string `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// Decode returns the messages of a prompt, normal or not. The contents must be strings.
func Decode(messages []byte) ([]api.ChatMessage, error) {
	var all []message
	if err := json.Unmarshal(messages, &all); err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	out := make([]api.ChatMessage, len(all))
	for i, m := range all {
		out[i] = api.ChatMessage{Role: m.Role, Content: m.Content, ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			out[i].ToolCalls = append(out[i].ToolCalls, api.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
	}
	return out, nil
}

// DecodeTools returns the tools of a prompt.
func DecodeTools(tools []byte) ([]api.Tool, error) {
	var all []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(tools, &all); err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	out := make([]api.Tool, len(all))
	for i, t := range all {
		out[i] = api.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters}
	}
	return out, nil
}

// Tokens returns an estimate of the number of tokens of a text: a quarter of its ASCII
// bytes plus half of all other bytes, rounded up.
func Tokens[T string | []byte](text T) int64 {
	quarters := int64(len(text))
	for i := range len(text) {
		quarters += int64(text[i] >> 7) // 1 if it is not ASCII
	}
	return (quarters + 3) / 4
}

// Measure is the size of a prompt.
type Measure struct {
	Messages int64
	Calls    int64
	Tokens   int64 // sum of [Tokens] over all contents, names and arguments, without ids
}

// Check reports whether messages have the form of [Encode] and are normal, as after
// [Normalize] with tools, and returns their size. It takes linear time and decodes only
// the arguments of calls. If it returns false, the messages have to be decoded and
// normalised, or are not valid at all.
func Check(messages []byte) (Measure, bool) {
	c := checker{rest: messages}
	ok := c.messages()
	return c.Measure, ok && len(c.rest) == 0
}

// checker is the state of [Check]. The rest is the part of the messages that is not
// read yet.
type checker struct {
	Measure

	rest    []byte
	seen    [][]byte // ids of calls
	open    int      // number of calls without a result; they are the last in seen
	before  string   // role of the previous message
	users   int
	scratch []byte
}

// take reads expected from the rest. It returns false if the rest begins differently.
func (c *checker) take(expected string) bool {
	if len(c.rest) < len(expected) || string(c.rest[:len(expected)]) != expected {
		return false
	}
	c.rest = c.rest[len(expected):]
	return true
}

// list reads one or more elements of a list and its end.
func (c *checker) list(element func() bool) bool {
	for element() {
		if c.take("]") {
			return true
		}
		if !c.take(",") {
			return false
		}
	}
	return false
}

func (c *checker) messages() bool {
	return c.take("[") && c.list(c.message) && c.users > 0 && c.open == 0 && (c.before == User || c.before == ToolRole)
}

func (c *checker) message() bool {
	c.Messages++
	if !c.take(`{"role":"`) {
		return false
	}
	spoken, follows := false, false
	before := c.before
	switch {
	case c.take(`system"`):
		c.before, follows = System, before == "" || before == System
	case c.take(`user"`):
		c.users++
		c.before, follows = User, before != User && before != ToolRole
	case c.take(`assistant"`):
		c.before, follows = Assistant, before == User || before == ToolRole
	case c.take(`tool"`):
		c.before, follows = ToolRole, c.open > 0
	}
	if !follows || c.open > 0 && c.before != ToolRole {
		return false
	}
	if c.take(`,"content":`) {
		_, blank, ok := c.text()
		if !ok || blank {
			return false
		}
		spoken = true
	}
	switch {
	case c.before == ToolRole:
		return spoken && c.take(`,"tool_call_id":`) && c.answers() && c.take("}")
	case c.before == Assistant && c.take(`,"tool_calls":[`):
		return c.list(c.call) && c.take("}")
	}
	return spoken && c.take("}")
}

// answers reads the id of a result, which must be that of the first call without a
// result.
func (c *checker) answers() bool {
	tokens := c.Tokens
	id, _, ok := c.text()
	c.Tokens = tokens
	if !ok || !bytes.Equal(id, c.seen[len(c.seen)-c.open]) {
		return false
	}
	c.open--
	return true
}

func (c *checker) call() bool {
	c.Calls++
	if !c.take(`{"id":`) {
		return false
	}
	tokens := c.Tokens
	id, _, ok := c.text()
	c.Tokens = tokens
	if !ok || !word(id, maxCallID) {
		return false
	}
	for _, other := range c.seen {
		if bytes.Equal(other, id) {
			return false
		}
	}
	c.seen, c.open = append(c.seen, id), c.open+1
	if !c.take(`,"type":"function","function":{"name":`) {
		return false
	}
	name, _, ok := c.text()
	if !ok || !word(name, maxName) || !c.take(`,"arguments":`) {
		return false
	}
	arguments, _, ok := c.text()
	if !ok || !c.take("}}") {
		return false
	}
	c.scratch = plain(c.scratch[:0], arguments)
	return isObject(c.scratch)
}

// text reads a string and adds its tokens to the size. It returns the bytes between the
// quotes, and whether they contain only space.
func (c *checker) text() (raw []byte, blank, ok bool) {
	if !c.take(`"`) {
		return nil, false, false
	}
	s := c.rest
	var quarters int64
	blank = true
	ascii := true
	for i := 0; i < len(s); {
		from := i
		for i < len(s) && kinds[s[i]] == letters {
			i++
		}
		if i > from {
			quarters += int64(i - from)
			blank = false
			continue
		}
		switch kinds[s[i]] {
		case space:
			quarters++
			i++
		case quote:
			raw, c.rest = s[:i], s[i+1:]
			c.Tokens += (quarters + 3) / 4
			return raw, blank, ascii || utf8.Valid(raw)
		case backslash:
			n, white := escape(s[i:])
			if n == 0 {
				return nil, false, false
			}
			blank = blank && white
			quarters++
			i += n
		case wide:
			r, size := utf8.DecodeRune(s[i:])
			ascii, blank = false, blank && unicode.IsSpace(r)
			quarters += 2 * int64(size)
			i += size
		default:
			return nil, false, false
		}
	}
	return nil, false, false
}

// The kinds of bytes in the JSON string of a prompt. The kinds of bytes that are not
// escaped are odd.
const (
	control   = 0 // has to be escaped
	letters   = 1
	quote     = 2
	space     = 3
	backslash = 4
	wide      = 5 // part of a rune that is not ASCII
)

//nolint:gochecknoglobals // a table
var kinds = func() (t [256]uint8) {
	for i := ' '; i < utf8.RuneSelf; i++ {
		t[i] = letters
	}
	for i := utf8.RuneSelf; i < len(t); i++ {
		t[i] = wide
	}
	t[' '], t['"'], t['\\'] = space, quote, backslash
	return t
}()

// escape returns the length of the escape sequence at the beginning of s, 0 if [Encode]
// does not write such a sequence, and whether it represents space.
func escape(s []byte) (n int, space bool) {
	if len(s) < 2 {
		return 0, false
	}
	switch s[1] {
	case '"', '\\':
		return 2, false
	case 'n', 'r', 't':
		return 2, true
	case 'u':
		if len(s) >= 6 && s[2] == '0' && s[3] == '0' && (s[4] == '0' || s[4] == '1') && strings.IndexByte(hex, s[5]) >= 0 {
			code := s[5]
			return 6, s[4] == '0' && (code == 'b' || code == 'c')
		}
	}
	return 0, false
}

// plain appends to out the unescaped text of a string that [checker.text] has read.
func plain(out, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(out, raw...)
		}
		out = append(out, raw[:i]...)
		switch raw[i+1] {
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			out = append(out, byte(strings.IndexByte(hex, raw[i+4])<<4|strings.IndexByte(hex, raw[i+5])))
			i += 4
		default:
			out = append(out, raw[i+1])
		}
		raw = raw[i+2:]
	}
}
