package rule

import (
	"strconv"
	"strings"
)

var escaper = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// escape escapes the special characters of path.Match.
func escape(s string) string { return escaper.Replace(s) }

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// hasWildcard reports whether a pattern has an unescaped wildcard.
func hasWildcard(pattern string) bool {
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '*', '?':
			return true
		}
	}
	return false
}

// ansi decodes the escape sequences of $'…'. It copies unknown sequences.
func ansi(v string) string {
	var b strings.Builder
	for i := 0; i < len(v); i++ {
		if v[i] != '\\' || i+1 == len(v) {
			b.WriteByte(v[i])
			continue
		}
		i++
		digits, base, most := 0, 16, 0
		switch c := v[i]; c {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case '\\', '\'', '"', '?':
			b.WriteByte(c)
		case 'x':
			most = 2
		case 'u':
			most = 4
		case 'U':
			most = 8
		case 'c': // the control character of the next character, the zero byte for @
			if i++; i == len(v) || v[i]&0x1f == 0 {
				return b.String()
			}
			b.WriteByte(v[i] & 0x1f)
		case '0', '1', '2', '3', '4', '5', '6', '7':
			base, most = 8, 3
			i--
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
		for digits < most && i+1+digits < len(v) && isDigit(v[i+1+digits], base) {
			digits++
		}
		if digits > 0 {
			n, _ := strconv.ParseInt(v[i+1:i+1+digits], base, 64)
			switch {
			case n == 0, most <= 3 && byte(n) == 0:
				return b.String() // the shell ends the string at a zero byte
			case most > 3:
				b.WriteRune(rune(n))
			default:
				b.WriteByte(byte(n))
			}
			i += digits
		}
	}
	return b.String()
}

func isDigit(c byte, base int) bool {
	_, err := strconv.ParseUint(string(c), base, 8)
	return err == nil
}
