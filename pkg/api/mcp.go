package api

import (
	"slices"
	"strings"
)

// MCPPrefix begins the name of every tool that an agent has from an MCP server:
// mcp_<server>_<tool>. No tool of the catalogue has such a name.
const MCPPrefix = "mcp_"

// Grants says whether tools, the list in an agent's definition, grant a tool: by
// its name, or, for tools of MCP servers, by a pattern that ends in *, such as
// mcp_* or mcp_github_*. No other pattern grants anything.
func Grants(tools []string, name string) bool {
	return slices.ContainsFunc(tools, func(t string) bool {
		start, pattern := strings.CutSuffix(t, "*")
		return t == name || pattern && strings.HasPrefix(t, MCPPrefix) && strings.HasPrefix(name, start)
	})
}
