package rule_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/services/policy/internal/rule"
)

const workspace = "/home/agent/work"

func standard(t testing.TB) *rule.Engine {
	t.Helper()
	b, err := rule.Standard()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// call returns a valid call of a tool, with the authority of self and all tools granted.
func call(tool string, args map[string]any) rule.Input {
	if args == nil {
		args = map[string]any{}
	}
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // unreachable: the arguments of the tests can be encoded
	}
	return rule.Input{Facts: &rule.Facts{}, Evaluate: api.Evaluate{
		Agent: "a1", Session: "s1", Run: "r1", Turn: "t1", Tool: tool, Args: raw,
		By: api.Principal{Kind: api.Self}, Workspace: workspace,
		Tools: catalog.Names(),
	}}
}

func wantCode(t *testing.T, what string, d rule.Decision, want rule.Code) {
	t.Helper()
	if d.Code != want {
		t.Errorf("%s: got %s (%s), want %s", what, d.Code, d.Message, want)
	}
	if action := map[bool]api.Action{true: api.Allow, false: api.Deny}[want == rule.Allowed]; d.Action != action {
		t.Errorf("%s: got action %s, want %s", what, d.Action, action)
	}
	if d.Action != api.Allow && (d.Message == "" || len(d.RulesTriggered) == 0) {
		t.Errorf("%s: a refusal without message or rule: %+v", what, d)
	}
}

// TestWriteFile tests the vectors V-07 of write_file (docs/reference/policy.md, Test
// vectors).
func TestWriteFile(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for path, want := range map[string]rule.Code{
		"wallet.json":                         rule.ProtectedFile,
		"WALLET.JSON":                         rule.ProtectedFile,
		"package.json":                        rule.ProtectedFile,
		"/root/.automaton/wallet.json":        rule.ProtectedFile,
		"/root/.automaton/SOUL.md":            rule.ProtectedFile,
		"src/agent/injection-defense.ts":      rule.ProtectedFile,
		"src/agent/policy-rules/index.ts":     rule.ProtectedFile,
		"src/agent/policy-rules/financial.ts": rule.ProtectedFile,
		"src/agent/loop.ts":                   rule.ProtectedFile,
		"/root/.automaton/heartbeat.yml":      rule.ProtectedFile,
		"/root/.automaton/api-key":            rule.ProtectedFile,
		"/root/.ssh/authorized_keys":          rule.ProtectedFile,
		"~/.ssh/id":                           rule.ProtectedFile,
		"a/../.ssh/x":                         rule.ProtectedFile,
		"/proc/self/environ":                  rule.ProtectedFile,
		"/etc/systemd/x":                      rule.ProtectedFile,
		"../../../etc/passwd":                 rule.ProtectedFile,
		"wallet.j\u017fon":                    rule.ProtectedFile, // U+017F (long s) folds to s
		"/tmp/x":                              rule.PathTraversal,
		"/etc/hosts":                          rule.PathTraversal,
		"/tmp//escape/trick":                  rule.PathTraversal,
		"/process/x":                          rule.PathTraversal, // not protected, but outside the workspace
		"../x":                                rule.PathTraversal,
		"~root/x":                             rule.PathTraversal,
		"/home/agent/workshop/x":              rule.PathTraversal, // shares a prefix with the workspace, but is outside
		".":                                   rule.PathTraversal,
		"":                                    rule.ValidationFailed,
		"a\x00b":                              rule.ValidationFailed,
		"src/index.ts":                        rule.Allowed,
		"my-tools.ts":                         rule.Allowed,
		"barcode.ts":                          rule.Allowed,
		"my-config.json":                      rule.Allowed,
		"test-wallet.json":                    rule.Allowed,
		"a//b":                                rule.Allowed,
		"../work/notes.txt":                   rule.Allowed,
		workspace + "/notes.txt":              rule.Allowed,
		"~/.automaton/skills/test/SKILL.md":   rule.Allowed,
		"process/x":                           rule.Allowed,
		"AGENT.md":                            rule.Allowed,
		"data/output.txt":                     rule.Allowed,
		".env.example":                        rule.Allowed,
		"src/agent/policy-rules.md":           rule.Allowed,
		"..config":                            rule.Allowed,
		"/home/agent/work/../work/./deep/../a.md": rule.Allowed,
	} {
		d := b.Evaluate(call("write_file", map[string]any{"path": path, "content": "x"}))
		wantCode(t, path, d, want)
	}
}

