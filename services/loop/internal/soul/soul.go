// Package soul manages an agent's description of itself: the file SOUL.md in its folder,
// in the format soul/v1 (docs/reference/memory.md, Soul format), its versions, and the
// texts that it may contain.
//
// The row in the store is authoritative. The file is written from it, atomically and
// after the commit: after a crash in between the file is older, and the next reader
// writes it again. A file that differs from its row never replaces the row, because
// commands of the agent can write it, too; it is kept as SOUL.md.edited. Only the first
// version is made from a file, if there is one.
//
// The package has no SQL, and must not decide whether an agent may change its soul:
// policy decides that before.
package soul

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"golang.org/x/text/unicode/norm"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// Format is the value of format in the frontmatter. A file with another value is a legacy
// file.
const Format = "soul/v1"

// Limits in characters (docs/reference/memory.md, Soul limits).
const (
	maxPurpose  = 2000
	maxStrategy = 3000 // a longer one is cut
	maxItem     = 500
)

// Soul is the content of a SOUL.md. A text may have several lines, an item of a list has
// one.
type Soul struct {
	Head
	CorePurpose   string
	Values        []string
	Guidelines    []string
	Personality   string
	Boundaries    []string
	Strategy      string
	Capabilities  string
	Relationships string
	Financial     string
	Genesis       string // the genesis prompt that the core purpose is compared with
}

// Head is the frontmatter. Times are RFC 3339.
type Head struct {
	Format           string  `yaml:"format"`
	Version          int64   `yaml:"version"`
	UpdatedAt        string  `yaml:"updated_at"`
	Name             string  `yaml:"name"`
	Address          string  `yaml:"address"`
	Creator          string  `yaml:"creator"`
	BornAt           string  `yaml:"born_at"`
	ConstitutionHash string  `yaml:"constitution_hash,omitempty"`
	GenesisAlignment float64 `yaml:"genesis_alignment"` // four decimals
	LastReflected    string  `yaml:"last_reflected,omitempty"`
}

// part is a section of the file: a text or a list.
type part struct {
	title string
	key   string // name in tools and faults; "": an agent cannot change the section
	most  int    // limit in characters or items (docs/reference/memory.md, Soul limits); 0: none
	text  *string
	list  *[]string
}

func (s *Soul) parts() []part {
	return []part{
		{"Core Purpose", "core_purpose", maxPurpose, &s.CorePurpose, nil},
		{"Values", "values", 20, nil, &s.Values},
		{"Behavioral Guidelines", "behavioral_guidelines", 30, nil, &s.Guidelines},
		{"Personality", "personality", 1000, &s.Personality, nil},
		{"Boundaries", "boundaries", 20, nil, &s.Boundaries},
		{"Strategy", "strategy", maxStrategy, &s.Strategy, nil},
		{"Capabilities", "capabilities", 0, &s.Capabilities, nil},
		{"Relationships", "relationships", 0, &s.Relationships, nil},
		{"Financial Character", "financial_character", 0, &s.Financial, nil},
		{title: "Genesis Prompt", text: &s.Genesis},
	}
}

// set replaces the content of the section by a text, of which a list has the lines.
func (p part) set(content string) {
	if p.text != nil {
		*p.text = content
	} else {
		*p.list = strings.Split(content, "\n")
	}
}

// Parse reads a SOUL.md. A file without the frontmatter of this format is read as a
// legacy file: its known sections are used, and the text before them is the core purpose.
// Parse does not fail; see [Soul.Validate].
func Parse(file string) Soul {
	var s Soul
	body := strings.ReplaceAll(strings.ToValidUTF8(file, "\uFFFD"), "\r\n", "\n")
	if f, fault := frontmatter.Split(body); fault == nil {
		var h Head
		if err := yaml.Unmarshal([]byte(strings.Join(f.Lines, "\n")), &h); err == nil {
			s.Head = h
		}
		body = f.Body
	}
	if s.Format != Format {
		s.Head = Head{Name: s.Name}
	}
	s.parse(body)
	return s.normal()
}

