package rule_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/policy/internal/rule"
)

// TestDocumentedInstallations tests that the installations shown in
// docs/tools-skills-mcp.md are allowed in a turn with the creator's authority.
func TestDocumentedInstallations(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/tools-skills-mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := rule.Standard()
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)\n```json tool=(\\S+)\n(.*?)\n```\n").FindAllSubmatch(page, -1)
	if len(examples) == 0 {
		t.Fatal("the page has no example of a tool call")
	}
	for _, e := range examples {
		name := string(e[1])
		d := engine.Evaluate(rule.Input{Facts: &rule.Facts{}, Evaluate: api.Evaluate{
			Agent: "ada", Session: "ada-main", Run: "r", Turn: "t", Tool: name, Args: e[2], By: api.Principal{Kind: api.Creator},
			Workspace: "/data/ada", Tools: []string{name},
		}})
		if d.Action != api.Allow {
			t.Errorf("%s: %s %s %s, want it allowed", name, d.Action, d.Code, d.Message)
		}
	}
}