// TestWorkspaceIsRoot tests that /process and /system may be written if the workspace
// contains them (docs/reference/policy.md, Test vectors: V-07).
func TestWorkspaceIsRoot(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for path, want := range map[string]rule.Code{
		"/process/x": rule.Allowed, "/system/x": rule.Allowed, "/proc/x": rule.ProtectedFile, "/sys/x": rule.ProtectedFile,
	} {
		in := call("write_file", map[string]any{"path": path, "content": "x"})
		in.Workspace = "/"
		wantCode(t, path, b.Evaluate(in), want)
	}
}

// TestReadFile tests the vectors V-08 (docs/reference/policy.md, Test vectors).
func TestReadFile(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for path, want := range map[string]rule.Code{
		"wallet.json": rule.SensitiveFileRead, ".env": rule.SensitiveFileRead, "config.json": rule.SensitiveFileRead,
		"automaton.json": rule.SensitiveFileRead, "/x/y.key": rule.SensitiveFileRead, "a.pem": rule.SensitiveFileRead,
		"private-key.txt": rule.SensitiveFileRead, "/root/.automaton/api-key": rule.SensitiveFileRead,
		".env.local": rule.SensitiveFileRead, "id_rsa": rule.SensitiveFileRead, "/root/.ssh/id_rsa": rule.SensitiveFileRead,
		"state.db": rule.SensitiveFileRead, "Id_RSA": rule.SensitiveFileRead, "/proc/1/environ": rule.SensitiveFileRead,
		"/etc/hosts": rule.PathTraversal, "../other/readme.md": rule.PathTraversal,
		"readme.md": rule.Allowed, "SOUL.md": rule.Allowed, "it's a file.txt": rule.Allowed, "$(whoami).txt": rule.Allowed,
	} {
		wantCode(t, path, b.Evaluate(call("read_file", map[string]any{"path": path})), want)
	}
}

func TestNoWorkspace(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for _, ws := range []string{"", "work"} {
		in := call("read_file", map[string]any{"path": "a"})
		in.Workspace = ws
		wantCode(t, "read_file in "+ws, b.Evaluate(in), rule.PathTraversal)
		in = call("exec", map[string]any{"command": "ls"})
		in.Workspace = ws
		wantCode(t, "exec in "+ws, b.Evaluate(in), rule.ForbiddenCommand)
	}
}

