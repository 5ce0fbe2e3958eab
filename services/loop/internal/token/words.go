package token

import (
	"strings"
	"sync"
)

const (
	// perWords is the number of entries in each of the two generations of the cache of
	// words. Both take about 4 MiB per process if all words have maxWord bytes.
	perWords = 16 << 10
	// maxWord is the length of the longest word that is cached, in bytes.
	maxWord = 64
	// foreign is the first byte of the texts that the library splits: non-ASCII
	// characters, and DEL, which the library leaves out.
	foreign = 0x7f
)

// words is an encoder that splits text as cl100k_base does, without the library's regular
// expression, and caches the tokens of words. The expression uses backtracking, takes ten
// times as long, and makes two allocations for each word. Text that is not ASCII is
// passed to the library. words is safe for concurrent use.
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

// count counts the tokens of a word, which the encoder does not split further.
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
	w.young[strings.Clone(word)] = n // so that the cache does not hold the whole text
	return n, nil
}

// Classes of ASCII characters in the expression of cl100k_base.
const (
	mark uint8 = iota // all other characters
	alpha
	digit
	blank
	line // line ends, which are blank, too
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

// first returns the length of the first word of an ASCII text that is not empty, by
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
	case end < len(s) && end > 1: // the last blank is part of the next word
		return end - 1
	}
	return end
}

// contracted returns the length of the verb contraction at the beginning of s, or 0.
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
