package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// MaxBody is the largest request that is read, in bytes. A full context window of a
// million tokens is far smaller.
const MaxBody = 32 << 20

// Decode reads one request with a new [Decoder].
func Decode(r io.Reader) (Request, error) { return new(Decoder).Decode(r, 0) }

// Bounds on the memory that a decoder keeps.
const (
	maxKits = 16        // lists of tools; clients send few different lists
	maxKit  = 128 << 10 // bytes of one list
	maxSpan = 1 << 20   // bytes of a buffer that is reused, and of one allocated in advance
)

// Decoder decodes requests. It caches decoded lists of tools, because clients send the
// same list with each request. [Request.Tools] is therefore shared between requests and
// must not be modified. The zero value is ready to use. A Decoder is safe for concurrent
// use.
type Decoder struct {
	buffers sync.Pool

	mu   sync.Mutex
	kits []kit // at most maxKits; the slice is replaced, never modified
	next int   // index to replace when there are maxKits
}

// kit is a list of tools and its JSON, an array.
type kit struct {
	raw   string
	tools []Tool
}

// Decode reads one request of at most [MaxBody] bytes. size is the length that the client
// announced, 0 or less if it announced none. Errors are suitable for an answer to the
// client.
func (d *Decoder) Decode(r io.Reader, size int64) (Request, error) {
	body, err := d.read(r, size)
	if err != nil {
		return Request{}, unreadable(err)
	}
	req, unknown, ok := d.quick(body)
	if !ok {
		if req, err = decode(body); err != nil {
			return Request{}, unreadable(err)
		}
	}
	if err := req.check(); err != nil {
		return Request{}, err
	}
	if unknown != "" {
		d.remember(unknown, req.Tools)
	}
	return req, nil
}

func unreadable(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the body ends in the middle or is larger than %d bytes", MaxBody)
	}
	return fmt.Errorf("the body is not a chat completion request: %w", err)
}

func (d *Decoder) read(r io.Reader, size int64) (string, error) {
	b, ok := d.buffers.Get().(*bytes.Buffer)
	if !ok {
		b = new(bytes.Buffer)
	}
	b.Reset()
	if size > 0 {
		b.Grow(int(min(size, maxSpan)) + bytes.MinRead) // with room for the read that returns io.EOF
	}
	_, err := b.ReadFrom(io.LimitReader(r, MaxBody))
	body := b.String()
	if b.Cap() <= 2*maxSpan {
		d.buffers.Put(b)
	}
	return body, err
}

// decode decodes any request with encoding/json.
func decode(body string) (Request, error) {
	var req Request
	err := json.NewDecoder(strings.NewReader(body)).Decode(&req)
	return req, err
}

// quick decodes a request in the form in which package chat encodes prompts: messages
// first, then tools, then the other fields. The result is that of [decode]. It returns
// false for a request in another form. If only the list of tools is not in the cache, it
// returns false with the JSON of the list.
func (d *Decoder) quick(body string) (req Request, unknown string, ok bool) {
	f := form{rest: body}
	if !f.take(`{"messages":[`) || !f.messages(&req.Messages) {
		return Request{}, "", false
	}
	if f.take(`,"tools":[`) {
		raw := f.rest
		f.rest = body[len(body)-len(raw)-1:] // with the bracket
		var known bool
		if req.Tools, known = d.known(&f); !known {
			if unknown, ok = f.list(); !ok {
				return Request{}, "", false
			}
		}
	}
	if !f.take(`,"`) { // another field must follow
		return Request{}, "", false
	}
	// encoding/json would decode a second list of messages or tools into the first one.
	head := struct {
		*Request

		Messages json.RawMessage `json:"messages"`
		Tools    json.RawMessage `json:"tools"`
	}{Request: &req}
	rest := append(append(make([]byte, 0, len(f.rest)+2), `{"`...), f.rest...)
	if json.Unmarshal(rest, &head) != nil || head.Messages != nil || head.Tools != nil {
		return Request{}, "", false
	}
	return req, unknown, unknown == ""
}

// known consumes a list of tools that is in the cache. The comparison by prefix is exact,
// because no JSON array is the beginning of another.
func (d *Decoder) known(f *form) ([]Tool, bool) {
	d.mu.Lock()
	kits := d.kits
	d.mu.Unlock()
	for _, k := range kits {
		if f.take(k.raw) {
			return k.tools, true
		}
	}
	return nil, false
}

