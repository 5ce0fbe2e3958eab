package git_test

import (
	"encoding/json"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
	"github.com/anima-run/anima/services/loop/internal/tools/toolstest"
)

type bench struct{ toolstest.Bench }

func newBench(t *testing.T) bench {
	t.Helper()
	b := bench{toolstest.New(t)}
	for _, tool := range git.Tools(tools.Config{}) {
		b.Tools[tool.Name] = tool
	}
	return b
}

// keyed calls a tool with an idempotency key.
func (b bench) keyed(t *testing.T, key, name, args string) (string, error) {
	t.Helper()
	out, err := b.Keyed(t, key, name, args)
	return out.Text, err
}

func (b bench) file(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.Agent.Workspace, name))
	if os.IsNotExist(err) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (b bench) put(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(b.Agent.Workspace, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestAlternates tests that further object folders are not searched: one may name the
// repository itself, and go-git would search it without end.
func TestAlternates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, "notes.txt", "one\n")
	toolstest.Has(t, "git_commit", b.Text(t, "git_commit", `{"message":"first"}`), "committed as ")
	dot := filepath.Join(b.Agent.Workspace, ".git")
	if err := os.Mkdir(filepath.Join(dot, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dot, "objects"), filepath.Join(dot, "other", "objects")); err != nil {
		t.Fatal(err)
	}
	b.put(t, ".git/objects/info/alternates", "other/objects\nobjects\n")
	toolstest.Has(t, "git_log", b.Text(t, "git_log", `{}`), "no commits yet")
}

func TestGit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	toolstest.Has(t, "git_status", b.Text(t, "git_status", `{}`), "## main", "no changes")
	toolstest.Has(t, "git_log", b.Text(t, "git_log", `{}`), "no commits yet")
	b.put(t, "notes.txt", "one\ntwo\n")
	b.put(t, ".tmp/scratch", "x")
	toolstest.Has(t, "git_status", b.Text(t, "git_status", `{}`), "?? notes.txt")
	if got := b.Text(t, "git_status", `{}`); strings.Contains(got, "scratch") {
		t.Errorf("temporary files are shown: %q", got)
	}
	toolstest.Has(t, "git_commit", b.Text(t, "git_commit", `{"message":"first"}`), "committed as ")
	toolstest.Has(t, "git_commit", b.Text(t, "git_commit", `{"message":"again"}`), "nothing to commit")
	b.put(t, "notes.txt", "one\nzwei\n")
	b.put(t, "new.txt", "new\n")
	toolstest.Has(t, "git_diff", b.Text(t, "git_diff", `{}`), "--- a/notes.txt", "+++ b/notes.txt", "-two", "+zwei")
	toolstest.Has(t, "git_diff", b.Text(t, "git_diff", `{"staged":true}`), "no differences")
	toolstest.Has(t, "git_commit", b.Text(t, "git_commit", `{"message":"nothing is staged","add_all":false}`), "nothing to commit")
	toolstest.Has(t, "git_branch", b.Text(t, "git_branch", `{"path":".","action":"create","branch_name":"idea"}`), "created idea")
	toolstest.Has(t, "git_commit", b.Text(t, "git_commit", `{"message":"second\n\nat length"}`), "committed as ")
	toolstest.Has(t, "git_log", b.Text(t, "git_log", `{"limit":1}`), "2026-09-21T14:13:20Z Ada: second\n")
	toolstest.Has(t, "git_branch", b.Text(t, "git_branch", `{"path":".","action":"list"}`), "current: main", "idea")
	toolstest.Has(t, "git_branch", b.Text(t, "git_branch", `{"path":".","action":"checkout","branch_name":"idea"}`), "now on idea")
	if got := b.file(t, "notes.txt") + b.file(t, "new.txt"); got != "one\ntwo\n(none)" {
		t.Errorf("on the older branch the files are %q", got)
	}
	b.put(t, "notes.txt", "mine")
	if _, err := b.Call(t, "git_branch", `{"path":".","action":"checkout","branch_name":"main"}`); api.CodeOf(err) != api.Conflict || b.file(t, "notes.txt") != "mine" {
		t.Errorf("over a change: %v, and the file is %q", err, b.file(t, "notes.txt"))
	}
	if _, err := b.Call(t, "git_branch", `{"path":".","action":"delete","branch_name":"idea"}`); api.CodeOf(err) != api.Conflict {
		t.Errorf("deleting the current branch: %v, want a conflict", err)
	}
	toolstest.Has(t, "git_branch", b.Text(t, "git_branch", `{"path":".","action":"delete","branch_name":"main"}`), "deleted main")
	for _, path := range []string{"none", "new.txt", "../ada", "/etc"} {
		if out, err := b.Call(t, "git_status", `{"path":"`+path+`"}`); err == nil {
			t.Errorf("a repository in %s: %q", path, out.Text)
		}
	}
	if err := b.Tools["git_commit"].Check(json.RawMessage(`{"message":"x\n\nAnima-File: SOUL.md"}`)); err == nil {
		t.Error("a commit may look like a recorded edit")
	}
	if err := b.Tools["git_branch"].Check(json.RawMessage(`{"path":".","action":"create"}`)); err == nil {
		t.Error("a branch may have no name")
	}
}

