package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// The usual constants of BM25: how soon repetitions of a word stop counting, and how much
// the length of a text lowers its rank.
const (
	saturation = 1.2
	lengthNorm = 0.75
)

// MaxFrequency is the number of texts up to which the frequency of a phrase is counted. A
// phrase in so many texts is a common one, and only the latest of them are searched.
const MaxFrequency = 50

// Rank sets the ranks of entries by BM25 over their words in the index, the best to 1,
// and sorts them. The result is the same on every engine. frequency is the number of
// texts with each phrase, counted up to [MaxFrequency].
func Rank(all []*Entry, phrases []string, frequency []int) {
	mean := 0.0
	for _, e := range all {
		mean += float64(strings.Count(e.Words, " ")) / float64(len(all))
	}
	single := make(map[string]int, len(phrases)) // indexes of the phrases of one word
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

// occurrences counts the occurrences of a phrase in words, each of which is followed by a
// space.
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
