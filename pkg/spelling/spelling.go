// Package spelling finds the word that was probably meant by a misspelt one.
package spelling

import "strings"

// Nearest returns the known word with the smallest edit distance to word, the first of
// several. It returns "" if no word is similar: more than most bytes, or all of the known
// word, would have to change. Upper and lower case are equal.
func Nearest(word string, known []string, most int) string {
	best, least := "", most+1
	word = strings.ToLower(word)
	for _, k := range known {
		if d := distance(word, strings.ToLower(k)); d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b: the number of bytes to insert,
// delete or replace to turn a into b.
func distance(a, b string) int {
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
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