// TestGitOutside tests that no content of a repository makes a tool read or write outside
// the agent's folder.
func TestGitOutside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	outside := filepath.Join(filepath.Dir(b.Agent.Workspace), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.put(t, "a.txt", "a\n")
	b.Text(t, "git_commit", `{"message":"first"}`)
	for _, link := range []string{"folder", "x/.git"} {
		at := filepath.Join(b.Agent.Workspace, link)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{`{"path":"folder"}`, `{"path":"x"}`} {
		if out, err := b.Call(t, "git_status", args); err == nil {
			t.Errorf("git_status %s said %q", args, out.Text)
		}
	}
	b.Text(t, "git_commit", `{"message":"links and all"}`)
	if got := b.Text(t, "git_diff", `{}`) + b.Text(t, "git_status", `{}`); strings.Contains(got, "key") {
		t.Errorf("what is behind a link is shown: %q", got)
	}
	// A named pipe must not block a tool.
	if mkfifo, err := exec.LookPath("mkfifo"); err == nil {
		if err := exec.Command(mkfifo, filepath.Join(b.Agent.Workspace, "pipe")).Run(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Call(t, "git_status", `{}`); err != nil {
			t.Logf("with a pipe: %v", err) // refused or omitted; it must not block
		}
	}
	files, err := os.ReadDir(outside)
	if err != nil || len(files) != 1 {
		t.Errorf("outside there are %v, %v", files, err)
	}
}

func TestEditOwnFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, "plan.md", "as it was\n")
	edit := func(key, path, content string) string {
		t.Helper()
		args, err := json.Marshal(map[string]string{"path": path, "content": content, "description": "because of " + key})
		if err != nil {
			t.Fatal(err)
		}
		text, err := b.keyed(t, key, "edit_own_file", string(args))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		return text
	}
	toolstest.Has(t, "edit_own_file", edit("k1", "plan.md", "as it is\nnow\n"), "changed plan.md: 2 lines added, 1 removed, commit ")
	toolstest.Has(t, "edit_own_file", edit("k2", "made/new.md", ""), "changed made/new.md")
	toolstest.Has(t, "edit_own_file", edit("k3", "plan.md", "third\n"), "changed plan.md")
	log := b.Text(t, "git_log", `{}`)
	toolstest.Has(t, "git_log", log, "because of k1", "because of k2", "because of k3", "Before: plan.md")
	// A repeated edit, as after a crash, is the same edit.
	b.put(t, "plan.md", "after\n")
	toolstest.Has(t, "edit_own_file", edit("k3", "plan.md", "third\n"), "changed plan.md, commit ")
	if got := b.file(t, "plan.md"); got != "after\n" {
		t.Errorf("an edit made again wrote %q over what came after it", got)
	}
	if _, err := b.keyed(t, "v1", "revert_last_edit", `{}`); api.CodeOf(err) != api.Conflict {
		t.Errorf("over a later change: %v, want a conflict", err)
	}
	b.put(t, "plan.md", "third\n")
	for range 2 { // the second call repeats the first
		text, err := b.keyed(t, "v2", "revert_last_edit", `{}`)
		if err != nil || b.file(t, "plan.md") != "as it is\nnow\n" {
			t.Errorf("first revert: %q, %v, the file is %q", text, err, b.file(t, "plan.md"))
		}
	}
	if text, err := b.keyed(t, "v3", "revert_last_edit", `{}`); err != nil || b.file(t, "made/new.md") != "(none)" {
		t.Errorf("second revert: %q, %v, the new file is %q", text, err, b.file(t, "made/new.md"))
	}
	if text, err := b.keyed(t, "v4", "revert_last_edit", `{}`); err != nil || b.file(t, "plan.md") != "as it was\n" {
		t.Errorf("third revert: %q, %v, the file is %q", text, err, b.file(t, "plan.md"))
	}
	if _, err := b.keyed(t, "v5", "revert_last_edit", `{}`); api.CodeOf(err) != api.NotFound {
		t.Errorf("with nothing left: %v, want not found", err)
	}
	for _, path := range []string{"../outside.md", "/etc/hosts", "."} {
		if text, err := b.keyed(t, "k9", "edit_own_file", `{"path":"`+path+`","content":"x","description":"d"}`); err == nil {
			t.Errorf("edited %s: %q", path, text)
		}
	}
}

