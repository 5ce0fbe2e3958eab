package skill

import (
	"os"
	"regexp"
	"testing"
)

// TestDocumentedSkills checks that the examples of docs/tools-skills-mcp.md have no
// faults.
func TestDocumentedSkills(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/tools-skills-mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)\n```markdown file=skills/([^/]+)/SKILL.md\n(.*?)\n```\n").FindAllSubmatch(page, -1)
	if len(examples) == 0 {
		t.Error("there is no example")
	}
	for _, e := range examples {
		s, faults := Parse(e[2], string(e[1]))
		if len(faults) > 0 || s.Description == "" || len(s.Triggers) == 0 || len(s.Bins) == 0 || s.Instructions == "" {
			t.Errorf("%s: faults %v, skill %+v; want every key used", e[1], faults, s)
		}
	}
}
