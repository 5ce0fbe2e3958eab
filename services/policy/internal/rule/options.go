package rule

import "strings"

// option is one word of options, as getopt reads it.
type option struct {
	name  string // of the option in it that has a value, such as -o or --output; "" if none has
	value string // that is attached to it
	next  bool   // the value is the next word
}

// readOption reads a word. valued are the options with a value. Short options may be
// clustered (-iS VALUE, -iSVALUE), long ones may be cut (--out VALUE) or have their value
// after "=".
func readOption(text string, valued map[string]bool) option {
	if strings.HasPrefix(text, "--") {
		name, value, attached := strings.Cut(text, "=")
		if len(name) < 4 {
			return option{}
		}
		if valued[name] {
			return option{name, value, !attached}
		}
		found := ""
		for v := range valued {
			if strings.HasPrefix(v, name) && (found == "" || v < found) {
				found = v
			}
		}
		return option{found, value, found != "" && !attached}
	}
	if len(text) < 2 || text[0] != '-' {
		return option{}
	}
	for i := 1; i < len(text) && alphanumeric(text[i]); i++ {
		if name := "-" + text[i:i+1]; valued[name] {
			return option{name, text[i+1:], i == len(text)-1}
		}
	}
	return option{}
}

// takeOption reads args[i]. It returns the option in it that has a value, "" if none has,
// each possible value, and the index of the last word that belongs to it.
func takeOption(args []word, i int, valued map[string]bool) (name string, values []word, last int) {
	o := readOption(args[i].text, valued)
	switch {
	case o.name == "":
		return "", nil, i
	case o.next:
		values, last = following(args, i)
		return o.name, values, last
	}
	return o.name, []word{args[i].part(o.value)}, i
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// following returns the word after args[i], with each of its possible values, and the index
// of the last of them.
func following(args []word, i int) ([]word, int) {
	if i+1 >= len(args) {
		return nil, i
	}
	end := i + 2
	for args[i+1].or && end < len(args) && args[end].or {
		end++
	}
	return args[i+1 : end], end - 1
}

// part returns a part of the word, such as the value that is attached to an option.
func (w word) part(text string) word {
	p := word{text: text, or: w.or}
	if w.glob != "" {
		p.glob = text // wildcards in quotes count as wildcards here
	}
	return p
}