// TestEditInterrupted tests that an edit is completed with one record after a crash at
// any point.
func TestEditInterrupted(t *testing.T) {
	t.Parallel()
	const args = `{"path":"plan.md","content":"new\n","description":"why"}`
	for name, left := range map[string]func(b bench){
		"nothing":          func(bench) {},
		"the first commit": func(b bench) { b.Text(t, "git_commit", `{"message":"Before: plan.md"}`) },
		"the file":         func(b bench) { b.Text(t, "git_commit", `{"message":"Before: plan.md"}`); b.put(t, "plan.md", "new\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.put(t, "plan.md", "old\n")
			left(b)
			for range 2 {
				if _, err := b.keyed(t, "k1", "edit_own_file", args); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.file(t, "plan.md"); got != "new\n" {
				t.Errorf("the file is %q", got)
			}
			if n := strings.Count(b.Text(t, "git_log", `{}`), ": why"); n != 1 {
				t.Errorf("recorded %d times, want once", n)
			}
			if _, err := b.keyed(t, "v1", "revert_last_edit", `{}`); err != nil || b.file(t, "plan.md") != "old\n" {
				t.Errorf("taken back: %v, the file is %q", err, b.file(t, "plan.md"))
			}
		})
	}
}

// TestRemote clones from and pushes to a git server on a loopback address.
func TestRemote(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git to serve a repository with")
	}
	root := t.TempDir()
	run := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.Command(git, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@x", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@x")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run(root, "init", "-q", "--bare", "-b", "main", "far.git")
	run(root, "-C", "far.git", "config", "http.receivepack", "true")
	run(root, "init", "-q", "-b", "main", "near")
	if err := os.WriteFile(filepath.Join(root, "near", "README.md"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	near := filepath.Join(root, "near")
	run(near, "add", ".")
	run(near, "commit", "-q", "-m", "first")
	run(near, "push", "-q", filepath.Join(root, "far.git"), "main")
	server := httptest.NewServer(&cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{
		"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x", "GIT_CONFIG_GLOBAL=/dev/null",
	}})
	t.Cleanup(server.Close)

	b := newBench(t)
	clone := `{"url":"` + server.URL + `/far.git","path":"work/far"}`
	if _, err := b.Call(t, "git_clone", clone); api.CodeOf(err) != api.Denied {
		t.Errorf("without a network: %v, want denied", err)
	}
	if _, err := b.Call(t, "git_push", `{"path":"."}`); api.CodeOf(err) != api.Denied {
		t.Errorf("pushed without a network: %v, want denied", err)
	}
	b.Agent.Network = true
	toolstest.Has(t, "git_clone", b.Text(t, "git_clone", clone), "cloned into work/far")
	if got := b.file(t, "work/far/README.md"); got != "hello\n" {
		t.Errorf("cloned %q", got)
	}
	if _, err := b.Call(t, "git_clone", clone); api.CodeOf(err) != api.Conflict {
		t.Errorf("cloned again: %v, want a conflict", err)
	}
	b.put(t, "work/far/mine.md", "mine\n")
	b.Text(t, "git_commit", `{"path":"work/far","message":"second"}`)
	toolstest.Has(t, "git_push", b.Text(t, "git_push", `{"path":"work/far"}`), "pushed to origin")
	toolstest.Has(t, "git_push", b.Text(t, "git_push", `{"path":"work/far"}`), "origin is up to date")
	toolstest.Has(t, "the far side", run(filepath.Join(root, "far.git"), "log", "--format=%an %s"), "Ada second", "x first")

	for _, url := range []string{"file://" + root + "/far.git", filepath.Join(root, "far.git"), "ssh://localhost/far.git", "http://x:y@127.0.0.1/far.git"} {
		if out, err := b.Call(t, "git_clone", `{"url":"`+url+`","path":"other"}`); api.CodeOf(err) != api.Invalid {
			t.Errorf("cloned from %s: %q, %v", url, out.Text, err)
		}
	}
	// A URL that the agent writes into the settings gives it no further access.
	b.put(t, "work/far/.git/config", "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = "+filepath.Join(root, "near")+"\n")
	if out, err := b.Call(t, "git_push", `{"path":"work/far"}`); api.CodeOf(err) != api.Invalid {
		t.Errorf("pushed to a folder outside: %q, %v", out.Text, err)
	}
	// A failed clone leaves no files.
	if _, err := b.Call(t, "git_clone", `{"url":"`+server.URL+`/none.git","path":"none"}`); err == nil || b.file(t, "none/.git/config") != "(none)" {
		t.Errorf("cloned what is not there: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(b.Agent.Workspace, ".clone-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
