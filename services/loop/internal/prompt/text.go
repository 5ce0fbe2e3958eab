package prompt

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// MaxResult is the largest size of one tool result or peer message in a prompt, in bytes
// (docs/reference/context.md, Rendered turns).
const MaxResult = 10_000

// mark matches the marks that chat formats put around a message. All of them begin with
// one of two characters, so searching these first takes a twentieth of the time.
var mark = regexp.MustCompile(`^(?i)(?:<\||<</?sys>>|\[/?inst\]|</?(?:system|assistant|user|tool|function|instructions?)\b)`)

const (
	markBegins = "<["
	maxMark    = len("</instructions>")
)

// Inert normalises external text and inserts a space into marks that a model may take for
// the beginning of another message.
func Inert(s string) string {
	s = sanitize.Clean(s)
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

// Quote returns external text as data: a line with its origin, and every line quoted, so
// that the text cannot end the quotation. It is cut as a tool result is, because senders
// must not fill a prompt that the agent pays for.
func Quote(head, text string) string {
	return sanitize.Quote(head, Cut(Inert(text)))
}

// Cut cuts a tool's output to [MaxResult] and notes the number of missing bytes. It
// replaces invalid UTF-8 and NUL by U+FFFD.
func Cut(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= MaxResult {
		return s
	}
	head := sanitize.Bytes(s, MaxResult)
	return fmt.Sprintf("%s\n[%d more bytes were cut]", head, len(s)-len(head))
}

// flat returns the beginning of a text on one line, at most n characters.
func flat(s string, n int) string {
	s = sanitize.Bytes(s, 8*n) // there is no need to normalise all of it
	s = strings.Join(strings.Fields(sanitize.Clean(s)), " ")
	if short := sanitize.First(s, n); len(short) < len(s) {
		return sanitize.First(s, n-1) + "…"
	}
	return s
}

// within cuts a text to a budget in tokens and notes the number of missing bytes.
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
		// By the ratio, and by at least a tenth, so that the loop ends soon.
		head = sanitize.Bytes(head, min(len(head)*9/10, int(int64(len(head))*room/n)))
	}
	return head + fmt.Sprintf(note, len(s)-len(head))
}

// PeerMessage renders a message of another agent as quoted data with its origin.
func PeerMessage(m api.InboxMessage) string {
	head := "message from peer " + m.From
	if m.Peer != "" {
		head += " (" + m.Peer + ")"
	}
	return Quote(head, m.Content)
}
