package sqldb

import (
	"strconv"
	"strings"
)

// Placeholders returns the parameters of n rows: ($1, $2), ($3, $4) for two rows of two
// columns. Each n is a statement of its own in the caches of statements, so the caller
// bounds the values of n. One row is also the list of an IN condition.
func Placeholders(n, columns int) string {
	var b strings.Builder
	b.Grow(6 * n * columns)
	for i := range n * columns {
		switch {
		case i == 0:
			b.WriteString("($")
		case i%columns == 0:
			b.WriteString("), ($")
		default:
			b.WriteString(", $")
		}
		b.WriteString(strconv.Itoa(i + 1))
	}
	b.WriteString(")")
	return b.String()
}
