package chat

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
	seen    [][]byte        // ids of calls
	ids     map[string]bool // of the calls; nil while there are few
	open    int             // number of calls without a result; they are the last in seen
	before  string          // role of the previous message
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
	if c.used(id) {
		return false
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

// fewCalls is the number of calls up to which their ids are compared with each other, which
// allocates nothing.
const fewCalls = 128

// used reports whether a call before has the id.
func (c *checker) used(id []byte) bool {
	if len(c.seen) < fewCalls {
		return slices.ContainsFunc(c.seen, func(other []byte) bool { return bytes.Equal(other, id) })
	}
	if c.ids == nil {
		c.ids = map[string]bool{}
		for _, other := range c.seen {
			c.ids[string(other)] = true
		}
	}
	used := c.ids[string(id)]
	c.ids[string(id)] = true
	return used
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
		from, seen := i, uint8(space)
		for i < len(s) && kinds[s[i]]&wide == letters { // letters or space
			seen &= kinds[s[i]]
			i++
		}
		if i > from {
			quarters += int64(i - from)
			blank = blank && seen == space
			continue
		}
		switch kinds[s[i]] {
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
// escaped have the bit of letters.
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
