package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

const address = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"

func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestInitWithFlags(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["OPENAI_API_KEY"] = "sk-very-secret"
	file := filepath.Join(t.TempDir(), "AGENT.md")
	args := []string{"init", file, "--name", "Nova", "--genesis", "Watch the ledger.", "--creator", address, "--message", "Welcome.", "--description", "A watcher", "--tools", "exec,sleep"}
	v := asked[initView](m, args...)
	want := initView{
		File: file, Agent: "nova", Written: true, Autonomy: true,
		Environment: environment{inLocal, "neither CONWAY_SANDBOX_ID nor KUBERNETES_SERVICE_HOST is set"},
		Providers:   []string{"OPENAI_API_KEY"}, Next: []string{"anima up --agent " + file, `anima session send nova "who are you?"`},
	}
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const source = `---
name: Nova
description: A watcher
creator: 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed
message: Welcome.
autonomy: true
tools:
- exec
- sleep
limits:
  max_turns: 25
  max_tool_calls: 10
  timeout_seconds: 600
  queue_timeout_seconds: 30
context:
  window: 0
  reserve: 4000
  flush: 8000
sandbox:
  network: false
  timeout_seconds: 30
---

Watch the ledger.
`
	if diff := cmp.Diff(source, read(t, file)); diff != "" {
		t.Errorf("the file (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want a file of its owner's", info.Mode(), err)
	}

	// The same answers change nothing; other answers need --force.
	if v := asked[initView](m, args...); v.Written {
		t.Errorf("again: %+v, want nothing written", v)
	}
	if out := m.cli(args...); !strings.Contains(out, "with the same content") || strings.Contains(out, "very-secret") || !strings.Contains(out, "OPENAI_API_KEY is set") {
		t.Errorf("again it says\n%s", out)
	}
	other := append(args, "--no-autonomy")
	m.fails(exitConflict, "", other, "already exists", "--force", "anima agent apply")
	if read(t, file) != source {
		t.Error("the file was changed without --force")
	}
	if v := asked[initView](m, append(other, "--force")...); !v.Written || v.Autonomy || !strings.Contains(read(t, file), "autonomy: false") {
		t.Errorf("with --force: %+v", v)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("in the folder: %v, %v, want the file alone", left, err)
	}
}

// TestInitWithoutTerminal checks that without a terminal init asks nothing and reports
// every missing and invalid value.
func TestInitWithoutTerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	file := filepath.Join(t.TempDir(), "AGENT.md")
	m.fails(exitUsage, "Nova\n", []string{"init", file}, "name is missing: give it with --name", "the genesis prompt is missing: give it with --genesis or --genesis-file", "nothing was written")
	said := m.fails(exitUsage, "", []string{"init", file, "--name", "No Name", "--creator", "0x1", "--tools", "fly", "--message", strings.Repeat("x", 2001), "-o", "json"})
	var wire struct{ Error api.Error }
	one(t, said, &wire)
	want := []string{
		"the genesis prompt is missing: give it with --genesis or --genesis-file",
		`name may have only letters, digits and -, got "No Name"`,
		`creator must be an address of 0x and 40 hexadecimal digits, got "0x1"`,
		"message has 2001 characters; at most 2000 are allowed",
		`unknown tool "fly"`,
	}
	for i := range want {
		if i >= len(wire.Error.Details) || !strings.HasPrefix(wire.Error.Details[i], want[i]) {
			t.Fatalf("the faults are %q, want %q", wire.Error.Details, want)
		}
	}
	if wire.Error.Code != api.Invalid || len(wire.Error.Details) != len(want) {
		t.Errorf("the error is %+v", wire.Error)
	}
	m.fails(exitUsage, "", []string{"init", file, "--name", "", "--genesis", " "}, "name is empty", "the genesis prompt is empty")
	m.fails(exitUsage, "", []string{"init", file, "--name", "a", "--genesis-file", file}, "AGENT.md")
	m.fails(exitUsage, "", []string{"init", file, "--name", "a", "--genesis", "b", "--genesis-file", "-"}, "genesis")
	m.fails(exitUsage, "", []string{"init", t.TempDir(), "--name", "a", "--genesis", "b"}, "directory")
	m.fails(exitUsage, "", []string{"init", filepath.Join(file, "x"), "--name", "a", "--genesis", "b"}, "AGENT.md")
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written")
	}
	r := m.run("From a pipe.\n", "init", file, "--name", "Piped", "--genesis-file", "-")
	if r.code != exitOK || !strings.HasSuffix(read(t, file), "---\n\nFrom a pipe.\n") {
		t.Errorf("from standard input: %+v", r)
	}
}

