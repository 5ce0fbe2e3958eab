package builtin_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
	"github.com/anima-run/anima/services/loop/internal/tools/toolstest"
)

// TestMain calls Init, because the sandbox and package git start this binary again.
func TestMain(m *testing.M) {
	sandbox.Init()
	git.Init()
	os.Exit(m.Run())
}

const at = toolstest.At

// world records the calls that tools make to other services.
type world struct {
	alarms   []api.SetAlarm
	genesis  []string
	err      error // error of every call, or nil
	balances int
}

func (w *world) SetAlarm(_ context.Context, a api.SetAlarm) (api.Alarm, error) {
	w.alarms = append(w.alarms, a)
	return api.Alarm{Agent: a.Agent, At: a.At}, w.err
}

func (w *world) Balance(_ context.Context, agent string) (api.Balance, error) {
	w.balances++
	return api.Balance{Agent: agent, Available: 991_000, Held: 9000, Tier: api.TierHigh}, w.err
}

func (w *world) Agent(_ context.Context, id string) (api.Agent, error) {
	return api.Agent{ID: id, Name: "Ada", Address: "0xAD", State: api.StateRunning, Reason: "a message", Turns: 7, Version: 2}, nil
}

func (w *world) SetGenesis(_ context.Context, agent, prompt, reason, key string, _ int64) error {
	w.genesis = append(w.genesis, agent+" "+key+" "+reason+": "+prompt)
	return w.err
}

// bench runs tools in a temporary workspace.
type bench struct {
	*world
	toolstest.Bench
}

func newBench(t *testing.T) bench {
	t.Helper()
	held := sandbox.Probe(t.Context()).Sandboxed()
	if !held {
		t.Logf("this kernel cannot hold commands: they run unsandboxed here")
	}
	b := bench{&world{}, toolstest.New(t)}
	b.Tools, b.Bench.Agent.ExecTimeoutS = builtin.All(tools.Config{AllowUnsandboxed: !held, Now: time.Now}, b.world, b.world), 30
	return b
}

// effects is the effect class of each tool, which determines what may be repeated after a
// crash.
var effects = map[string]catalog.Effect{
	"read_file": catalog.Pure, "write_file": catalog.Idempotent, "exec": catalog.Irreversible, "sleep": catalog.Keyed,
	"system_synopsis": catalog.Pure,
	"git_status":      catalog.Pure, "git_diff": catalog.Pure, "git_commit": catalog.Irreversible, "git_log": catalog.Pure,
	"git_push": catalog.Idempotent, "git_branch": catalog.Idempotent, "git_clone": catalog.Irreversible,
	"edit_own_file": catalog.Idempotent, "revert_last_edit": catalog.Keyed, "update_genesis_prompt": catalog.Idempotent,
	"install_npm_package": catalog.Irreversible,
}

