package runbook

import (
	"regexp"
	"strings"
)

// matches reports whether got contains the lines of want as consecutive lines. In want, …
// matches any text within a line, a line of … alone matches any number of lines, and
// blanks match any blanks, because the width of columns varies.
func matches(want, got string) bool {
	var re strings.Builder
	re.WriteString(`(?m)^`)
	lines := strings.Split(strings.TrimSpace(want), "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		last := i == len(lines)-1
		if line == "…" {
			if !last {
				re.WriteString(`(?:.*\n)*?`)
			}
			continue
		}
		re.WriteString(`[ \t]*`)
		for j, part := range strings.Split(line, "…") {
			if j > 0 {
				re.WriteString(`.*`)
			}
			for k, word := range regexp.MustCompile(`[ \t]+`).Split(part, -1) {
				if k > 0 {
					re.WriteString(`[ \t]+`)
				}
				re.WriteString(regexp.QuoteMeta(word))
			}
		}
		re.WriteString(`[ \t]*$`)
		if !last {
			re.WriteString(`\n`)
		}
	}
	return regexp.MustCompile(re.String()).MatchString(got)
}
