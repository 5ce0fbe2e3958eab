package config

import (
	"fmt"
	"slices"
	"strings"
)

// Unknown returns a sentence for each ANIMA_ variable of environ, in the form of
// [os.Environ], that is not one of the known settings. The sentences are sorted, and
// contain the nearest known name if it is similar, but no values.
func Unknown(known []Field, environ []string) []string {
	var names []string
	for _, f := range known {
		names = append(names, f.Env)
		if f.Secret {
			names = append(names, f.Env+"_FILE")
		}
	}
	slices.Sort(names)
	var out []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "ANIMA_") {
			continue
		}
		if _, ok := slices.BinarySearch(names, name); ok {
			continue
		}
		text := fmt.Sprintf("%s is not a setting", name)
		if near := nearest(name, names); near != "" {
			text += fmt.Sprintf(": did you mean %s?", near)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// nearest returns the name with the smallest edit distance to typed, or "" if more than a
// third of the part after ANIMA_ would have to change.
func nearest(typed string, names []string) string {
	best, limit := "", max(1, (len(typed)-len("ANIMA_"))/3)+1
	for _, n := range names {
		if d := distance(typed, n); d < limit {
			best, limit = n, d
		}
	}
	return best
}

// distance returns the number of bytes to insert, delete or replace to turn a into b.
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
