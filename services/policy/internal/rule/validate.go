package rule

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Validators look at what the schema cannot say of an argument, before anything
// else looks at it (spec-core-2 §4.3, rows 1 to 6 and 10; W-51 and V-06 where the
// reference lets too much through). Ports are the schema's.

const (
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	digits  = "0123456789"
)

// only says whether s consists of letters of an alphabet, one at least.
func only(s, alphabet string) bool { return s != "" && strings.Trim(s, alphabet) == "" }

// packageName checks names of packages. A name that begins with - is an option to
// the installer, and one with .. is a file outside. An MCP server is a program with
// plain arguments, which is started without a shell, or an address.
func packageName() Rule {
	return Rule{
		ID: "validate.package_name", Priority: 100,
		Applies: Selector{Tools: []string{"install_npm_package", "install_mcp_server"}},
		Does:    "refuses the name of a package that is not made of letters, digits and @ . _ / -, begins with - or holds ..; an MCP server is an address, or a program with arguments of these and : = + ,",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			name := c.Values.String("package")
			if c.Tool == "install_mcp_server" {
				if webAddress(name, "https", "http") || plainCommand(name) {
					return nil, nil
				}
				return deny(ValidationFailed, "package must be an address, or a program with plain arguments like npx -y some-server; other arguments go into config"), nil
			}
			if !only(name, letters+digits+"@._/-") || name[0] == '-' || leaves(name) {
				return deny(ValidationFailed, "package must be a name like express or @scope/name"), nil
			}
			return nil, nil
		},
	}
}

// leaves says whether a path goes up.
func leaves(path string) bool { return slices.Contains(strings.Split(path, "/"), "..") }

// plainCommand says whether s is a program with arguments that mean the same to every
// reader: what package mcp starts. Spaces separate them; there is no quoting. The
// program is neither an address nor an assignment.
func plainCommand(s string) bool {
	words := strings.Split(s, " ")
	for i, w := range words {
		alphabet := letters + digits + "@._/-+"
		if i > 0 {
			alphabet += ":=,"
		}
		if !only(w, alphabet) || leaves(w) {
			return false
		}
	}
	return words[0][0] != '-'
}

// skillName checks names of skills, which become names of folders.
func skillName() Rule {
	return Rule{
		ID: "validate.skill_name", Priority: 100,
		Applies: Selector{Tools: []string{"install_skill", "create_skill", "remove_skill"}},
		Does:    "refuses the name of a skill that is not made of letters, digits and -",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			if !only(c.Values.String("name"), letters+digits+"-") {
				return deny(ValidationFailed, "the name of a skill is made of letters, digits and -"), nil
			}
			return nil, nil
		},
	}
}

func gitHash() Rule {
	return Rule{
		ID: "validate.git_hash", Priority: 100,
		Applies: Selector{Tools: []string{"pull_upstream"}},
		Does:    "refuses a commit that is not 7 to 40 lower-case hex digits",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			if hash := c.Values.String("commit"); c.Values.Has("commit") && (!only(hash, digits+"abcdef") || len(hash) < 7 || len(hash) > 40) {
				return deny(ValidationFailed, "commit must be 7 to 40 lower-case hex digits; leave it out to take everything"), nil
			}
			return nil, nil
		},
	}
}

// addressFormat checks who a message or money is for.
func addressFormat() Rule {
	return Rule{
		ID: "validate.address_format", Priority: 100,
		Applies: Selector{Tools: []string{"send_message", "transfer_credits", "check_reputation"}},
		Does:    "refuses an address that is not 0x and 40 hex digits",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			for _, name := range []string{"to_address", "agent_address"} {
				if !c.Values.Has(name) {
					continue
				}
				hex, ok := strings.CutPrefix(c.Values.String(name), "0x")
				if !ok || len(hex) != 40 || !only(hex, digits+"abcdefABCDEF") {
					return deny(ValidationFailed, "%s must be 0x and 40 hex digits; look the agent's address up", name), nil
				}
			}
			return nil, nil
		},
	}
}

