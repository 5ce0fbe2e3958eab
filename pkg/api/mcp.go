package api

import (
	"slices"
	"strings"
)

// MCPPrefix is the prefix of the names of all tools from MCP servers:
// mcp_<server>_<tool>. No tool of the catalogue has it.
const MCPPrefix = "mcp_"

// Grants reports whether tools, the list in an agent's definition, grants the tool
// name. An entry grants the tool that it names. An entry that begins with mcp_ and ends
// in *, such as mcp_* or mcp_github_*, grants all tools with that prefix. No other
// pattern grants a tool.
func Grants(tools []string, name string) bool {
	return slices.ContainsFunc(tools, func(t string) bool {
		start, pattern := strings.CutSuffix(t, "*")
		return t == name || pattern && strings.HasPrefix(t, MCPPrefix) && strings.HasPrefix(name, start)
	})
}
