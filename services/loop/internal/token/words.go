package token

import (
	"strings"
	"sync"
)

const (
	// perWords are the entries in each of the two generations of a cache of words. Both
	// take some 4 MiB if all words are as long as maxWord, in each process.
	perWords = 16 << 10
	// maxWord is the longest word that is remembered, in bytes.
	maxWord = 64
	// foreign is the first of the bytes that are left to the library: those that are not
	// ASCII, and DEL, which the library leaves out.
	foreign = 0x7f
)

// words is an encoder that splits text as cl100k_base does, without the expression that
// the library does it with, and remembers the tokens of the words: an expression with
// backtracking takes ten times as long, and two allocations for each word. Text that is
// not ASCII it leaves to the library. It is safe for concurrent use.
type words struct {
	encoder encoder

	mu         sync.Mutex
	young, old map[string]int // tokens of words
}

// Count implements [encoder].
func (w *words) Count(piece string) (n int, err error) {
	for i := range len(piece) {
		if piece[i] >= foreign {
			return w.encoder.Count(piece)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for piece != "" {
		word := piece[:first(piece)]
		piece = piece[len(word):]
		tokens, err := w.count(word)
		if err != nil {
			return 0, err
		}
		n += tokens
	}
	return n, nil
}

// count counts a word, which the encoder does not split either.
func (w *words) count(word string) (int, error) {
	n, ok := w.young[word]
	if ok {
		return n, nil
	}
	if n, ok = w.old[word]; !ok {
		var err error
		if n, err = w.encoder.Count(word); err != nil || len(word) > maxWord {
			return n, err
		}
	}
	if w.young == nil || len(w.young) >= perWords {
		w.old, w.young = w.young, map[string]int{}
	}
	w.young[strings.Clone(word)] = n // the text must not be held for a word of it
	return n, nil
}

// Classes of ASCII, as the expression of cl100k_base has them.
const (
	mark uint8 = iota // all others
	alpha
	digit
	blank
	line // ends one; it is blank too
)

//nolint:gochecknoglobals // a table
var classes = func() (t [foreign]uint8) {
	for c := range t {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			t[c] = alpha
		case c >= '0' && c <= '9':
			t[c] = digit
		case c == '\r', c == '\n':
			t[c] = line
		case c == ' ', c >= '\t' && c <= '\r':
			t[c] = blank
		}
	}
	return t
}()

// first is the length of the first word of an ASCII text that is not empty, by
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func first(s string) int {
	class := func(i int) int {
		if i >= len(s) {
			return -1
		}
		return int(classes[s[i]])
	}
	run := func(i int, of uint8) int {
		for i < len(s) && classes[s[i]] == of {
			i++
		}
		return i
	}
	switch c := classes[s[0]]; {
	case s[0] == '\'' && contracted(s) > 0:
		return contracted(s)
	case c == alpha:
		return run(1, alpha)
	case (c == mark || c == blank) && class(1) == int(alpha):
		return run(2, alpha)
	case c == digit:
		return min(run(1, digit), 3)
	case c == mark, s[0] == ' ' && class(1) == int(mark):
		return run(run(1, mark), line)
	}
	end, lines := 0, 0
	for ; end < len(s) && classes[s[end]] >= blank; end++ {
		if classes[s[end]] == line {
			lines = end + 1
		}
	}
	switch {
	case lines > 0:
		return lines
	case end < len(s) && end > 1: // the last blank belongs to what follows
		return end - 1
	}
	return end
}

// contracted is the length of what s begins with, if that is a verb's short form.
func contracted(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|0x20 == 'l' {
			return 3
		}
	}
	return 0
}
