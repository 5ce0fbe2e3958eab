// Package jsontext appends JSON strings as encoding/json writes them, without reflection.
// It serves two callers of the simulated model: the hash that identifies a request, which
// is over these bytes, and streams, which consist of many small writes. Prompts have a
// shorter form, which package chat writes. The package must not do I/O.
package jsontext

import "unicode/utf8"

const hex = "0123456789abcdef"

// Append appends s as a JSON string, byte for byte as [encoding/json.Marshal] writes it:
// it escapes the special characters of HTML and the two line separators of Unicode, and
// replaces invalid UTF-8 by U+FFFD.
func Append(out []byte, s string) []byte {
	out = append(out, '"')
	from := 0 // the bytes of s before from are written
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if plain(c) {
				i++
				continue
			}
			out = escape(append(out, s[from:i]...), c)
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(append(out, s[from:i]...), `\ufffd`...)
			from = i + size
		case r == '\u2028' || r == '\u2029':
			out = append(append(out, s[from:i]...), `\u202`...)
			out = append(out, hex[r&15])
			from = i + size
		}
		i += size
	}
	return append(append(out, s[from:]...), '"')
}

// plain reports whether an ASCII character needs no escape.
func plain(c byte) bool {
	return c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

func escape(out []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\b':
		return append(out, '\\', 'b')
	case '\f':
		return append(out, '\\', 'f')
	case '\n':
		return append(out, '\\', 'n')
	case '\r':
		return append(out, '\\', 'r')
	case '\t':
		return append(out, '\\', 't')
	}
	return append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
