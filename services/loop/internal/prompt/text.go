package prompt

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/untrusted"
)

// MaxResult is what a prompt takes of one tool result or peer message, in bytes
// (spec-core "Numbers to adopt").
const MaxResult = 10_000

// mark is what chat formats put around the words of a speaker. All of them begin
// with one of two characters, which costs a twentieth to look for.
var mark = regexp.MustCompile(`^(?i)(?:<\||<</?sys>>|\[/?inst\]|</?(?:system|assistant|user|tool|function|instructions?)\b)`)

const (
	markBegins = "<["
	maxMark    = len("</instructions>")
)

// Inert normalises text from outside and takes the meaning from marks that a
// model may read as another speaker's: a space parts them.
func Inert(s string) string {
	s = untrusted.Clean(s)
	var b strings.Builder
	for {
		i := strings.IndexAny(s, markBegins)
		if i < 0 {
			break
		}
		b.WriteString(s[:i+1])
		if mark.MatchString(s[i:min(len(s), i+maxMark)]) {
			b.WriteByte(' ')
		}
		s = s[i+1:]
	}
	if b.Len() == 0 {
		return s
	}
	b.WriteString(s)
	return b.String()
}

// Quote is text from outside as data: a line that says whose it is, and every line
// quoted, so no text can end the quotation. It is cut like a tool's result: ten
// strangers must not fill a prompt that the agent pays for.
func Quote(head, text string) string {
	return "[" + head + "]\n> " + strings.ReplaceAll(Cut(Inert(text)), "\n", "\n> ")
}

// Cut keeps a tool's output within what a prompt takes and says what is missing.
// What is no text becomes a mark for it.
func Cut(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= MaxResult {
		return s
	}
	head := upTo(s, MaxResult)
	return fmt.Sprintf("%s\n[%d more bytes were cut]", head, len(s)-len(head))
}

// upTo is the longest beginning of s that has at most n bytes and ends with a
// whole letter.
func upTo(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n = max(n, 0); n > 0 && !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n]
}

// chars is s with at most n characters.
func chars(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// flat is the beginning of a text on one line, at most n characters.
func flat(s string, n int) string {
	s = upTo(s, 8*n) // normalising all of it would be for nothing
	s = strings.Join(strings.Fields(untrusted.Clean(s)), " ")
	if short := chars(s, n); len(short) < len(s) {
		return chars(s, n-1) + "…"
	}
	return s
}

// within cuts a text to a budget in tokens and says what is missing.
func within(c Counter, s string, budget int64) string {
	if c.Count(s) <= budget {
		return s
	}
	const note = "\n[%d more bytes were cut]"
	room := budget - c.Count(fmt.Sprintf(note, len(s)))
	if room <= 0 {
		return ""
	}
	head := s
	for head != "" {
		n := c.Count(head)
		if n <= room {
			break
		}
		// By the share that fits, and a tenth at least, so that this ends soon.
		head = upTo(head, min(len(head)*9/10, int(int64(len(head))*room/n)))
	}
	return head + fmt.Sprintf(note, len(s)-len(head))
}

// PeerMessage renders a message from another agent as quoted data with its
// origin.
func PeerMessage(m api.InboxMessage) string {
	head := "message from peer " + m.From
	if m.Peer != "" {
		head += " (" + m.Peer + ")"
	}
	return Quote(head, m.Content)
}
