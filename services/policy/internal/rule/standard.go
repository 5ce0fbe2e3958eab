package rule

import (
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// Standard returns the engine with all rules over the complete catalogue.
func Standard() (*Engine, error) { return New(catalog.ByName(), standard()...) }

// denies completes a rule that denies with one code. fault returns the message, or "" if
// there is no objection.
func (r Rule) denies(code Code, fault func(*Call) string) Rule {
	r.Codes = []Code{code}
	r.Check = func(c *Call) (*Finding, error) {
		if message := fault(c); message != "" {
			return &Finding{Action: api.Deny, Code: code, Message: message}, nil
		}
		return nil, nil
	}
	return r
}

func tools(names ...string) Selector { return Selector{Tools: names} }

// standard returns the rules of [Standard] (docs/reference/policy.md, Rules).
func standard() []Rule {
	g, needs := newProtectedPaths(), toolNeeds()
	return slices.Concat([]Rule{
		Rule{
			ID: "definition.granted_tools", Priority: 50,
			Does: "refuses a tool that the agent's definition does not grant",
		}.denies(ToolNotGranted, granted),
		Rule{
			ID: "validate.package_name", Priority: 100, Applies: tools("install_npm_package", "install_mcp_server"),
			Does: "refuses the name of a package that is not made of letters, digits and @ . _ / -, begins with - or holds ..; " +
				"an MCP server is an address, or a program with arguments of these and : = + ,",
		}.denies(ValidationFailed, packageName),
		Rule{
			ID: "validate.skill_name", Priority: 100, Applies: tools("install_skill", "create_skill", "remove_skill"),
			Does: "refuses the name of a skill that is not made of letters, digits and -",
		}.denies(ValidationFailed, skillName),
		Rule{
			ID: "validate.git_hash", Priority: 100, Applies: tools("pull_upstream"),
			Does: "refuses a commit that is not 7 to 40 lower-case hex digits",
		}.denies(ValidationFailed, gitHash),
		Rule{
			ID: "validate.cron_expression", Priority: 100, Applies: tools("modify_heartbeat"),
			Does: "refuses a schedule that is not five cron fields of numbers and names, * ? , - and / within their ranges",
		}.denies(ValidationFailed, cronExpression),
		Rule{
			ID: "validate.address_format", Priority: 100, Applies: tools("send_message", "transfer_credits", "check_reputation"),
			Does: "refuses an address that is not 0x and 40 hex digits",
		}.denies(ValidationFailed, addressFormat),
		Rule{
			ID: "validate.git_address", Priority: 100, Applies: tools("git_clone", "git_push", "git_branch"),
			Does: "refuses a git address that is not https or holds a password, and names of remotes and branches that git would not take",
		}.denies(ValidationFailed, gitAddress),
		Rule{
			ID: "path.protected_files", Priority: 200, Applies: Selector{Tools: writers}, Data: g,
			Does: "refuses writes to secrets, to the agent's state, soul and constitution, and to the source of its guards",
		}.denies(ProtectedFile, g.write),
		Rule{
			ID: "path.read_sensitive", Priority: 200, Applies: tools("read_file"), Data: g.Secrets,
			Does: "refuses reads of keys, credentials, environment files and the agent's state",
		}.denies(SensitiveFileRead, g.read),
		Rule{
			ID: "path.traversal_detection", Priority: 200, Applies: tools("read_file", "write_file", "edit_own_file",
				"git_status", "git_diff", "git_commit", "git_log", "git_push", "git_branch", "git_clone"),
			Does: "refuses paths outside the agent's workspace",
		}.denies(PathTraversal, traversal),
		Rule{
			ID: "command.shell_injection", Priority: 300, Applies: tools(slices.Sorted(maps.Keys(shellFields))...), Data: shellFields,
			Does: "refuses shell metacharacters in names, packages, commits and addresses",
		}.denies(ShellInjection, shellInjection),
		command(newShell(g)),
		Rule{
			ID: "network.granted", Priority: 300, Applies: tools("git_clone", "git_push", "install_npm_package"),
			Does: "refuses a tool that needs the network to an agent whose sandbox has none",
		}.denies(NetworkDenied, networkGranted),
		Rule{
			ID: "authority.minimum", Priority: 400, Applies: tools(slices.Sorted(maps.Keys(needs))...), Data: needs,
			Does: "refuses a tool when the least trusted input of the turn has less authority than the tool needs: " +
				"40 for messages, 50 for what runs programs, reaches the network or changes how the agent lives",
		}.denies(AuthorityTooLow, func(c *Call) string { return tooLow(c, needs[c.Tool]) }),
		Rule{
			ID: "authority.mcp", Priority: 400, Applies: Selector{Categories: []catalog.Category{catalog.Conway}}, Data: api.HeartbeatKind.Authority(),
			Does: "refuses a tool of an MCP server (mcp_…) when the turn's authority is below 50",
		}.denies(AuthorityTooLow, mcpAuthority),
		Rule{
			ID: "authority.external_tool_restriction", Priority: 400, Applies: Selector{Risks: []catalog.Risk{catalog.Dangerous}},
			Data: []int{dangerousNeeds, moneyNeeds},
			Does: "refuses a dangerous tool when the turn's authority is below 60, or below 80 if it moves money",
		}.denies(ExternalDangerous, dangerous),
		Rule{
			ID: "authority.self_mod_from_external", Priority: 400, Applies: Selector{Tools: writers}, Data: []*list{g.Self, g.Notes},
			Does: "refuses writes to the agent's definition, soul, constitution, skills, schedule and guards and to git's settings below authority 80, and to MEMORY.md and WORKLOG.md below 50",
		}.denies(ExternalSelfMod, g.selfModification),
		spending(),
	}, rates())
}
