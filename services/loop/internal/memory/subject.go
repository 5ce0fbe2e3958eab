package memory

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// host returns the host of the url or endpoint in a call's arguments, "" if it cannot be
// parsed, and whether they have one. The rest of an address is left out, because it may
// contain a secret.
func host(arguments json.RawMessage) (string, bool) {
	var args struct {
		URL      string `json:"url"`
		Endpoint string `json:"endpoint"`
	}
	_ = json.Unmarshal(arguments, &args) // arguments that do not match are left empty
	address := strings.TrimSpace(cmp.Or(args.URL, args.Endpoint))
	if address == "" {
		return "", false
	}
	if !strings.Contains(address, "://") {
		address = "//" + address
	}
	u, err := url.Parse(sanitize.Bytes(address, 2048))
	if err != nil || !isHost(u.Hostname()) {
		return "", true
	}
	return bare(u.Hostname()), true
}

// bare returns a host in the form in which facts name it: lower case, without "www.".
func bare(host string) string {
	return strings.TrimPrefix(strings.ToLower(host), "www.")
}

// subject returns the subject of a signal for the key of its fact: the word before a
// colon at its beginning, else its first domain, else its first word, else the host that
// it is from (docs/memory.md, Knowledge of a market). A word that only names the kind of
// signal is no subject, because two pages with "Price: $5" do not contradict each other.
func subject(s, host string) string {
	inWord := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || r == '_' || r == '-' }
	if w, rest, found := strings.Cut(s, ":"); found && (rest == "" || rest[0] == ' ') &&
		!strings.ContainsFunc(w, func(r rune) bool { return !inWord(r) && r != '.' }) && names(w) {
		return folded(w)
	}
	for w := range strings.FieldsFuncSeq(s, func(r rune) bool { return !inHost(r) }) {
		if w = strings.Trim(w, ".-"); isHost(w) {
			return folded(bare(w))
		}
	}
	for w := range strings.FieldsFuncSeq(s, func(r rune) bool { return !inWord(r) }) {
		if w = strings.Trim(w, "_-"); names(w) {
			return folded(w)
		}
	}
	return cmp.Or(folded(host), "general")
}

func inHost(r rune) bool {
	return r < utf8.RuneSelf && (isLetter(byte(r)) || isDigit(byte(r))) || r == '.' || r == '-'
}

// isHost reports whether a text is a host with a domain: labels of ASCII letters and
// digits, the last without digits, the others not all of digits, as in "4.5m".
func isHost(s string) bool {
	i := strings.LastIndexByte(s, '.')
	if i < 1 || len(s) > 253 || s[0] == '.' || strings.Contains(s, "..") || strings.ContainsFunc(s, func(r rune) bool { return !inHost(r) }) {
		return false
	}
	last := s[i+1:]
	return len(last) > 1 && !strings.ContainsAny(last, "0123456789-") && strings.ContainsFunc(s[:i], unicode.IsLetter)
}

// names reports whether a word can be the subject of a signal.
func names(word string) bool {
	w := Fold(word)
	return utf8.RuneCountInString(w) > 1 && !stopWords[w] && meanings[w] == nil && !isDigit(w[0]) && !slices.Contains(unspecific, w)
}

// unspecific are words next to an amount, and names of fields, that are no subjects.
var unspecific = strings.Fields("name id title symbol item product plan tier url description available per month monthly year yearly day daily today yesterday week weekly ago total new free")

func folded(s string) string { return sanitize.First(Fold(s), maxSubject) }