// TestInitLeavesBrokenFiles checks that an existing file with faults is not replaced,
// with or without a terminal (docs/reference/platform.md, overwritten definition).
func TestInitLeavesBrokenFiles(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	file := filepath.Join(t.TempDir(), "AGENT.md")
	write(t, file, "---\nname: Nova\nflavour: sweet\n---\nBe.\n")
	args := []string{"init", file, "--name", "Nova", "--genesis", "Be."}
	m.fails(exitUsage, "", args, "has faults", "line 3", "flavour", "--force")
	p := onTerminal(t, m, "init", file)
	if code := p.code(); code != exitUsage || strings.Contains(p.text(), "name:") || !strings.Contains(p.text(), "line 3") {
		t.Errorf("on a terminal: exit %d\n%s", code, p.text())
	}
	m.fails(exitUsage, "", []string{"up", "--agent", file}, "has faults", "line 3", "nothing was started")
	m.fails(exitUsage, "", []string{"up", "--agent", file + "x"}, "AGENT.mdx", "anima init")
	if _, err := os.Stat(m.data()); err == nil {
		t.Error("something was started")
	}
	m.cli(append(args, "--force")...)
	if !strings.Contains(read(t, file), "autonomy: true") {
		t.Errorf("with --force:\n%s", read(t, file))
	}
}

// TestInitWarns checks that init reports faults of the settings before a service is
// started with them.
func TestInitWarns(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_LOOP_SLOTS"], m.env["ANIMA_LOOP_SLOT"] = "many", "4"
	file := filepath.Join(t.TempDir(), "AGENT.md")
	r := m.run("", "init", file, "--name", "Nova", "--genesis", "Be.")
	for _, want := range []string{`anima up would not start: ANIMA_LOOP_SLOTS="many"`, "ANIMA_LOOP_SLOT is not a setting: did you mean ANIMA_LOOP_SLOTS?"} {
		if r.code != exitOK || !strings.Contains(r.err, want) {
			t.Errorf("exit %d, it says %q, want %q", r.code, r.err, want)
		}
	}
}

