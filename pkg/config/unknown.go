package config

import (
	"fmt"
	"slices"
	"strings"
)

// Unknown says which ANIMA_ variables of environ, in the form of [os.Environ],
// belong to none of the known settings, one sentence each and in order, with
// the nearest known name when one is near enough to be meant. Values are not
// shown.
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

// nearest returns the name with the fewest edits to what was typed, or nothing
// when more than a third of what follows ANIMA_ would have to change.
func nearest(typed string, names []string) string {
	best, limit := "", max(1, (len(typed)-len("ANIMA_"))/3)+1
	for _, n := range names {
		if d := distance(typed, n); d < limit {
			best, limit = n, d
		}
	}
	return best
}

// distance counts the bytes to insert, delete or replace to turn a into b.
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
