package mcp

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/loop/internal/outbound"
)

// The examples of docs/tools-skills-mcp.md are servers and arguments that are taken.
func TestDocumentedServers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/tools-skills-mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range regexp.MustCompile("(?s)\n```json (file|tool)=(\\S+)\n(.*?)\n```\n").FindAllSubmatch(page, -1) {
		kind, name, text := string(e[1]), string(e[2]), e[3]
		seen[kind]++
		if kind == "tool" {
			if tool := New(Config{}).Installer(); tool.Name != name || tool.Check(text) != nil {
				t.Errorf("%s: %v", name, tool.Check(text))
			}
			continue
		}
		if _, err := read(strings.TrimSuffix(name, ".json"), text, outbound.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if seen["file"] != 2 || seen["tool"] != 1 {
		t.Errorf("examples %v, want a program, an address and an installation", seen)
	}
}
