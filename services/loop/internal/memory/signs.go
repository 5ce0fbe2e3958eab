package memory

import (
	"strings"
	"unicode/utf8"
)

// signs are the possible subjects of a text, by its words.
type signs uint8

const (
	pricing signs = 1 << iota
	demand
	competitor
	market // the text is about a market, whatever the tool
	dated  // a date next to it is that of the text
	secret // must not be stored

	signal = pricing | demand | competitor
)

var kinds = []struct {
	sign           signs
	name, category string
}{{pricing, "pricing", "financial"}, {demand, "demand", "market"}, {competitor, "competitor", "market"}}

// vocabulary holds the words with a meaning. after is the text before the word that gives
// it this meaning, or [number]; "": it always has it.
var vocabulary = []struct {
	signs        signs
	after, words string
}{
	{pricing | market, "", "price prices priced pricing"},
	{pricing, "", "cost costs fee fees subscription subscriptions rate rates revenue revenues"},
	{market, "", "usd usdc"},
	{pricing | market, number, "usd usdc"},
	{pricing, number, "cent cents"},
	{demand | market, "", "demand demands"},
	{demand, "", "trend trends trending growth volume volumes traffic adoption users waitlist backlog orders"},
	{competitor | market, "", "competitor competitors alternative alternatives rival rivals"},
	{competitor, "", "vs versus"},
	{competitor, "market ", "leader leaders"},
	{dated, "", "updated published posted modified dated date"},
	{dated, "as ", "of"},
	{secret, "", "password passwords passphrase mnemonic bearer secret secrets apikey"},
}

const (
	number      = "0" // a digit and at most one space, or digits that begin the word, as in 5usd
	longestSign = 13  // length of the longest word, in bytes
)

type meaning struct {
	signs signs
	after string
}

// meanings is the vocabulary by word. shapes holds, by first letter, the lengths of its
// words, as bits; it excludes most words of a text without a lookup.
var meanings, shapes = func() (m map[string][]meaning, s [256]uint16) {
	m = map[string][]meaning{}
	for _, v := range vocabulary {
		for w := range strings.FieldsSeq(v.words) {
			m[w] = append(m[w], meaning{v.signs, v.after})
			s[w[0]] |= 1 << len(w)
		}
	}
	return m, s
}()

// scan returns the signs of a text in one pass without allocations, because it is applied
// to the answers of all tools that may have queried a market.
func scan(text string) signs {
	var found signs
	from, unit := 0, 0 // the beginning of a word, and of its part after the digits that begin it
	for i := range len(text) + 1 {
		if i < len(text) && (isLetter(text[i]) || isDigit(text[i])) {
			if i == unit && isDigit(text[i]) {
				unit++
			}
			continue
		}
		if unit < i && i-from <= longestSign && shapes[lower(text[unit])]&(1<<(i-unit)) != 0 {
			found |= wordSigns(text[:i], from, unit)
		}
		if i < len(text) && text[i] == '$' && amount(text[i+1:]) {
			found |= pricing | market
		}
		from, unit = i+1, i+1
	}
	return found
}

// wordSigns returns the signs of the word that ends a text. The word begins at from, and
// after its digits at unit.
func wordSigns(text string, from, unit int) (found signs) {
	var word [longestSign]byte
	n := copy(word[:], text[unit:])
	for i := range n {
		word[i] = lower(word[i])
	}
	for _, m := range meanings[string(word[:n])] {
		given := follows(text[:from], m.after)
		switch m.after {
		case "":
			given = from == unit
		case number:
			before := strings.TrimSuffix(text[:from], " ")
			given = from < unit || before != "" && isDigit(before[len(before)-1])
		}
		if given {
			found |= m.signs
		}
	}
	return found
}

// amount reports whether a text begins with a number, after at most one space.
func amount(s string) bool {
	s = strings.TrimPrefix(s, " ")
	s = strings.TrimPrefix(s, ".")
	return s != "" && isDigit(s[0])
}

// follows reports whether a text ends with end, ignoring case.
func follows(text, end string) bool {
	return len(text) >= len(end) && strings.EqualFold(text[len(text)-len(end):], end)
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' || c >= utf8.RuneSelf }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
