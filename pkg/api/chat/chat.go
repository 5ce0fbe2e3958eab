// Package chat is the form in which prompts travel: the messages and tools of OpenAI's
// chat completions, as JSON. A prompt is normalised and encoded once; its bytes are
// hashed, carried and sent to the provider as they are. [Check] tells a normal prompt
// from its bytes, without decoding them.
//
// It must not do I/O, and it knows no provider's exceptions.
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

// Encode writes messages, in the one form that [Check] takes. What is no UTF-8 becomes
// U+FFFD.
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
		if m.Content != "" || len(m.ToolCalls) == 0 { // there are servers that refuse an empty text beside calls
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

// EncodeTools writes the tools that a model is offered; schemas stay as they are. It
// refuses a schema that is no JSON.
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

// text appends a JSON string.
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

// message is a message as any writer of the protocol may send it.
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

// Decode reads messages whose contents are texts, normal or not.
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

// DecodeTools reads tools.
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

// Tokens estimates how many tokens a text is: a quarter of its ASCII bytes plus half of
// all other bytes, rounded up.
func Tokens[T string | []byte](text T) int64 {
	quarters := int64(len(text))
	for i := range len(text) {
		quarters += int64(text[i] >> 7) // 1 where it is not ASCII
	}
	return (quarters + 3) / 4
}

// Measure is how large a prompt is.
type Measure struct {
	Messages int64
	Calls    int64
	Tokens   int64 // [Tokens] of all contents, names and arguments, added up; ids count nothing
}

// Check says whether messages are normal, as by [Normalize] with tools, and in the form
// of [Encode]. It takes linear time and decodes nothing but the arguments of calls.
// False means that they have to be decoded and normalised, or that they are no messages
// at all.
func Check(messages []byte) (Measure, bool) {
	c := checker{rest: messages}
	ok := c.messages()
	return c.Measure, ok && len(c.rest) == 0
}

type checker struct {
	Measure

	rest    []byte
	seen    [][]byte // ids of calls
	open    int      // calls without a result, the last of seen
	before  string   // role of the message before
	users   int
	scratch []byte
}

// take takes what is expected next.
func (c *checker) take(expected string) bool {
	if len(c.rest) < len(expected) || string(c.rest[:len(expected)]) != expected {
		return false
	}
	c.rest = c.rest[len(expected):]
	return true
}

func (c *checker) messages() bool {
	if !c.take("[") {
		return false
	}
	for {
		if !c.message() {
			return false
		}
		if c.take("]") {
			break
		}
		if !c.take(",") {
			return false
		}
	}
	return c.users > 0 && c.open == 0 && (c.before == User || c.before == ToolRole)
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
		return c.calls() && c.take("}")
	}
	return spoken && c.take("}")
}

// answers takes the id of the first call without a result.
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

func (c *checker) calls() bool {
	for {
		if !c.call() {
			return false
		}
		if c.take("]") {
			return true
		}
		if !c.take(",") {
			return false
		}
	}
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

// text takes a string and counts its tokens. It returns what is between the quotes, and
// whether that is nothing but space.
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

// What a byte can be in the string of a prompt; those that stand for themselves are odd.
const (
	control   = 0 // it has to be escaped
	letters   = 1
	quote     = 2
	space     = 3
	backslash = 4
	wide      = 5 // of a rune that is not ASCII
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

// escape is the length of the escape that s begins with, 0 if it is none of [Encode]'s,
// and whether it stands for space.
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

// plain appends the text of a string that [checker.text] has taken.
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
