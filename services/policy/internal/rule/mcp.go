package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// mcpTool returns the catalogue entry for a tool of an MCP server. The catalogue has no
// such tools, and the server's statement of a tool's risk is not trusted, so all of them
// have the same risk (docs/reference/policy.md, MCP tools). The executor checks the
// arguments with the server's schema.
func mcpTool(name string) (catalog.Tool, bool) {
	if rest, ok := strings.CutPrefix(name, api.MCPPrefix); !ok || rest == "" {
		return catalog.Tool{}, false
	}
	return catalog.Tool{Name: name, Category: catalog.Conway, Risk: catalog.Caution, Effect: catalog.Irreversible, Mutating: true, Owner: api.Loop}, true
}

// parse decodes the arguments of a tool by its schema. The arguments of a tool of an MCP
// server need only be one JSON object, because no rule reads their values.
func parse(t catalog.Tool, args json.RawMessage) (catalog.Args, error) {
	if _, ok := mcpTool(t.Name); !ok {
		return t.Parse(args)
	}
	if args = bytes.TrimSpace(args); len(args) == 0 || args[0] == '{' && json.Valid(args) {
		return catalog.Args{}, nil
	}
	return catalog.Args{}, errors.New("arguments are not a JSON object")
}

// mcpAuthority requires for tools of MCP servers the authority that exec needs: they
// run outside the process and their effects are unknown.
func mcpAuthority(c *Call) string {
	if _, ok := mcpTool(c.Tool); !ok {
		return ""
	}
	return tooLow(c, api.HeartbeatKind.Authority())
}
