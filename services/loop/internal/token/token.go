// Package token counts tokens. The vocabulary is in the program: it asks nobody,
// and it knows neither a model's window nor its price.
//
// Work is linear in the text, whatever the text is: a byte-pair encoder takes
// more than linear time for a long word, and some expressions that split words do
// for a long run of spaces, so neither is given more than a piece at a time. A cut
// inside a word may count a token more than there is, never a piece fewer.
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
	perCache = 8192 // entries in each of the cache's two generations
)

// encoder is what the library does for a piece.
type encoder interface {
	Count(piece string) (int, error)
}

// Counter counts with cl100k_base and remembers what it counted: 16,384 texts at
// most, by their hashes. It is safe for concurrent use.
type Counter struct {
	encoder func() encoder
	seed    maphash.Seed

	mu         sync.Mutex
	young, old map[key]int64
}

// key of a text. The hash is of 64 bits under a seed that nobody outside knows; the
// length makes a chance hit rarer still.
type key struct {
	hash uint64
	size int
}

// cl100k is read once, when something is first counted: it takes some 20 ms.
var cl100k = sync.OnceValue(func() encoder { return &words{encoder: codec.NewCl100kBase()} })

// New returns a counter with an empty cache.
func New() *Counter { return counting(cl100k) }

func counting(e func() encoder) *Counter {
	return &Counter{encoder: e, seed: maphash.MakeSeed(), young: map[key]int64{}}
}

// Count is the tokens of a text: those of cl100k_base, and at least a quarter of
// its UTF-16 units, rounded up (spec-core-1 §2.2).
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
			tokens = len(piece) // no token is shorter than a byte
		}
		n += int64(tokens)
	}
	return max(n, least)
}

// units are the UTF-16 units of a text.
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

// cut is where the first piece of a text ends: before a space or a line's end,
// which belong to the word that follows, or where the piece is full.
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
	return maxPiece // it is no text
}

// Ratio is what a model's provider reports for what is counted here as 1,000
// tokens. The zero value is [Even].
type Ratio int64

// Ratios. Beyond the bounds it is not the tokenizer that differs.
const (
	Even Ratio = 1000

	lowest, highest = 500, 2000
	weight          = 4 // one part in so many is the latest report's
)

// Learn takes a report into account. What was not counted or not reported changes
// nothing.
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

// Of corrects a count, rounding up.
func (r Ratio) Of(counted int64) int64 {
	if r == 0 {
		r = Even
	}
	return (counted*int64(r) + 999) / 1000
}