func TestAll(t *testing.T) {
	t.Parallel()
	all := newBench(t).Tools
	got := map[string]catalog.Effect{}
	for name, tool := range all {
		got[name] = tool.Effect
		if tool.Name != name || tool.Description == "" {
			t.Errorf("%s is called %q and described %q", name, tool.Name, tool.Description)
		}
	}
	if diff := cmp.Diff(effects, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	basic := builtin.Basic()
	elsewhere := []catalog.Category{catalog.Memory, catalog.Orchestration} // implemented by packages memory and goal
	for _, name := range basic {
		if spec, ok := catalog.Named(name); !ok || spec.Risk == catalog.Dangerous ||
			spec.Owner == api.Loop && all[name].Run == nil && !slices.Contains(elsewhere, spec.Category) {
			t.Errorf("the default has %s, which is dangerous or not executed", name)
		}
	}
	for _, name := range []string{"recall_facts", "create_goal", "list_goals"} {
		if !slices.Contains(basic, name) {
			t.Errorf("the default is %v, want %s in it", basic, name)
		}
	}
	basic[0] = "changed"
	if slices.Contains(builtin.Basic(), "changed") {
		t.Error("a caller can change the names")
	}
}

// TestOffered tests that tools which need a network or a program are offered only if it
// is available.
func TestOffered(t *testing.T) {
	t.Parallel()
	for _, npm := range []bool{false, true} {
		all := builtin.All(tools.Config{NPM: npm}, nil, nil)
		for _, network := range []bool{false, true} {
			a := engine.Agent{Network: network}
			for name, want := range map[string]bool{"git_clone": network, "git_push": network, "install_npm_package": network && npm} {
				if got := all[name].Offered(a); got != want {
					t.Errorf("%s with npm %t and network %t is offered: %t, want %t", name, npm, network, got, want)
				}
			}
		}
	}
}

// TestCheck tests frequent mistakes of models, and arguments that policy and the tool
// could read differently.
func TestCheck(t *testing.T) {
	t.Parallel()
	all := newBench(t).Tools
	for _, tt := range []struct{ name, tool, args, says string }{
		{"nothing", "read_file", ``, "path is missing"},
		{"null", "git_status", `null`, "not a JSON object"},
		{"a list", "git_status", `[]`, "not a JSON object"},
		{"a string", "read_file", `"notes.txt"`, "not a JSON object"},
		{"half an object", "read_file", `{"path":"a"`, "not valid JSON"},
		{"trailing garbage", "read_file", `{"path":"a"}x`, "more than one"},
		{"two objects", "exec", `{"command":"ls"}{"command":"rm -rf /"}`, "more than one"},
		{"missing", "read_file", `{}`, "path is missing"},
		{"empty", "exec", `{"command":""}`, "command is empty"},
		{"no content", "write_file", `{"path":"a"}`, "content is missing"},
		{"unknown", "read_file", `{"path":"a","mode":"r"}`, `no argument "mode"`},
		{"for a tool without", "system_synopsis", `{"agent":"bob"}`, `no argument "agent"`},
		{"in another case", "exec", `{"command":"ls","Command":"rm -rf /"}`, `no argument "Command"`},
		{"twice", "exec", `{"command":"ls","command":"rm -rf /"}`, "given twice"},
		{"twice, in escapes", "exec", `{"command":"ls","c\u006fmmand":"rm -rf /"}`, "given twice"},
		{"V-39: a number for a path", "write_file", `{"path":123,"content":"x"}`, "do not fit the schema"},
		{"a null value", "exec", `{"command":"ls","timeout":null}`, "timeout is null"},
		{"text for a number", "sleep", `{"duration_seconds":"abc"}`, "do not fit the schema"},
		{"a fraction", "sleep", `{"duration_seconds":1.5}`, "do not fit the schema"},
		{"an overflow", "sleep", `{"duration_seconds":9223372036854775808}`, "do not fit the schema"},
		{"no time", "sleep", `{"duration_seconds":0}`, "at least 1"},
		{"too long", "sleep", `{"duration_seconds":86401}`, "at most 86400"},
		{"back in time", "exec", `{"command":"ls","timeout":-1}`, "at least 1"},
		{"too patient", "exec", `{"command":"ls","timeout":601}`, "at most 600"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := all[tt.tool].Check(json.RawMessage(tt.args))
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s takes %s with %v, want %q", tt.tool, tt.args, err, tt.says)
			}
			if _, err := all[tt.tool].Run(t.Context(), engine.Call{Args: json.RawMessage(tt.args)}); err == nil {
				t.Errorf("%s runs with %s", tt.tool, tt.args)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if got := b.Text(t, "write_file", `{"path":"a/notes.txt","content":"héllo"}`); got != "wrote 6 bytes to a/notes.txt" {
		t.Errorf("said %q", got)
	}
	if got := b.Text(t, "read_file", `{"path":"a/notes.txt"}`); got != "héllo" {
		t.Errorf("read %q", got)
	}
	b.Text(t, "write_file", `{"path":"a/notes.txt","content":""}`)
	data, err := os.ReadFile(filepath.Join(b.Bench.Agent.Workspace, "a/notes.txt"))
	if err != nil || len(data) != 0 {
		t.Errorf("an empty file is %q, %v", data, err)
	}
	if _, err := b.Call(t, "read_file", `{"path":"none"}`); err == nil || !strings.Contains(err.Error(), "no such file in the workspace") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestFilesOutside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	secret := filepath.Join(filepath.Dir(b.Bench.Agent.Workspace), "secret")
	if err := os.WriteFile(secret, []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(b.Bench.Agent.Workspace, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(b.Bench.Agent.Workspace, "up")); err != nil {
		t.Fatal(err)
	}
	quote := func(path string) string {
		data, err := json.Marshal(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, path := range []string{"../secret", "link", "up/secret", secret, "/etc/passwd", "a/../../secret", "."} {
		if out, err := b.Call(t, "read_file", `{"path":`+quote(path)+`}`); err == nil {
			t.Errorf("read %q from %s", out.Text, path)
		}
		if path == "link" {
			continue // the link itself is inside and is replaced
		}
		if _, err := b.Call(t, "write_file", `{"path":`+quote(path)+`,"content":"mine"}`); err == nil {
			t.Errorf("wrote to %s", path)
		}
	}
	b.Text(t, "write_file", `{"path":"link","content":"mine"}`)
	if data, err := os.ReadFile(secret); err != nil || string(data) != "key" {
		t.Errorf("the file outside is now %q, %v", data, err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, tt := range []struct{ name, command, want string }{
		{"ok", "echo hi > f; cat f", "hi\n"},
		{"exit code", "echo out; echo err >&2; exit 3", "[exit code 3]\nout\n\n[stderr]\nerr\n"},
		{"both", "echo out; echo err >&2", "out\n\n[stderr]\nerr\n"},
		{"its own folder", "basename $PWD", "ada\n"},
	} {
		args, err := json.Marshal(map[string]string{"command": tt.command})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Text(t, "exec", string(args)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestExecTimeout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// The shorter of the agent's limit and the call's limit applies.
	for _, tt := range []struct {
		limit int
		args  string
	}{{30, `{"command":"echo first; sleep 60","timeout":1}`}, {1, `{"command":"echo first; sleep 60","timeout":600}`}} {
		b.Bench.Agent.ExecTimeoutS = tt.limit
		out, err := b.Call(t, "exec", tt.args)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "longer than 1 s") {
			t.Errorf("with %d s: %v, want a timeout after 1 s", tt.limit, err)
		}
		if out.Text != "first\n" {
			t.Errorf("what it said before is %q", out.Text)
		}
	}
}

func TestExecOutside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if !sandbox.Probe(t.Context()).Sandboxed() {
		// Without a sandbox, exec is disabled unless the operator allows unsandboxed
		// commands.
		b.Tools = builtin.All(tools.Config{Now: time.Now}, b.world, b.world)
		if _, err := b.Call(t, "exec", `{"command":"true"}`); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("without a sandbox a command ended with %v", err)
		}
		return
	}
	secret := filepath.Join(filepath.Dir(b.Bench.Agent.Workspace), "secret")
	if err := os.WriteFile(secret, []byte("key"), 0o644); err != nil { // readable for all, so only the sandbox protects it
		t.Fatal(err)
	}
	got := b.Text(t, "exec", `{"command":"cat ../secret; echo mine > ../secret; echo $?"}`)
	if strings.Contains(got, "key") {
		t.Errorf("a command read a file outside: %q", got)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "key" {
		t.Errorf("a command wrote a file outside: %q, %v", data, err)
	}
}

func TestExecCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	lost := errors.New("lease lost")
	cancel(lost)
	_, err := b.Tools["exec"].Run(ctx, engine.Call{Agent: b.Bench.Agent, Args: json.RawMessage(`{"command":"touch ran"}`)})
	if !errors.Is(err, lost) && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cause", err)
	}
	if _, err := os.Stat(filepath.Join(b.Bench.Agent.Workspace, "ran")); err == nil {
		t.Error("the command ran")
	}
}

// TestSleep tests that a repeated call sets the same alarm.
func TestSleep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 2 {
		out, err := b.Call(t, "sleep", `{"duration_seconds":3600,"reason":"the market opens"}`)
		if err != nil {
			t.Fatal(err)
		}
		want := engine.Output{Text: "sleeping until 2026-09-21T15:13:20Z", Sleep: &engine.Sleep{Until: at + 3_600_000_000, Reason: "the market opens"}}
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	alarm := api.SetAlarm{ID: "r1.1.0", Agent: "ada", At: at + 3_600_000_000, Reason: "the market opens"}
	if diff := cmp.Diff([]api.SetAlarm{alarm, alarm}, b.alarms); diff != "" {
		t.Errorf("alarms (-want +got):\n%s", diff)
	}
	// A task, or a message of another agent, does not replace the agent's alarm.
	for session, by := range map[string]api.PrincipalKind{"ada-task-g1-1-1": api.Self, "ada-mail": api.Peer, "ada-two": api.External} {
		c := engine.Call{Agent: b.Bench.Agent, Session: session, Key: "r2.1.0", Args: json.RawMessage(`{"duration_seconds":86400}`), At: at, By: api.Principal{Kind: by}}
		if out, err := b.Tools["sleep"].Run(t.Context(), c); err != nil || out.Sleep != nil || !out.Ends || len(b.alarms) != 2 {
			t.Errorf("in %s by %s: %+v, %v and %d alarms, want the end of the run and no other alarm", session, by, out, err, len(b.alarms)-2)
		}
	}
	if out, _ := b.Call(t, "sleep", `{"duration_seconds":1}`); out.Sleep.Reason == "" {
		t.Error("a sleep without a reason gives none to wake up with")
	}
	b.err = api.Errorf(api.Unavailable, "away")
	if out, err := b.Call(t, "sleep", `{"duration_seconds":1}`); !errors.Is(err, b.err) || out.Sleep != nil {
		t.Errorf("without an alarm: %+v, %v, want no sleep", out, err)
	}
}

func TestSynopsis(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := b.Text(t, "system_synopsis", `{}`)
	for _, want := range []string{"Ada (ada) is running: a message", "0xAD", "7 turns", "version 2", "available $0.991", "tier high"} {
		if !strings.Contains(got, want) {
			t.Errorf("said %q, want %q in it", got, want)
		}
	}
	b.err = api.Errorf(api.Unavailable, "away")
	if got := b.Text(t, "system_synopsis", `{}`); !strings.Contains(got, "the balance is unknown") {
		t.Errorf("without treasury: %q, want that the balance is unknown", got)
	}
}