// gitAddress checks where a repository is fetched from and sent to: https alone,
// and no password in it, because arguments are stored and shown. Names of remotes
// and branches are those that git takes, and no options.
func gitAddress() Rule {
	return Rule{
		ID: "validate.git_address", Priority: 100,
		Applies: Selector{Tools: []string{"git_clone", "git_push", "git_branch"}},
		Does:    "refuses a git address that is not https or holds a password, and names of remotes and branches that git would not take",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			if c.Tool == "git_clone" && !webAddress(c.Values.String("url"), "https") {
				return deny(ValidationFailed, "url must be an https address without a user name or password"), nil
			}
			for _, name := range []string{"remote", "branch", "branch_name"} {
				if v := c.Values.String(name); v != "" && !refName(v) {
					return deny(ValidationFailed, "%s is not a name that git takes", name), nil
				}
			}
			return nil, nil
		},
	}
}

// refName says whether git takes s as the name of a branch, by the stricter half
// of git-check-ref-format.
func refName(s string) bool {
	return only(s, letters+digits+"._/-") && s[0] != '-' && s[0] != '/' && s[0] != '.' && !strings.Contains(s, "..") &&
		!strings.Contains(s, "//") && !strings.Contains(s, "/.") && !strings.HasSuffix(s, "/") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// webAddress says whether s is an address of one of these schemes, with a host and
// without a user.
func webAddress(s string, schemes ...string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Hostname() != "" && u.User == nil && u.Opaque == ""
}

// cronExpression checks when the agent is woken: five fields of numbers, in
// their ranges.
func cronExpression() Rule {
	return Rule{
		ID: "validate.cron_expression", Priority: 100,
		Applies: Selector{Tools: []string{"modify_heartbeat"}},
		Does:    "refuses a schedule that is not five cron fields of numbers, * , - and / within their ranges",
		Codes:   []Code{ValidationFailed},
		Data:    cronRanges,
		Check: func(c *Call) (*Finding, error) {
			if expr := strings.TrimSpace(c.Values.String("schedule")); expr != "" && !cron(expr) {
				return deny(ValidationFailed, "schedule must be five cron fields in UTC: minute, hour, day, month, weekday, as in 0 */2 * * *"), nil
			}
			return nil, nil
		},
	}
}

// cronRanges are those of crontab(5).
var cronRanges = [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}}

func cron(expr string) bool {
	fields := strings.Fields(expr)
	if len(fields) != len(cronRanges) {
		return false
	}
	for i, field := range fields {
		for item := range strings.SplitSeq(field, ",") {
			if !cronItem(item, cronRanges[i][0], cronRanges[i][1]) {
				return false
			}
		}
	}
	return true
}

// cronItem is one of *, 5, 1-5, each perhaps with a step.
func cronItem(item string, low, high int) bool {
	item, step, stepped := strings.Cut(item, "/")
	if n, ok := number(step); stepped && (!ok || n < 1 || n > high) {
		return false
	}
	if item == "*" {
		return true
	}
	first, last, ranged := strings.Cut(item, "-")
	from, ok := number(first)
	to := from
	if ok && ranged {
		to, ok = number(last)
	}
	return ok && from >= low && to <= high && from <= to
}

func number(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && only(s, digits)
}

// shellFields are the arguments that end up near a command line (spec-core-2
// §4.3, row 10). An & is legal in an address.
var shellFields = map[string][]string{
	"pull_upstream":       {"commit"},
	"install_npm_package": {"package"},
	"install_mcp_server":  {"name", "package"},
	"install_skill":       {"name", "url"},
	"create_skill":        {"name"},
	"remove_skill":        {"name"},
	"git_clone":           {"url"},
}

// shellInjection is a second look at those arguments: whoever forgets to quote
// them is not undone by it.
func shellInjection() Rule {
	return Rule{
		ID: "command.shell_injection", Priority: 300,
		Applies: Selector{Tools: sortedKeys(shellFields)},
		Does:    "refuses shell metacharacters in names, packages, commits and addresses",
		Codes:   []Code{ShellInjection},
		Data:    shellFields,
		Check: func(c *Call) (*Finding, error) {
			for _, name := range shellFields[c.Tool] {
				meta := ";|&$`\n(){}<>"
				v := c.Values.String(name)
				if webAddress(v, "https", "http") {
					meta = ";|$`\n(){}<>"
				}
				if strings.ContainsAny(v, meta) {
					return deny(ShellInjection, "%s holds characters that mean something to a shell; write it without", name), nil
				}
			}
			return nil, nil
		},
	}
}
