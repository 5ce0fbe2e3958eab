package runbook

import (
	"regexp"
	"strings"
)

// matches reports whether the lines of want stand in got, one after the other.
// In want, … stands for anything within a line, a line of … alone for any number
// of lines, and blanks for any blanks: columns move with what they hold.
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
