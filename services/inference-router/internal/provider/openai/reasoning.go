package openai

import "strings"

// Tags around the reasoning of models whose server leaves it in the text.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// reasoning separates the reasoning from a text that is received in pieces: a block in
// think tags at the beginning. A tag may be split over pieces. Reasoning is never part of
// an answer (docs/reference/inference-router.md, Answers). The zero value is ready to use.
type reasoning struct {
	state int             // one of undecided, inside, after, through
	held  string          // undecided text, or a possible beginning of the closing tag
	apart strings.Builder // the reasoning
}

const (
	undecided = iota
	inside
	after // the block is closed; white space that follows it is dropped
	through
)

// text adds a piece and returns the text of it that belongs to the answer.
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

// end returns the held text at the end of the answer: the beginning of a text that looked
// like a tag. An unclosed block is reasoning.
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
