package rule

import (
	"net/url"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// The validators check properties of arguments that a schema cannot express, before the
// other rules (docs/reference/policy.md, Arguments). The schema checks ports.

const (
	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	digits  = "0123456789"
)

// only reports whether s is not empty and consists of letters of an alphabet.
func only(s, alphabet string) bool { return s != "" && strings.Trim(s, alphabet) == "" }

// packageName checks names of packages. A name that begins with "-" would be an option of
// the installer, and one with ".." a file outside. An MCP server is a URL, or a program
// with plain arguments, which is started without a shell.
func packageName(c *Call) string {
	name := c.Values.String("package")
	switch {
	case c.Tool == "install_mcp_server" && !webAddress(name, "https", "http") && !plainCommand(name):
		return "package must be an address, or a program with plain arguments like npx -y some-server; other arguments go into config"
	case c.Tool != "install_mcp_server" && (!only(name, letters+digits+"@._/-") || name[0] == '-' || leaves(name)):
		return "package must be a name like express or @scope/name"
	}
	return ""
}

// leaves reports whether a path has an element "..".
func leaves(path string) bool { return slices.Contains(strings.Split(path, "/"), "..") }

// plainCommand reports whether s is a program with arguments that need no quoting,
// separated by single spaces: the form that package mcp starts. The program is neither a
// URL nor an assignment.
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

// skillName checks names of skills, which are used as names of folders.
func skillName(c *Call) string {
	if only(c.Values.String("name"), letters+digits+"-") {
		return ""
	}
	return "the name of a skill is made of letters, digits and -"
}

func gitHash(c *Call) string {
	hash := c.Values.String("commit")
	if !c.Values.Has("commit") || only(hash, digits+"abcdef") && len(hash) >= 7 && len(hash) <= 40 {
		return ""
	}
	return "commit must be 7 to 40 lower-case hex digits; leave it out to take everything"
}

// addressFormat checks the recipient of a message or of money.
func addressFormat(c *Call) string {
	for _, name := range []string{"to_address", "agent_address"} {
		hex, ok := strings.CutPrefix(c.Values.String(name), "0x")
		if c.Values.Has(name) && (!ok || len(hex) != 40 || !only(hex, digits+"abcdefABCDEF")) {
			return name + " must be 0x and 40 hex digits; look the agent's address up"
		}
	}
	return ""
}

// gitAddress checks URLs and names of git. A URL must be https and have no user or
// password, because arguments are stored and shown. Names of remotes and branches must be
// valid for git and must not begin with "-".
func gitAddress(c *Call) string {
	if c.Tool == "git_clone" && !webAddress(c.Values.String("url"), "https") {
		return "url must be an https address without a user name or password"
	}
	for _, name := range []string{"remote", "branch", "branch_name"} {
		if v := c.Values.String(name); v != "" && !refName(v) {
			return name + " is not a name that git takes"
		}
	}
	return ""
}

// refName reports whether s is a valid branch name, by a stricter version of
// git-check-ref-format.
func refName(s string) bool {
	return only(s, letters+digits+"._/-") && s[0] != '-' && s[0] != '/' && s[0] != '.' && !strings.Contains(s, "..") &&
		!strings.Contains(s, "//") && !strings.Contains(s, "/.") && !strings.HasSuffix(s, "/") && !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, ".lock")
}

// webAddress reports whether s is a URL of one of these schemes, with a host and without
// a user.
func webAddress(s string, schemes ...string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Hostname() != "" && u.User == nil && u.Opaque == ""
}

// cronExpression checks the schedule of the heartbeat.
func cronExpression(c *Call) string {
	expr := c.Values.String("schedule")
	if _, err := api.ParseCron(expr); err == nil || strings.TrimSpace(expr) == "" {
		return ""
	}
	return "schedule must be five cron fields in UTC: minute, hour, day, month, weekday (Sunday is 0), as in 0 */2 * * *"
}

// shellFields are the arguments that may reach a command line (docs/reference/policy.md,
// Arguments). "&" is legal in a URL.
var shellFields = map[string][]string{
	"pull_upstream":       {"commit"},
	"install_npm_package": {"package"},
	"install_mcp_server":  {"name", "package"},
	"install_skill":       {"name", "url"},
	"create_skill":        {"name"},
	"remove_skill":        {"name"},
	"git_clone":           {"url"},
}

// shellInjection checks shellFields again, so that an executor that does not quote them
// correctly runs no foreign command.
func shellInjection(c *Call) string {
	for _, name := range shellFields[c.Tool] {
		meta := ";|&$`\n(){}<>"
		v := c.Values.String(name)
		if webAddress(v, "https", "http") {
			meta = ";|$`\n(){}<>"
		}
		if strings.ContainsAny(v, meta) {
			return name + " holds characters that mean something to a shell; write it without"
		}
	}
	return ""
}