// TestArguments tests the vectors V-39 and the ports of V-06 (docs/reference/policy.md,
// Test vectors), and the cases of the schema.
func TestArguments(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for _, c := range []struct {
		tool, args string
		want       rule.Code
	}{
		{"write_file", `{"path":123,"content":"x"}`, rule.ValidationFailed},
		{"write_file", `null`, rule.ValidationFailed},
		{"write_file", `{"path":"a"}`, rule.ValidationFailed},
		{"write_file", `{"path":"a","content":null}`, rule.ValidationFailed},
		{"write_file", `{"path":"a","content":["x"]}`, rule.ValidationFailed},
		{"write_file", `{"path":"a","content":"","mode":"0777"}`, rule.ValidationFailed},
		{"write_file", `{"path":"a","content":""}`, rule.Allowed},
		{"read_file", `{"path":"a","path":".env"}`, rule.ValidationFailed},
		{"read_file", `{"path":"a","Path":".env"}`, rule.ValidationFailed},
		{"read_file", `{"path":"a"} {"path":".env"}`, rule.ValidationFailed},
		{"read_file", `{"path":"a"`, rule.ValidationFailed},
		{"read_file", `["a"]`, rule.ValidationFailed},
		{"read_file", `"a"`, rule.ValidationFailed},
		{"read_file", `{"path":{"path":"a"}}`, rule.ValidationFailed},
		{"read_file", "{\"path\":\"\xff\"}", rule.ValidationFailed},
		{"exec", `{"command":"ls","timeout":"5"}`, rule.ValidationFailed},
		{"exec", `{"command":"ls","timeout":-1}`, rule.ValidationFailed},
		{"exec", `{"command":"ls","timeout":1e999}`, rule.ValidationFailed},
		{"exec", `{"command":"ls","timeout":null}`, rule.ValidationFailed},
		{"modify_heartbeat", `{"action":"add","name":"x","schedule":5}`, rule.ValidationFailed},
		{"expose_port", `{"port":"80"}`, rule.ValidationFailed},
		{"expose_port", `{"port":1.5}`, rule.ValidationFailed},
		{"expose_port", `{"port":0}`, rule.ValidationFailed},
		{"expose_port", `{"port":-1}`, rule.ValidationFailed},
		{"expose_port", `{"port":65536}`, rule.ValidationFailed},
		{"expose_port", `{"port":1}`, rule.Allowed},
		{"remove_port", `{"port":65535}`, rule.Allowed},
		{"exec", `{"command":"` + strings.Repeat("a", 40_000) + `"}`, rule.ValidationFailed},
		{"check_credits", ``, rule.Allowed},
		{"check_credits", `null`, rule.ValidationFailed},
		{"check_credits", `{}`, rule.Allowed},
		{"check_credits", `{"x":1}`, rule.ValidationFailed},
		{"sleep", `{"duration_seconds":60}`, rule.Allowed},
		{"sleep", `{"duration_seconds":-60}`, rule.ValidationFailed},
		{"sleep", `{}`, rule.ValidationFailed},
		{"remember_fact", `{"category":"self","key":"k","value":"v","confidence":0.5}`, rule.Allowed},
		{"remember_fact", `{"category":"self","key":"k","value":"v","confidence":1.5}`, rule.ValidationFailed},
		{"remember_fact", `{"category":"gossip","key":"k","value":"v"}`, rule.ValidationFailed},
		{"teleport", `{"name":"x"}`, rule.UnknownTool},
		{"", `{}`, rule.UnknownTool},
	} {
		in := call(c.tool, nil)
		in.Args = json.RawMessage(c.args)
		wantCode(t, c.tool+" "+c.args[:min(len(c.args), 60)], b.Evaluate(in), c.want)
	}
}

// TestAddress tests the vectors V-06, address (docs/reference/policy.md, Test vectors).
func TestAddress(t *testing.T) {
	t.Parallel()
	b := standard(t)
	hex := strings.Repeat("aB3", 14)[:40]
	for to, want := range map[string]rule.Code{
		"0x" + hex: rule.Allowed, hex: rule.ValidationFailed, "0x1234": rule.ValidationFailed, "not-an-address": rule.ValidationFailed,
		"0x" + strings.Repeat("G", 40): rule.ValidationFailed, "0X" + hex: rule.ValidationFailed, "0x" + hex + "\n": rule.ValidationFailed,
	} {
		wantCode(t, to, b.Evaluate(call("send_message", map[string]any{"to_address": to, "content": "hi"})), want)
	}
}

func TestAuthority(t *testing.T) {
	t.Parallel()
	b := standard(t)
	address := "0x" + strings.Repeat("a", 40)
	tools := map[string]map[string]any{
		"exec":          {"command": "ls"},
		"send_message":  {"to_address": address, "content": "hi"},
		"read_file":     {"path": "readme.md"},
		"check_credits": {},
		"output":        {"path": "data/output.txt", "content": "x"},
		"AGENT.md":      {"path": "AGENT.md", "content": "x"},
		"MEMORY.md":     {"path": "notes/memory.md", "content": "x"},
		"WORKLOG.md":    {"path": "WORKLOG.md", "content": "x"},
		"soul":          {"path": "SOUL.md", "content": "x"},
	}
	for _, c := range []struct {
		what                                       string
		creator, self, heartbeat, peer, ext, other rule.Code
	}{
		{"exec", rule.Allowed, rule.Allowed, rule.Allowed, rule.AuthorityTooLow, rule.AuthorityTooLow, rule.AuthorityTooLow},
		{"send_message", rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.AuthorityTooLow, rule.AuthorityTooLow},
		{"read_file", rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed},
		{"check_credits", rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed},
		{"output", rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed, rule.Allowed},
		{"AGENT.md", rule.Allowed, rule.Allowed, rule.ExternalSelfMod, rule.ExternalSelfMod, rule.ExternalSelfMod, rule.ExternalSelfMod},
		{"MEMORY.md", rule.Allowed, rule.Allowed, rule.Allowed, rule.ExternalSelfMod, rule.ExternalSelfMod, rule.ExternalSelfMod},
		{"WORKLOG.md", rule.Allowed, rule.Allowed, rule.Allowed, rule.ExternalSelfMod, rule.ExternalSelfMod, rule.ExternalSelfMod},
		{"soul", rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile},
	} {
		for kind, want := range map[api.PrincipalKind]rule.Code{
			api.Creator: c.creator, api.Self: c.self, api.HeartbeatKind: c.heartbeat, api.Peer: c.peer, api.External: c.ext, "": c.other, "admin": c.other,
		} {
			tool := c.what
			if tools[c.what]["path"] != nil && tool != "read_file" {
				tool = "write_file"
			}
			in := call(tool, tools[c.what])
			in.By.Kind = kind
			wantCode(t, string(kind)+" "+c.what, b.Evaluate(in), want)
		}
	}
}