func (d *Decoder) remember(raw string, tools []Tool) {
	if len(raw) > maxKit {
		return
	}
	k := kit{strings.Clone(raw), tools} // the clone allows the body to be garbage-collected
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.kits, func(other kit) bool { return other.raw == raw }) {
		return
	}
	kits := slices.Clone(d.kits)
	if len(kits) < maxKits {
		kits = append(kits, k)
	} else {
		kits[d.next] = k
		d.next = (d.next + 1) % maxKits
	}
	d.kits = kits
}

// form parses JSON without white space and with its fields in a fixed order. Its methods
// consume the input and return false if the next part does not match.
type form struct{ rest string }

// take consumes the expected text.
func (f *form) take(expected string) bool {
	var ok bool
	f.rest, ok = strings.CutPrefix(f.rest, expected)
	return ok
}

// messages consumes a list of at least one message after its opening bracket.
func (f *form) messages(out *[]Message) bool {
	const usual = 200 // typical bytes of a message, to estimate the number of messages
	*out = make([]Message, 0, min(len(f.rest)/usual, 1024)+1)
	for {
		var m Message
		if !f.message(&m) {
			return false
		}
		*out = append(*out, m)
		if f.take("]") {
			return true
		}
		if !f.take(",") {
			return false
		}
	}
}

func (f *form) message(m *Message) bool {
	var content string
	if !f.take(`{"role":"`) || !f.text(&m.Role) {
		return false
	}
	if f.take(`,"content":"`) && !f.text(&content) {
		return false
	}
	m.Content = Content(content)
	if f.take(`,"tool_calls":[`) && !f.calls(&m.ToolCalls) {
		return false
	}
	if f.take(`,"tool_call_id":"`) && !f.text(&m.ToolCallID) {
		return false
	}
	return f.take("}")
}

// calls consumes a list of at least one tool call after its opening bracket.
func (f *form) calls(out *[]ToolCall) bool {
	for {
		c := ToolCall{Type: "function"}
		if !f.take(`{"id":"`) || !f.text(&c.ID) ||
			!f.take(`,"type":"function","function":{"name":"`) || !f.text(&c.Function.Name) ||
			!f.take(`,"arguments":"`) || !f.text(&c.Function.Arguments) || !f.take("}}") {
			return false
		}
		*out = append(*out, c)
		if f.take("]") {
			return true
		}
		if !f.take(",") {
			return false
		}
	}
}

// list consumes a JSON array and returns it undecoded.
func (f *form) list() (string, bool) {
	var raw json.RawMessage
	in := json.NewDecoder(strings.NewReader(f.rest))
	if in.Decode(&raw) != nil {
		return "", false
	}
	list := f.rest[:in.InputOffset()]
	f.rest = f.rest[len(list):]
	return list, true
}

// text consumes a string after its opening quote. Without escapes the result is a
// substring of the body.
func (f *form) text(out *string) bool {
	s := f.rest
	ascii := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"':
			f.rest = s[i+1:]
			*out = s[:i]
			return ascii || utf8.ValidString(s[:i])
		case c == '\\':
			return f.escaped(i, out)
		case c < ' ':
			return false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return false
}

// escaped is text for a string with its first escape at index i.
func (f *form) escaped(i int, out *string) bool {
	s := f.rest
	end := i
	for end < len(s) && s[end] != '"' {
		if s[end] < ' ' {
			return false
		}
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) || !utf8.ValidString(s[:end]) {
		return false
	}
	f.rest, s = s[end+1:], s[:end]
	var b strings.Builder
	b.Grow(len(s))
	for i >= 0 {
		b.WriteString(s[:i])
		plain, size := unescape(s[i:])
		if size == 0 {
			return false
		}
		b.WriteRune(plain)
		s = s[i+size:]
		i = strings.IndexByte(s, '\\')
	}
	b.WriteString(s)
	*out = b.String()
	return true
}

// unescape returns the character of the escape at the beginning of s, and the length of
// the escape in bytes. The length is 0 for an invalid escape and for a surrogate.
func unescape(s string) (rune, int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch s[1] {
	case '"', '\\', '/':
		return rune(s[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		if len(s) < 6 {
			return 0, 0
		}
		var r rune
		for _, c := range []byte(s[2:6]) {
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			case c >= 'A' && c <= 'F':
				c -= 'A' - 10
			default:
				return 0, 0
			}
			r = r<<4 | rune(c)
		}
		if !utf8.ValidRune(r) { // a surrogate
			return 0, 0
		}
		return r, 6
	}
	return 0, 0
}
