package rule_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/policy/internal/rule"
)

const workspace = "/home/agent/work"

func standard(t testing.TB) *rule.Book {
	t.Helper()
	b, err := rule.Standard()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// call is a call that nothing is wrong with but what the test gives.
func call(tool string, args map[string]any) rule.Input {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // the tests' own maps always encode
	}
	return rule.Input{
		Agent: "a1", Session: "s1", Run: "r1", Turn: "t1", Tool: tool, Args: raw,
		By: rule.Principal{Kind: rule.Self}, Workspace: workspace, Facts: &rule.Facts{},
		Tools: []string{"exec", "write_file", "read_file", "sleep", "check_credits", "remember_fact", "send_message"},
	}
}

func wantCode(t *testing.T, what string, d rule.Decision, want rule.Code) {
	t.Helper()
	if d.Code != want {
		t.Errorf("%s: got %s (%s), want %s", what, d.Code, d.Message, want)
	}
	if action := map[bool]rule.Action{true: rule.Allow, false: rule.Deny}[want == rule.Allowed]; d.Action != action {
		t.Errorf("%s: got action %s, want %s", what, d.Action, action)
	}
	if d.Action != rule.Allow && (d.Message == "" || len(d.RulesTriggered) == 0) {
		t.Errorf("%s: a refusal without message or rule: %+v", what, d)
	}
}

// Vectors V-07.
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
		"wallet.j\u017fon":                    rule.ProtectedFile, // long s folds to s
		"/tmp/x":                              rule.PathTraversal,
		"/etc/hosts":                          rule.PathTraversal,
		"/tmp//escape/trick":                  rule.PathTraversal,
		"/process/x":                          rule.PathTraversal, // not protected, but outside
		"../x":                                rule.PathTraversal,
		"~root/x":                             rule.PathTraversal,
		"/home/agent/workshop/x":              rule.PathTraversal, // a prefix, not a parent
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

// /process and /system are free where the workspace reaches them (V-07).
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

// Vectors V-08.
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

// Vectors V-39, with the schema's own cases.
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
		{"exec", `{"command":"ls","timeout":null}`, rule.Allowed},
		{"exec", `{"command":"` + strings.Repeat("a", 40_000) + `"}`, rule.ValidationFailed},
		{"check_credits", ``, rule.Allowed},
		{"check_credits", `null`, rule.Allowed},
		{"check_credits", `{}`, rule.Allowed},
		{"check_credits", `{"x":1}`, rule.ValidationFailed},
		{"sleep", `{"duration_seconds":60}`, rule.Allowed},
		{"sleep", `{"duration_seconds":-60}`, rule.ValidationFailed},
		{"sleep", `{}`, rule.ValidationFailed},
		{"remember_fact", `{"category":"self","key":"k","value":"v","confidence":0.5}`, rule.Allowed},
		{"remember_fact", `{"category":"self","key":"k","value":"v","confidence":1.5}`, rule.ValidationFailed},
		{"remember_fact", `{"category":"gossip","key":"k","value":"v"}`, rule.ValidationFailed},
		{"spawn_child", `{"name":"x"}`, rule.UnknownTool},
		{"", `{}`, rule.UnknownTool},
	} {
		in := call(c.tool, nil)
		in.Args = json.RawMessage(c.args)
		wantCode(t, c.tool+" "+c.args[:min(len(c.args), 60)], b.Evaluate(in), c.want)
	}
}

// Vectors V-06, row address.
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
		{"soul", rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile, rule.ProtectedFile},
	} {
		for kind, want := range map[rule.Kind]rule.Code{
			rule.Creator: c.creator, rule.Self: c.self, rule.Heartbeat: c.heartbeat, rule.Peer: c.peer, rule.External: c.ext, "": c.other, "admin": c.other,
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
		{&rule.Facts{LastHour: 99}, rule.Allowed},
		{&rule.Facts{LastHour: 100}, rule.RateLimitMessages},
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