// TestCommandsOfTheHeartbeat tests that a command may not write what write_file may not
// write in the same turn.
func TestCommandsOfTheHeartbeat(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for command, want := range map[string]rule.Code{
		"echo x > AGENT.md": rule.ForbiddenCommand, "cp x .git/hooks/pre-commit": rule.ForbiddenCommand, "sed -i s/a/b/ HEARTBEAT.md": rule.ForbiddenCommand,
		"rm skills/x/SKILL.md": rule.ForbiddenCommand, "cat AGENT.md": rule.Allowed, "echo x >> MEMORY.md": rule.Allowed, "git commit -am x": rule.Allowed,
	} {
		in := call("exec", map[string]any{"command": command})
		in.By.Kind = api.HeartbeatKind
		wantCode(t, "heartbeat "+command, b.Evaluate(in), want)
		if want == rule.ForbiddenCommand {
			wantCode(t, "self "+command, judge(b, command), rule.Allowed)
		}
	}
}

func TestGrantedTools(t *testing.T) {
	t.Parallel()
	b := standard(t)
	in := call("exec", map[string]any{"command": "ls"})
	in.Tools = []string{"read_file"}
	wantCode(t, "exec not granted", b.Evaluate(in), rule.ToolNotGranted)
	in.Tools = nil
	wantCode(t, "nothing granted", b.Evaluate(in), rule.ToolNotGranted)
}

func TestMessageRate(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for _, c := range []struct {
		facts *rule.Facts
		want  rule.Code
	}{
		{&rule.Facts{Recent: 99}, rule.Allowed},
		{&rule.Facts{Recent: 100}, rule.RateLimitMessages},
		{nil, rule.DBUnavailable},
	} {
		in := call("send_message", map[string]any{"to_address": "0x" + strings.Repeat("a", 40), "content": "hi"})
		in.Facts = c.facts
		wantCode(t, "send_message", b.Evaluate(in), c.want)
	}
	in := call("exec", map[string]any{"command": "ls"})
	in.Facts = nil
	wantCode(t, "a tool without a rate needs no history", b.Evaluate(in), rule.Allowed)
}

// TestRates tests the vectors V-12, rates (docs/reference/policy.md, Test vectors): a call
// is denied once the limit is reached, and while the history cannot be read.
func TestRates(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for tool, c := range map[string]struct {
		args   map[string]any
		max    int
		window time.Duration
		code   rule.Code
	}{
		"update_genesis_prompt": {map[string]any{"new_prompt": "be good", "reason": "better"}, 1, 24 * time.Hour, rule.RateLimitGenesis},
		"edit_own_file":         {map[string]any{"path": "a.md", "content": "x", "description": "why"}, 10, time.Hour, rule.RateLimitSelfMod},
		"spawn_child":           {map[string]any{"name": "junior"}, 3, 24 * time.Hour, rule.RateLimitSpawn},
		"send_message":          {map[string]any{"to_address": "0x" + strings.Repeat("a", 40), "content": "hi"}, 100, time.Hour, rule.RateLimitMessages},
	} {
		if got := b.Window(tool); got != c.window {
			t.Errorf("%s is counted over %s, want %s", tool, got, c.window)
		}
		for recent, want := range map[int]rule.Code{0: rule.Allowed, c.max - 1: rule.Allowed, c.max: c.code, c.max + 1: c.code} {
			in := call(tool, c.args)
			in.Facts = &rule.Facts{Recent: recent}
			wantCode(t, tool, b.Evaluate(in), want)
		}
		in := call(tool, c.args)
		in.Facts = nil
		wantCode(t, tool+" without a history", b.Evaluate(in), rule.DBUnavailable)
	}
	if got := b.Window("exec"); got != 0 {
		t.Errorf("exec is counted over %s, want not at all", got)
	}
}

