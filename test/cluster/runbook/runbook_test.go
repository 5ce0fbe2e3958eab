package runbook

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// folder creates a folder of runbooks with an index that lists them in the given order.
func folder(t *testing.T, first string, pages ...string) string {
	t.Helper()
	dir := t.TempDir()
	readme := first
	for i := 0; i < len(pages); i += 2 {
		readme += "* [page](" + pages[i] + ")\n"
		write(t, filepath.Join(dir, pages[i]), pages[i+1])
	}
	write(t, filepath.Join(dir, "README.md"), readme)
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "~~~", "```")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs the runbooks of a folder on this machine, with a placeholder for anima.
func run(t *testing.T, dir string, files ...string) (Report, string) {
	t.Helper()
	var out strings.Builder
	rep, err := Run(t.Context(), Options{Dir: dir, Root: dir, Files: files, Anima: "/bin/true", Out: &out, Env: []string{"OVERLAY=here"}})
	if err != nil {
		t.Fatal(err)
	}
	return rep, out.String()
}

func TestPageRuns(t *testing.T) {
	t.Parallel()
	dir := folder(t, "~~~sh\nexport FIRST=set\n~~~\n",
		"a.md", `
Variables carry over, and what is shown is checked.
~~~sh
x="$FIRST in $OVERLAY"
cd "$HOME"
~~~
<!-- lab
echo broken >broken
-->
~~~sh
echo "some noise"; printf 'AGENT   STATE\nlucky   asleep for 17 s\n'; echo "$x"
~~~
~~~text
AGENT  STATE
lucky  asleep for … s
…
set in here
~~~
~~~sh
grep broken broken
cat # the page's own commands are not its input
~~~
~~~sh not-run: there is no bank here
exit 1
~~~
`)
	rep, out := run(t, dir)
	if !rep.OK() || rep.Runbooks[0].Ran != 4 {
		t.Fatalf("got %+v\n%s", rep, out)
	}
	if want := "runbooks: 1 passed, 0 failed; 4 blocks run, 1 not run"; rep.String() != want {
		t.Errorf("got %q, want %q", rep.String(), want)
	}
	if !strings.Contains(out, "NOT RUN: a.md line 24: there is no bank here") {
		t.Errorf("what was not run is not said:\n%s", out)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		page string
		want []string
	}{
		"a command": {
			"~~~sh\necho before\nfalse\necho after\n~~~\n~~~sh\necho next\n~~~\n",
			[]string{"a.md:2: it failed after", "exit status 1", "$ false", "| before", "1 blocks after it were not reached"},
		},
		"inside a pipe":       {"~~~sh\nfalse | cat\n~~~\n", []string{"exit status 1"}},
		"an unset variable":   {"~~~sh\necho $nobody\n~~~\n", []string{"nobody: unbound variable"}},
		"other output":        {"~~~sh\necho three\n~~~\n~~~text\ntwo\n~~~\n", []string{"it printed something else", "| three", "the page says:\n  | two"}},
		"an end of the shell": {"~~~sh\nexit 0\n~~~\n", []string{"it ended the shell"}},
		"too late":            {"~~~sh timeout=100ms\nsleep 60\n~~~\n", []string{"it was not done after 100ms"}},
		"nothing to run":      {"Words.\n", []string{"it has nothing to run"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rep, out := run(t, folder(t, "", "a.md", c.page, "b.md", "~~~sh\ntrue\n~~~\n"))
			if rep.OK() || !strings.Contains(rep.String(), "1 passed, 1 failed") {
				t.Errorf("got %s, want one to fail and the other to be run all the same", rep)
			}
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("got\n%s\nwant %q in it", out, w)
				}
			}
		})
	}
}

func TestFinallyIsRunAfterAFailure(t *testing.T) {
	t.Parallel()
	dir := folder(t, "", "a.md", "<!-- lab finally\ntouch repaired\n-->\n~~~sh\nfalse\n~~~\n")
	rep, _ := run(t, dir)
	if rep.OK() {
		t.Error("the failure is forgotten")
	}
	if _, err := os.Stat(filepath.Join(dir, "repaired")); err != nil {
		t.Errorf("nothing was repaired: %v", err)
	}
	rep, out := run(t, folder(t, "", "a.md", "~~~sh\ntrue\n~~~\n<!-- lab finally\nfalse\n-->\n"))
	if rep.OK() || !strings.Contains(out, "a.md:5") {
		t.Errorf("a failure at the end: got %s\n%s", rep, out)
	}
}

func TestTerminalEndsWithItsPage(t *testing.T) {
	t.Parallel()
	dir := folder(t, "", "a.md", "~~~sh terminal\necho $$ >pid; echo here; while :; do sleep 1; done\n~~~\n~~~sh\nkill -0 $(cat pid)\n~~~\n")
	if rep, out := run(t, dir); !rep.OK() {
		t.Fatalf("got %s\n%s", rep, out)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("the terminal is still running")
	}
}