// TestCreateFile checks that a file that was created after the check for existence is not
// overwritten.
func TestCreateFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "AGENT.md")
	for _, want := range []error{nil, fs.ErrExist} {
		if err := createFile(file, []byte("mine")); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if err := writeFile(file, []byte("yours")); err != nil || read(t, file) != "yours" {
		t.Errorf("replaced: %v, %q", err, read(t, file))
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("in the folder: %v, %v, want the file alone", left, err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	for kind, env := range map[string]map[string]string{
		inLocal:      {"CONWAY_SANDBOX_ID": ""},
		inKubernetes: {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
		inSandbox:    {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "CONWAY_SANDBOX_ID": "s1"},
	} {
		if got := detect(lookupIn(env)); got.Kind != kind || got.Because == "" {
			t.Errorf("with %v: %+v, want %s", env, got, kind)
		}
	}
	if got := providers(lookupIn(map[string]string{"OPENAI_API_KEY_FILE": "/k", "OPENAI_BASE_URL": "http://x", "ANIMA_INFERENCE_ROUTER_RAW_KEY": "true"})); strings.Join(got, " ") != "OPENAI_API_KEY_FILE OPENAI_BASE_URL" {
		t.Errorf("providers are %q", got)
	}
	for text, want := range map[string]string{"a/b.md": "a/b.md", "a b": "'a b'", "it's": `'it'\''s'`, "": "''"} {
		if got := shellQuote(text); got != want {
			t.Errorf("word(%q) is %s, want %s", text, got, want)
		}
	}
}

// person simulates a user at a terminal on which a command runs.
type person struct {
	t    *testing.T
	tty  *os.File // the user's end of the pseudo-terminal
	stop context.CancelFunc
	out  bytes.Buffer // standard output, which is not the terminal

	mu    sync.Mutex
	seen  strings.Builder
	more  chan struct{} // signalled after each read
	dark  chan struct{} // closed when all output was read
	ended chan int
}

func onTerminal(t *testing.T, m *machine, args ...string) *person {
	t.Helper()
	return sitting(t, m, false, args...)
}

// sitting runs a command on a terminal. whole means that its standard output is the
// terminal, too.
func sitting(t *testing.T, m *machine, whole bool, args ...string) *person {
	t.Helper()
	tty, end, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &person{t: t, tty: tty, stop: cancel, more: make(chan struct{}, 1), dark: make(chan struct{}), ended: make(chan int, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		a := m.app(end, &p.out, end)
		if whole {
			a.Out = end
		}
		p.ended <- run(ctx, args, a)
		_ = end.Close() // the reader below ends with it
	})
	wg.Go(func() {
		defer close(p.dark)
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait(); _ = tty.Close() }) // closed after the command and the reader have ended
	return p
}

func (p *person) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// answer waits until the output ends with the prompt, then types the keys.
func (p *person) answer(prompt, keys string) {
	p.t.Helper()
	p.wait(prompt, func(text string) bool { return strings.HasSuffix(text, prompt) })
	if _, err := p.tty.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits until the terminal shows the text.
func (p *person) sees(want string) {
	p.t.Helper()
	p.wait(want, func(text string) bool { return strings.Contains(text, want) })
}

func (p *person) wait(prompt string, there func(string) bool) {
	p.t.Helper()
	for !there(p.text()) {
		select {
		case <-p.more:
		case code := <-p.ended:
			p.t.Fatalf("ended with %d before it showed %q:\n%.2000s", code, prompt, p.text())
		case <-p.t.Context().Done():
			return
		}
	}
}

func (p *person) code() int {
	p.t.Helper()
	code := <-p.ended
	<-p.dark
	return code
}

func TestInitOnATerminal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	file := filepath.Join(t.TempDir(), "AGENT.md")
	p := onTerminal(t, m, "init", file)
	p.answer("name: ", "No Name\r")
	p.answer("name: ", "Nof\x7fva\r") // with the backspace key
	p.answer("| ", ".\r")
	p.answer("| ", "Watch the ledger.\r")
	p.answer("| ", "\r")
	p.answer("| ", "Say so.\r")
	p.answer("| ", ".\r")
	p.answer("creator: ", "me\r")
	p.answer("creator: ", address+"\r")
	p.answer("message: ", "\r")
	p.answer("[Y/n] ", "perhaps\r")
	p.answer("[Y/n] ", "n\r")
	p.answer("model: ", "\r")
	p.answer("Write it? [Y/n] ", "\r")
	if code := p.code(); code != exitOK {
		t.Fatalf("exit %d\n%s", code, p.text())
	}
	for _, want := range []string{
		"environment: local, because neither", "model providers: none", `name may have only letters, digits and -, got "No Name"`, "the genesis prompt is empty",
		"creator must be an address", "answer y or n", "with all defaults", "queue_timeout_seconds: 30",
	} {
		if !strings.Contains(p.text(), want) {
			t.Errorf("the terminal does not show %q:\n%s", want, p.text())
		}
	}
	got := read(t, file)
	for _, want := range []string{"name: Nova\n", "creator: " + address + "\n", "autonomy: false\n", "\nWatch the ledger.\n\nSay so.\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the file is\n%s\nwant %q in it", got, want)
		}
	}
	if strings.Contains(got, "message:") || !strings.Contains(p.out.String(), "is written: agent nova") || !strings.Contains(p.out.String(), "anima up --agent ") {
		t.Errorf("the file is\n%s\nand it says\n%s", got, p.out.String())
	}

	// Invalid flags are reported before the first question.
	if p := onTerminal(t, m, "init", file+"3", "--creator", "me"); p.code() != exitUsage || strings.Contains(p.text(), "name:") || strings.Contains(p.text(), "missing") {
		t.Errorf("with a flag that is wrong: %s", p.text())
	}
	// Keys that are typed ahead are kept.
	ahead := onTerminal(t, m, "init", file+"4")
	ahead.answer("name: ", "Ada\rBe brief.\r.\r\r\ry\r\ry\r")
	if code := ahead.code(); code != exitOK || !strings.Contains(read(t, file+"4"), "name: Ada") {
		t.Errorf("typed ahead: exit %d\n%s", code, ahead.text())
	}
	// An existing file is reported before the first question.
	if p := onTerminal(t, m, "init", file); p.code() != exitConflict || !strings.Contains(p.text(), "already exists") {
		t.Errorf("again: %s", p.text())
	}
	// Values of flags are not asked for; with --yes, neither are values with a default.
	if p := onTerminal(t, m, "init", file+"2", "--name", "Nova", "--yes"); true {
		p.answer("| ", "Be.\r")
		p.answer("| ", ".\r")
		if code := p.code(); code != exitOK || !strings.Contains(read(t, file+"2"), "autonomy: true") {
			t.Errorf("with --yes: exit %d\n%s", code, p.text())
		}
	}
}

// TestInitLeftOff checks that a user that ends the dialogue early leaves no file behind.
func TestInitLeftOff(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*person){
		"ctrl-c":   func(p *person) { p.answer("name: ", "No\x03") },
		"ctrl-d":   func(p *person) { p.answer("name: ", "\x04") },
		"a signal": func(p *person) { p.answer("name: ", "No"); p.stop() },
		"no": func(p *person) {
			p.answer("name: ", "Nova\r")
			p.answer("| ", "Be.\r")
			p.answer("| ", ".\r")
			p.answer("creator: ", "\r")
			p.answer("message: ", "\r")
			p.answer("[Y/n] ", "\r")
			p.answer("model: ", "\r")
			p.answer("Write it? [Y/n] ", "no\r")
		},
		"a long line": func(p *person) { p.answer("name: ", strings.Repeat("x", maxLine)+"\r"); p.answer("name: ", "\x03") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			file := filepath.Join(t.TempDir(), "AGENT.md")
			p := onTerminal(t, m, "init", file)
			leave(p)
			if code := p.code(); code != exitUsage || !strings.Contains(p.text(), "nothing was written") {
				t.Errorf("exit %d\n%.2000s", code, p.text())
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("a file was written")
			}
		})
	}
}