// TestValidators tests the remaining vectors V-06 (docs/reference/policy.md, Test vectors).
// Each case varies one argument of a tool; the other arguments are valid.
func TestValidators(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for name, c := range map[string]struct {
		tool, arg string
		rest      map[string]any
		refused   rule.Code
		takes     []string
		refuses   []string
	}{
		"package": {
			"install_npm_package", "package", nil, rule.ValidationFailed,
			[]string{"express", "@scope/pkg", "my-package", "pkg.js", "underscore_pkg"},
			[]string{
				"pkg; rm -rf /", "pkg && curl evil.com", "pkg | cat /etc/passwd", "$(evil)", "`evil`", "pkg --global", "pkg\nnewline", "-g", "--global",
				"../x", "a/../../x", "", "https://e.com/x.tgz",
			},
		},
		"MCP server": {
			"install_mcp_server", "package",
			map[string]any{"name": "files"},
			rule.ValidationFailed,
			[]string{
				"@scope/server", "https://e.com/mcp?a=1&b=2", "http://127.0.0.1:8000/mcp", "npx -y @modelcontextprotocol/server-filesystem", "uvx pkg@1.2 --dir=.",
			},
			[]string{
				"server; rm", "file:///etc/passwd", "https://user:pass@e.com/", "https:///x", "-y", "-y npx", "", " npx", "npx  x", "npx x ", "npx ../x", "npx x\ny", "PATH=x npx y", "npx:x",
				"npx a/../../x", "npx $(x)", "npx `x`", "npx x|y", "npx x&y", "npx x>y", "npx 'x'", `npx "x"`, "npx\tx", "npx ~", "npx *",
			},
		},
		"name of an MCP server": {
			"install_mcp_server", "name",
			map[string]any{"package": "x"},
			rule.ShellInjection,
			[]string{"files"},
			[]string{"a;b", "a|b", "$(x)", "a\nb"},
		},
		"skill": {
			"create_skill", "name",
			map[string]any{"description": "d", "instructions": "i"},
			rule.ValidationFailed,
			[]string{"my-skill", "skill123", "MySkill"},
			[]string{"../etc/passwd", "skill; rm -rf /", "skill name", "skill/path", "skill.dot"},
		},
		"address of a skill": {
			"install_skill", "url",
			map[string]any{"source": "git", "name": "x"},
			rule.ShellInjection,
			[]string{"https://e.com/x", "https://e.com/x?a=1&b=2"},
			[]string{"https://e.com/x;y", "https://e.com/$(x)", "x&y"},
		},
		"commit": {
			"pull_upstream", "commit", nil, rule.ValidationFailed,
			[]string{"abc1234", "deadbeef", strings.Repeat("a", 40)},
			[]string{"ABCDEF", "abc12", "ghijkl", strings.Repeat("a", 41), "ABC1234", "abc1234; rm"},
		},
		"cron": {
			"modify_heartbeat", "schedule",
			map[string]any{"action": "add", "name": "x"},
			rule.ValidationFailed,
			[]string{"* * * * *", "0 */2 * * *", "30 9 * * 1-5", "0 0 1,15 * *", " 0 8 * * * ", "0 8 * JAN MON-FRI", "0 8 * * 0,sun ", "0 0 ? * *", ""},
			[]string{
				"not a cron", "* * *", "* * * * * *", "MON * * * *", "61 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "* * * * 8", "5-1 * * * *",
				"*/0 * * * *", "1- * * * *", "-1 * * * *", ", * * * *", "1.5 * * * *", "@daily",
			},
		},
		"recipient of money": {
			"transfer_credits", "to_address",
			map[string]any{"amount_cents": 1},
			rule.ValidationFailed,
			[]string{"0x" + strings.Repeat("aB3", 13) + "c"},
			[]string{"nope", "0x1234", strings.Repeat("a", 40)},
		},
		"git address": {
			"git_clone", "url",
			map[string]any{"path": "repo"},
			rule.ValidationFailed,
			[]string{"https://e.com/x.git", "https://e.com:8443/a/b"},
			[]string{
				"http://e.com/x.git", "git@e.com:x.git", "ssh://e.com/x", "file:///etc", "/etc", "../other", "https://user:secret@e.com/x", "--upload-pack=x", "ext::sh -c x",
			},
		},
		"remote": {
			"git_push", "remote",
			map[string]any{"path": "."},
			rule.ValidationFailed,
			[]string{"origin", "my-fork"},
			[]string{"--receive-pack=evil", "https://e.com/x", "a b", "../x", ".hidden", "x.lock"},
		},
		"branch": {
			"git_branch", "branch_name",
			map[string]any{"path": ".", "action": "create"},
			rule.ValidationFailed,
			[]string{"main", "feature/x", "v1.2"},
			[]string{"-D", "a..b", "a b", "/x", "x/", "a//b", "x~1", "@{u}"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			judge := func(v string) rule.Decision {
				args := map[string]any{c.arg: v}
				for k, v := range c.rest {
					args[k] = v
				}
				in := call(c.tool, args)
				in.Network = true
				return b.Evaluate(in)
			}
			for _, v := range c.takes {
				wantCode(t, v, judge(v), rule.Allowed)
			}
			for _, v := range c.refuses {
				wantCode(t, v, judge(v), c.refused)
			}
		})
	}
	wantCode(t, "no commit", b.Evaluate(call("pull_upstream", nil)), rule.Allowed)
}

