package agent

import (
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/spelling"
)

// suggest returns an addition to a message about an unknown word: the most similar known
// word, or all of them if there are at most 12.
func suggest(word string, known []string) string {
	best := spelling.Nearest(word, known, 2) // more edits make another word
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
