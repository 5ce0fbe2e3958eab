// Package token counts the tokens of texts. The vocabulary is part of the program, so it
// makes no request. The package must not depend on a model's window or price.
//
// The time is linear in the length of any text. A byte-pair encoder takes more than
// linear time for a long word, and some regular expressions that split words do for a
// long run of spaces, so both are given only one piece of a text at a time. A cut within
// a word may add a token to the count, and never removes one.
package token

import (
	"hash/maphash"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

const (
	maxPiece = 256  // bytes that are encoded at a time
	perCache = 8192 // entries in each of the two generations of the cache
)

// encoder counts the tokens of a piece of text.
type encoder interface {
	Count(piece string) (int, error)
}

// Counter counts tokens of cl100k_base. It caches the counts of at most 16,384 texts by
// their hashes. It is safe for concurrent use.
type Counter struct {
	encoder func() encoder
	seed    maphash.Seed

	mu         sync.Mutex
	young, old map[key]int64
}

// key is the key of a text in the cache. The hash has 64 bits and a random seed, so that
// collisions cannot be constructed; the length makes chance collisions rarer still.
type key struct {
	hash uint64
	size int
}

// cl100k returns the encoder. It is loaded at the first count, in about 20 ms.
var cl100k = sync.OnceValue(func() encoder { return &words{encoder: codec.NewCl100kBase()} })

// New returns a counter with an empty cache.
func New() *Counter { return counting(cl100k) }

func counting(e func() encoder) *Counter {
	return &Counter{encoder: e, seed: maphash.MakeSeed(), young: map[key]int64{}}
}

// Count returns the number of tokens of a text in cl100k_base, or a quarter of its UTF-16
// code units, rounded up, if that is more (docs/reference/context.md, Token estimate).
func (c *Counter) Count(text string) int64 {
	k := key{maphash.String(c.seed, text), len(text)}
	c.mu.Lock()
	n, ok := c.young[k]
	if !ok {
		n, ok = c.old[k]
	}
	c.mu.Unlock()
	if !ok {
		n = c.count(text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= perCache {
		c.old, c.young = c.young, make(map[key]int64, perCache)
	}
	c.young[k] = n
	return n
}

func (c *Counter) count(text string) int64 {
	least := (units(text) + 3) / 4
	var n int64
	for text != "" {
		piece := text[:cut(text)]
		text = text[len(piece):]
		tokens, err := c.encoder().Count(piece)
		if err != nil {
			tokens = len(piece) // a token has at least one byte
		}
		n += int64(tokens)
	}
	return max(n, least)
}

// units returns the number of UTF-16 code units of a text.
func units(text string) int64 {
	var n int64
	for _, r := range text {
		n++
		if r >= 0x10000 {
			n++
		}
	}
	return n
}

// cut returns the end of the first piece of a text: before a space or a line end, which
// is part of the following word, or at the largest size of a piece.
func cut(text string) int {
	if len(text) <= maxPiece {
		return len(text)
	}
	const half = maxPiece / 2
	if i := strings.LastIndexAny(text[half:maxPiece], " \n"); i >= 0 {
		return half + i
	}
	for n := maxPiece; n > maxPiece-utf8.UTFMax; n-- {
		if utf8.RuneStart(text[n]) {
			return n
		}
	}
	return maxPiece // invalid UTF-8
}

// Ratio is the number of tokens that a model's provider reports for 1,000 tokens counted
// here. The zero value is [Even].
type Ratio int64

// Ratios. A report beyond the bounds is not explained by the tokenizer.
const (
	Even Ratio = 1000

	lowest, highest = 500, 2000
	weight          = 4 // the latest report has 1/weight of the result
)

// Learn returns the ratio after a report of a provider. A count or report of zero or less
// is ignored.
func (r Ratio) Learn(counted, reported int64) Ratio {
	if r == 0 {
		r = Even
	}
	if counted <= 0 || reported <= 0 {
		return r
	}
	seen := Ratio(min(highest, max(lowest, reported*1000/counted)))
	return r + (seen-r)/weight
}

// Of applies the ratio to a count, rounding up.
func (r Ratio) Of(counted int64) int64 {
	if r == 0 {
		r = Even
	}
	return (counted*int64(r) + 999) / 1000
}