func (s *Soul) parse(body string) {
	parts := s.parts()
	var at *part
	lines := map[string][]string{}
	var preface []string
	for l := range strings.SplitSeq(body, "\n") {
		if title, ok := strings.CutPrefix(l, "## "); ok {
			at = &part{} // an unknown section is left out
			for i := range parts {
				if strings.EqualFold(strings.TrimSpace(title), parts[i].title) {
					at = &parts[i]
				}
			}
			continue
		}
		if at == nil {
			if !strings.HasPrefix(l, "# ") {
				preface = append(preface, l)
			}
			continue
		}
		l = strings.TrimPrefix(l, `\`) // see escaped
		lines[at.title] = append(lines[at.title], l)
	}
	for _, p := range parts {
		p.set(strings.Join(lines[p.title], "\n"))
	}
	if s.Format != Format && strings.TrimSpace(s.CorePurpose) == "" {
		s.CorePurpose = strings.Join(preface, "\n")
	}
}

// normal returns s in the form that survives writing and reading: trimmed, without empty
// items, with the strategy cut to its limit.
func (s Soul) normal() Soul {
	for _, p := range s.parts() {
		if p.text != nil {
			lines := strings.Split(plain(*p.text), "\n")
			for i := range lines {
				lines[i] = strings.TrimRightFunc(lines[i], unicode.IsSpace)
			}
			*p.text = strings.TrimSpace(strings.Join(lines, "\n"))
			continue
		}
		var kept []string
		for _, v := range *p.list {
			if v = strings.TrimLeft(strings.Join(strings.Fields(plain(v)), " "), "-* "); v != "" {
				kept = append(kept, v)
			}
		}
		*p.list = kept
	}
	s.Strategy = strings.TrimSpace(sanitize.First(s.Strategy, maxStrategy))
	for _, h := range []*string{&s.UpdatedAt, &s.Name, &s.Address, &s.Creator, &s.BornAt, &s.ConstitutionHash, &s.LastReflected} {
		*h = strings.Join(strings.Fields(plain(*h)), " ")
	}
	if a, err := strconv.ParseFloat(fmt.Sprintf("%.4f", s.GenesisAlignment), 64); err != nil || !(a >= 0 && a <= 1) {
		s.GenesisAlignment = 0
	} else {
		s.GenesisAlignment = a
	}
	s.Version, s.Format = max(s.Version, 0), Format
	return s
}

// plain removes control characters, except line ends and tabs.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\u2028' || r == '\u2029' || r == '\u0085':
			return '\n'
		case unicode.IsControl(r) || r == '\uFEFF':
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// String returns the file. Parse(s.String()) equals s if s is from [Parse] or an update.
func (s Soul) String() string {
	s.Format = Format
	head, err := yaml.Marshal(s.Head)
	if err != nil {
		panic(err) // does not happen for texts and numbers
	}
	var b strings.Builder
	b.WriteString("---\n" + strings.TrimSuffix(string(head), "\n") + "\n---\n\n# " + s.Name + "\n")
	for _, p := range s.parts() {
		b.WriteString("\n## " + p.title + "\n")
		if p.list != nil {
			for _, v := range *p.list {
				b.WriteString("- " + v + "\n")
			}
			continue
		}
		if *p.text != "" {
			b.WriteString(escaped(*p.text) + "\n")
		}
	}
	return b.String()
}

// escaped escapes the lines of a text that would be read as headings.
func escaped(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "#") || strings.HasPrefix(l, `\`) {
			lines[i] = `\` + l
		}
	}
	return strings.Join(lines, "\n")
}

// Prompt returns the text for a prompt: everything except the frontmatter and the genesis
// prompt, which is another layer.
func (s Soul) Prompt() string {
	var b strings.Builder
	for _, p := range s.parts() {
		switch {
		case p.key == "":
		case p.list != nil && len(*p.list) > 0:
			b.WriteString("### " + p.title + "\n- " + strings.Join(*p.list, "\n- ") + "\n")
		case p.text != nil && *p.text != "":
			b.WriteString("### " + p.title + "\n" + escaped(*p.text) + "\n")
		}
	}
	return b.String()
}

// Validate returns the faults of a soul (docs/reference/memory.md, Soul limits). A soul
// without faults may be stored.
func (s Soul) Validate() []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	length := func(what, text string, most int) {
		if n := utf8.RuneCountInString(text); most > 0 && n > most {
			fault("%s has %d characters, at most %d are taken", what, n, most)
		}
	}
	if strings.TrimSpace(s.CorePurpose) == "" {
		fault("core_purpose is empty")
	}
	for _, p := range s.parts() {
		var texts []string
		switch {
		case p.key == "":
			continue
		case p.text != nil:
			texts = []string{*p.text}
			length(p.key, *p.text, p.most)
		default:
			texts = *p.list
			if len(texts) > p.most {
				fault("%s has %d items, at most %d are taken", p.key, len(texts), p.most)
			}
			for _, v := range texts {
				length("an item of "+p.key, v, maxItem)
			}
		}
		if slices.ContainsFunc(texts, injected) {
			fault("%s contains text that a model could read as instructions", p.key)
		}
	}
	return faults
}

// Alignment returns how close a purpose is to the genesis prompt, from 0 to 1: the mean
// of the Jaccard index and of the share of the genesis prompt's words that the purpose
// has (docs/reference/memory.md, Alignment). It is 0 if one of them is empty.
func Alignment(purpose, genesis string) float64 {
	a, b := wordSet(purpose), wordSet(genesis)
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	both := 0
	for w := range a {
		if b[w] {
			both++
		}
	}
	jaccard := float64(both) / float64(len(a)+len(b)-both)
	return (jaccard + float64(both)/float64(len(b))) / 2
}

func wordSet(s string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(strings.Map(func(r rune) rune {
		if unicode.IsPunct(r) || unicode.IsSymbol(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKC.String(s))) {
		set[w] = true
	}
	return set
}