// TestEditOwnFile tests the vectors V-07 of edit_own_file (docs/reference/policy.md, Test
// vectors).
func TestEditOwnFile(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for path, want := range map[string]rule.Code{
		"wallet.json":                         rule.ProtectedFile,
		"package.json":                        rule.ProtectedFile,
		"/root/.automaton/SOUL.md":            rule.ProtectedFile,
		"src/agent/injection-defense.ts":      rule.ProtectedFile,
		"src/agent/policy-rules/index.ts":     rule.ProtectedFile,
		"src/agent/policy-rules/financial.ts": rule.ProtectedFile,
		"src/agent/loop.ts":                   rule.ProtectedFile,
		"~/.ssh/id":                           rule.ProtectedFile,
		"/proc/self/environ":                  rule.ProtectedFile,
		"/etc/systemd/x":                      rule.ProtectedFile,
		"../../../etc/passwd":                 rule.ProtectedFile,
		"/tmp/x":                              rule.PathTraversal,
		"/tmp//escape/trick":                  rule.PathTraversal,
		"src//index.ts":                       rule.PathTraversal,
		"/etc/hosts":                          rule.PathTraversal,
		"src/":                                rule.PathTraversal,
		"src/index.ts":                        rule.Allowed,
		"my-tools.ts":                         rule.Allowed,
		"notes/AGENT.md":                      rule.Allowed,
	} {
		wantCode(t, path, b.Evaluate(call("edit_own_file", map[string]any{"path": path, "content": "x", "description": "why"})), want)
	}
}

