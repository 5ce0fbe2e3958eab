package agent

import (
	"slices"
	"strconv"
	"strings"
)

// suggest returns an addition to a message about an unknown word: the most similar known
// word, or all of them if there are at most 12.
func suggest(word string, known []string) string {
	best, least := "", 3 // at most two edits; more is another word
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	switch {
	case best != "":
		return "; did you mean " + strconv.Quote(best) + "?"
	case len(known) == 0:
		return ""
	case len(known) <= 12:
		return "; known are " + strings.Join(known, ", ")
	}
	return ""
}

// distance returns the Levenshtein distance of a and b, the number of insertions,
// deletions and replacements. If the lengths differ by more than two, it returns 3.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 2 || d < -2 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = slices.Min([]int{cost, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}
