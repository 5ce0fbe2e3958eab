package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// BM25's usual constants: how soon a word that is repeated counts no more, and how
// much a long text is marked down.
const (
	saturation = 1.2
	lengthNorm = 0.75
)

// MaxFrequency is where counting how many texts have a phrase ends: what is in so
// many is a common one, and only the latest that have it are looked at.
const MaxFrequency = 50

// Rank sets the ranks of entries by BM25 over the words that the index has of them,
// the best 1, and sorts them; the same on every engine. frequency is in how many
// texts each phrase is, counted up to [MaxFrequency].
func Rank(all []*Entry, phrases []string, frequency []int) {
	mean := 0.0
	for _, e := range all {
		mean += float64(strings.Count(e.Words, " ")) / float64(len(all))
	}
	single := make(map[string]int, len(phrases)) // places of those of one word
	for k, p := range phrases {
		if !strings.Contains(p, " ") {
			single[p] = k
		}
	}
	counts := make([]int, len(phrases))
	best := 0.0
	for _, e := range all {
		clear(counts)
		for w := range strings.SplitSeq(e.Words, " ") {
			if k, ok := single[w]; ok {
				counts[k]++
			}
		}
		length := float64(strings.Count(e.Words, " "))
		e.Rank = 0
		for k, p := range phrases {
			if strings.Contains(p, " ") {
				counts[k] = occurrences(e.Words, p)
			}
			if counts[k] == 0 {
				continue
			}
			n, f := float64(counts[k]), float64(frequency[k])
			rarity := math.Log(1 + (2*MaxFrequency-f+0.5)/(f+0.5))
			e.Rank += rarity * n * (saturation + 1) / (n + saturation*(1-lengthNorm+lengthNorm*length/max(mean, 1)))
		}
		best = max(best, e.Rank)
	}
	for i := range all {
		if best > 0 {
			all[i].Rank /= best
		}
	}
	slices.SortStableFunc(all, func(a, b *Entry) int { return cmp.Compare(b.Rank, a.Rank) })
}

// occurrences counts how often the words of a phrase follow each other, of words that are
// each followed by a space.
func occurrences(words, phrase string) (n int) {
	for at := 0; ; {
		i := strings.Index(words[at:], phrase)
		if i < 0 {
			return n
		}
		from := at + i
		end := from + len(phrase)
		if (from == 0 || words[from-1] == ' ') && (end == len(words) || words[end] == ' ') {
			n++
		}
		at = from + 1
	}
}
