package openai

import "strings"

// Marks around the reasoning of models whose server leaves it in the text.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// reasoning takes the reasoning out of a text that comes in pieces: a block in
// think tags at its beginning. A tag may be split over pieces. Reasoning is never
// part of an answer (issue B5). The zero value is ready.
type reasoning struct {
	state int             // before the first word, inside the block, after it
	held  string          // not decided yet, or the beginning of a closing tag
	apart strings.Builder // the reasoning
}

const (
	undecided = iota
	inside
	after // of the block: white space follows that belongs to neither
	through
)

// text gives what of a piece belongs to the answer.
func (r *reasoning) text(piece string) string {
	if r.state == through {
		return piece
	}
	r.held += piece
	if r.state == undecided {
		begin := strings.TrimLeft(r.held, " \t\r\n")
		switch {
		case strings.HasPrefix(begin, thinkOpen):
			r.held, r.state = begin[len(thinkOpen):], inside
		case strings.HasPrefix(thinkOpen, begin): // empty, or a part of the tag
			return ""
		default:
			return r.flush()
		}
	}
	if r.state == inside {
		before, rest, found := strings.Cut(r.held, thinkClose)
		if !found {
			keep := min(len(r.held), len(thinkClose)-1)
			r.apart.WriteString(r.held[:len(r.held)-keep])
			r.held = r.held[len(r.held)-keep:]
			return ""
		}
		r.apart.WriteString(before)
		r.held, r.state = rest, after
	}
	r.held = strings.TrimLeft(r.held, " \t\r\n")
	if r.held == "" {
		return ""
	}
	return r.flush()
}

// end gives what was held back at the end of the answer: the beginning of a text
// that looked like a tag. A block that is not closed is reasoning.
func (r *reasoning) end() string {
	switch r.state {
	case undecided:
		return r.flush()
	case inside:
		r.apart.WriteString(r.held)
		r.held = ""
	}
	return ""
}

func (r *reasoning) flush() string {
	out := r.held
	r.held, r.state = "", through
	return out
}