// TestRepositories tests that git tools work within the workspace, and use remotes only
// if the sandbox has a network.
func TestRepositories(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for _, c := range []struct {
		tool    string
		args    map[string]any
		network bool
		want    rule.Code
	}{
		{"git_status", nil, false, rule.Allowed},
		{"git_status", map[string]any{"path": "repo"}, false, rule.Allowed},
		{"git_status", map[string]any{"path": "../other"}, false, rule.PathTraversal},
		{"git_log", map[string]any{"path": "/etc"}, false, rule.PathTraversal},
		{"git_commit", map[string]any{"message": "m", "path": "~/../x"}, false, rule.PathTraversal},
		{"git_clone", map[string]any{"url": "https://e.com/x", "path": "."}, true, rule.PathTraversal},
		{"git_clone", map[string]any{"url": "https://e.com/x", "path": "x"}, true, rule.Allowed},
		{"git_clone", map[string]any{"url": "https://e.com/x", "path": "x"}, false, rule.NetworkDenied},
		{"git_push", map[string]any{"path": "."}, false, rule.NetworkDenied},
		{"git_push", map[string]any{"path": "."}, true, rule.Allowed},
		{"install_npm_package", map[string]any{"package": "express"}, false, rule.NetworkDenied},
	} {
		in := call(c.tool, c.args)
		in.Network = c.network
		wantCode(t, c.tool, b.Evaluate(in), c.want)
	}
}

// TestSpending tests the authority for tools that move money: 80 for a dangerous tool,
// and the creator's approval below 60 for the others (docs/reference/policy.md,
// Authority).
func TestSpending(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for kind, want := range map[api.PrincipalKind]api.Action{api.Creator: api.Allow, api.Self: api.Allow, api.HeartbeatKind: api.Quarantine, api.Peer: api.Quarantine, "": api.Quarantine} {
		in := call("topup_credits", map[string]any{"amount_usd": 5})
		in.By.Kind = kind
		if d := b.Evaluate(in); d.Action != want || want == api.Quarantine && d.Code != rule.SpendNeedsAssent {
			t.Errorf("topup_credits for %q: %s %s, want %s", kind, d.Action, d.Code, want)
		}
		in = call("fund_child", map[string]any{"child_id": "c1", "amount_cents": 100})
		in.By.Kind = kind
		if d := b.Evaluate(in); want == api.Quarantine && d.Code != rule.ExternalDangerous || want == api.Allow && d.Action != api.Allow {
			t.Errorf("fund_child for %q: %s %s", kind, d.Action, d.Code)
		}
	}
}

// TestAuthorityOfTools tests the vectors V-12, authority (docs/reference/policy.md, Test
// vectors): tools that are denied to a turn with input of a peer or an external principal,
// and tools that are allowed to it.
func TestAuthorityOfTools(t *testing.T) {
	t.Parallel()
	b := standard(t)
	for tool, args := range map[string]map[string]any{
		"delete_sandbox": {"sandbox_id": "s"}, "spawn_child": {"name": "x"}, "fund_child": {"child_id": "c", "amount_cents": 1},
		"update_genesis_prompt": {"new_prompt": "p", "reason": "r"}, "edit_own_file": {"path": "a.md", "content": "", "description": "d"},
		"revert_last_edit": nil, "modify_heartbeat": {"action": "remove", "name": "x"},
	} {
		for kind, allowed := range map[api.PrincipalKind]bool{api.Creator: true, api.Self: true, api.Peer: false, api.External: false, "": false} {
			in := call(tool, args)
			in.By.Kind = kind
			if d := b.Evaluate(in); (d.Action == api.Allow) != allowed {
				t.Errorf("%s for %q: %s %s (%s)", tool, kind, d.Action, d.Code, d.Message)
			}
		}
	}
	for tool, args := range map[string]map[string]any{"git_status": nil, "system_synopsis": nil, "list_models": nil, "heartbeat_ping": nil} {
		in := call(tool, args)
		in.By.Kind = api.External
		wantCode(t, tool, b.Evaluate(in), rule.Allowed)
	}
}

// TestEveryTool tests that policy judges every tool of the catalogue with the tool's
// risk.
func TestEveryTool(t *testing.T) {
	t.Parallel()
	b := standard(t)
	all := catalog.Tools()
	if len(all) != 77 {
		t.Errorf("the catalogue has %d tools, want 77", len(all))
	}
	for _, tool := range all {
		if d := b.Evaluate(call(tool.Name, map[string]any{"surely": "not"})); d.Risk != tool.Risk || d.Code != rule.ValidationFailed {
			t.Errorf("%s is judged %s with risk %s, want its arguments refused and risk %s", tool.Name, d.Code, d.Risk, tool.Risk)
		}
	}
}
