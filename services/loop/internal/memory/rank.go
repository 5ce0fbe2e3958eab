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
const MaxFrequency = 100

// Rank sets the ranks of entries by BM25 over the words that the index has of them,
// the best 1, and sorts them; the same on every engine. frequency is in how many
// texts each phrase is, counted up to [MaxFrequency].
func Rank(all []Entry, phrases []string, frequency []int) {
	mean := 0.0
	for _, e := range all {
		mean += float64(strings.Count(e.Words, " ")) / float64(len(all))
	}
	// Each word gets two spaces of its own, or of two occurrences side by side the
	// second would not be seen.
	apart := func(words string) string { return " " + strings.ReplaceAll(words, " ", "  ") + " " }
	sought := make([]string, len(phrases))
	for k, p := range phrases {
		sought[k] = apart(p)
	}
	best := 0.0
	for i := range all {
		e := &all[i]
		text, length := apart(e.Words), float64(strings.Count(e.Words, " "))
		e.Rank = 0
		for k := range phrases {
			n := float64(strings.Count(text, sought[k]))
			if n == 0 {
				continue
			}
			f := float64(frequency[k])
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
	slices.SortStableFunc(all, func(a, b Entry) int { return cmp.Compare(b.Rank, a.Rank) })
}
