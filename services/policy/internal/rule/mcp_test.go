package rule_test

import (
	"encoding/json"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/policy/internal/rule"
)

func TestToolsOfMCPServers(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for _, c := range []struct {
		what, tool, args string
		by               api.PrincipalKind
		grants           []string
		want             rule.Code
	}{
		{"granted by a pattern", "mcp_box_echo", `{"a":{"b":[1]}}`, api.Creator, []string{"exec", "mcp_*"}, rule.Allowed},
		{"granted for its server", "mcp_box_echo", `{}`, api.Self, []string{"mcp_box_*"}, rule.Allowed},
		{"granted by name", "mcp_box_echo", ``, api.HeartbeatKind, []string{"mcp_box_echo"}, rule.Allowed},
		{"not granted", "mcp_box_echo", `{}`, api.Creator, []string{"exec", "mcp_other_*"}, rule.ToolNotGranted},
		{"a pattern without mcp_ grants nothing", "mcp_box_echo", `{}`, api.Creator, []string{"*", "m*"}, rule.ToolNotGranted},
		{"a pattern grants nothing built in", "check_credits", `{}`, api.Creator, []string{"mcp_*", "check_*"}, rule.ToolNotGranted},
		{"a turn with a message of a peer", "mcp_box_echo", `{}`, api.Peer, []string{"mcp_*"}, rule.AuthorityTooLow},
		{"an external turn", "mcp_box_echo", `{}`, api.External, []string{"mcp_*"}, rule.AuthorityTooLow},
		{"a list", "mcp_box_echo", `[]`, api.Creator, []string{"mcp_*"}, rule.ValidationFailed},
		{"not JSON", "mcp_box_echo", `{`, api.Creator, []string{"mcp_*"}, rule.ValidationFailed},
		{"the prefix alone", "mcp_", `{}`, api.Creator, []string{"mcp_*"}, rule.UnknownTool},
		{"another unknown tool", "mcpx_box", `{}`, api.Creator, []string{"mcpx_box"}, rule.UnknownTool},
	} {
		in := rule.Input{Facts: &rule.Facts{}, Evaluate: api.Evaluate{Agent: "ada", Turn: "t", Tool: c.tool, Args: json.RawMessage(c.args), By: api.Principal{Kind: c.by}, Workspace: "/w", Tools: c.grants}}
		d := b.Evaluate(in)
		wantCode(t, c.what, d, c.want)
		if c.want != rule.UnknownTool && c.tool == "mcp_box_echo" && d.Risk != "caution" {
			t.Errorf("%s: risk %s, want caution", c.what, d.Risk)
		}
	}
}
