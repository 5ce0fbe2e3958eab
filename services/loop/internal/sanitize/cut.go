package sanitize

import "unicode/utf8"

// Chars returns the first n characters of a text.
func Chars(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// Bytes returns the longest beginning of a text that has at most n bytes and ends at a
// character.
func Bytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n = max(n, 0); n > 0 && !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n]
}