// TestUpWithAnAgent checks that up creates and funds the agent of the AGENT.md that init
// wrote.
func TestUpWithAnAgent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	file := filepath.Join(t.TempDir(), "AGENT.md")
	m.cli("init", file, "--name", "Nova", "--genesis", "Be useful.", "--tools", "read_file,git_clone")
	u := m.up("--agent", file)
	if !strings.Contains(u.log(), "tool git_clone cannot be used") {
		t.Errorf("up does not warn of a tool that the agent cannot use:\n%s", u.log())
	}
	if g := asked[agentView](m, "agent", "get", "nova"); g.Balance == nil || g.Balance.Available != 5*api.Dollar || g.Version != 1 {
		t.Errorf("the agent is %+v", g)
	}
	if got := ids(asked[api.Agents](m, "agent", "list")); got != "nova" {
		t.Errorf("agents are %q, want nova alone", got)
	}
	if v := asked[initView](m, "init", file+"2", "--name", "Ada", "--genesis", "Be."); v.Next[0] != "anima agent apply "+file+"2" {
		t.Errorf("beside a running anima it says %q", v.Next)
	}
	if r := m.run("", "init", file+"3", "--name", "Eve", "--genesis", "Be.", "--tools", "git_clone", "--fund", "1"); r.code != exitOK || !strings.Contains(r.err, "tool git_clone cannot be used") {
		t.Errorf("init --fund: %+v, want a warning of the tool", r)
	}
	u.stop()
	m.cli("init", file, "--name", "Nova", "--genesis", "Be kind.", "--force")
	m.up("--agent", file)
	if g := asked[agentView](m, "agent", "get", "nova"); g.Balance.Available != 5*api.Dollar || g.Version != 2 {
		t.Errorf("after a change the agent is %+v, want version 2 and the same money", g)
	}
}