func TestNothingIsRunAfterTheEnd(t *testing.T) {
	t.Parallel()
	dir := folder(t, "", "a.md", "~~~sh\ntouch begun; sleep 60\n~~~\n<!-- lab finally\ntouch repaired\n-->\n", "b.md", "~~~sh\ntouch never\n~~~\n")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	rep, err := Run(ctx, Options{Dir: dir, Root: dir, Anima: "/bin/true"})
	if err == nil || rep.OK() {
		t.Errorf("got %s and %v, want an error", rep, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "never")); err == nil {
		t.Error("the next runbook was run")
	}
	if _, err := os.Stat(filepath.Join(dir, "repaired")); err != nil {
		t.Errorf("nothing was repaired: %v", err)
	}
}

func TestIndexAndFiles(t *testing.T) {
	t.Parallel()
	dir := folder(t, "", "z.md", "~~~sh\ntrue\n~~~\n", "a.md", "~~~sh\ntrue\n~~~\n")
	rep, _ := run(t, dir)
	if got := rep.Runbooks[0].Name; got != "z.md" {
		t.Errorf("the first is %s, want the index's first", got)
	}
	if rep, _ = run(t, dir, "docs/runbooks/a"); len(rep.Runbooks) != 1 || rep.Runbooks[0].Name != "a.md" {
		t.Errorf("got %+v, want a.md alone", rep)
	}
	if _, err := Run(t.Context(), Options{Dir: dir, Root: dir, Anima: "/bin/true", Files: []string{"b.md"}}); err == nil || !strings.Contains(err.Error(), "z.md a.md") {
		t.Errorf("got %v, want the names that there are", err)
	}
	write(t, filepath.Join(dir, "lost.md"), "")
	if _, err := Run(t.Context(), Options{Dir: dir, Root: dir, Anima: "/bin/true"}); err == nil || !strings.Contains(err.Error(), "lost.md") {
		t.Errorf("got %v, want a word about lost.md", err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"~~~bash\nls\n~~~\n":             `block of "bash"`,
		"~~~\nls\n~~~\n":                 `block of ""`,
		"~~~sh\nls\n":                    "no end",
		"<!-- lab\nls\n":                 "no end -->",
		"<!-- lab ls -->\n":              "lines of their own",
		"~~~sh quickly\nls\n~~~\n":       `unknown word "quickly"`,
		"~~~sh finally\nls\n~~~\n":       `unknown word "finally"`,
		"~~~sh not-run:\nls\n~~~\n":      "say why",
		"~~~sh timeout=never\nls\n~~~\n": "is no time",
		"~~~text\nls\n~~~\n":             "output of what",
		"~~~sh\nls\n~~~\n~~~text\na\n~~~\n~~~text\na\n~~~\n": "output of what",
		"1. do\n   ~~~sh\n   ls\n   ~~~\n":                   "indented",
	} {
		_, err := Parse("p.md", []byte(strings.ReplaceAll(page, "~~~", "```")))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "p.md:") {
			t.Errorf("%q: got %v, want %q", page, err, want)
		}
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	const got = "NAME      READY   AGE\nnats-0    1/1     12s\nnats-1    1/1     11s\ndone (3)\n"
	for want, yes := range map[string]bool{
		"nats-0 1/1 12s":                 true,
		"nats-0 1/1 …":                   true,
		"NAME READY AGE\n  nats-0 …":     true, // indented or not
		"NAME …\n…\nnats-1 …":            true,
		"NAME …\n…\ndone (3)":            true,
		"nats-0 …\nnats-1 …":             true,
		"nats-1 …\nnats-0 …":             false,
		"nats-0 1/1":                     false, // whole lines only
		"0 1/1 12s":                      false,
		"…0 1/1 12s":                     true,
		"NAME …\nnats-1 …":               false, // consecutive lines only
		"done .3.":                       false, // no patterns
		"nats-0 1/1 …\n…\ndone (3)\nend": false,
	} {
		if matches(want, got) != yes {
			t.Errorf("%q: got %v, want %v", want, !yes, yes)
		}
	}
}

// TestOurPages checks that the runbooks of the project can be parsed and have something
// to run.
func TestOurPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "..", "docs", "runbooks")
	_, names, err := index(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		blocks, err := parseFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		if len(blocks) == 0 {
			t.Errorf("%s has no commands", name)
		}
	}
}

// TestEveryAlertIsInTheIndex checks that the index of runbooks names every alert.
func TestEveryAlertIsInTheIndex(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "docs", "runbooks", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(root, "deploy", "k8s", "components", "monitoring", "prometheusrule.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`(?m)- alert: (\w+)`).FindAllSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts found")
	}
	for _, a := range alerts {
		if !strings.Contains(string(readme), "`"+string(a[1])+"`") {
			t.Errorf("README.md does not say what to do about %s", a[1])
		}
	}
}
