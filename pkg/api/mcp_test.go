package api_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

func TestGrants(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		tools []string
		name  string
		want  bool
	}{
		{nil, "exec", false},
		{[]string{"exec"}, "exec", true},
		{[]string{"exec"}, "exe", false},
		{[]string{"*"}, "exec", false},
		{[]string{"ex*"}, "exec", false},
		{[]string{"*"}, "mcp_a_b", false},
		{[]string{"mcp_*"}, "mcp_a_b", true},
		{[]string{"mcp_*"}, "exec", false},
		{[]string{"mcp_a_*"}, "mcp_a_b", true},
		{[]string{"mcp_a_*"}, "mcp_ab_b", false},
		{[]string{"mcp_a_b"}, "mcp_a_b", true},
		{[]string{"mcp_a_b"}, "mcp_a_bc", false},
		{[]string{"mcp_*"}, "mcp_*", true}, // an exact match; no tool has this name
	} {
		if got := api.Grants(tc.tools, tc.name); got != tc.want {
			t.Errorf("Grants(%q, %q) = %t, want %t", tc.tools, tc.name, got, tc.want)
		}
	}
	for _, name := range catalog.Names() {
		if api.Grants([]string{"mcp_*"}, name) {
			t.Errorf("mcp_* grants the built-in %s", name)
		}
	}
}
