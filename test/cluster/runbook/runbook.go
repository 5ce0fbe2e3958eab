// Package runbook runs the commands in the runbooks of docs/runbooks, to check that they
// are correct. A runbook is Markdown:
//
//	```sh            is run, in the order of the page, in one shell for each runbook
//	```sh terminal   is run concurrently, as in a second terminal, until the page ends
//	```sh timeout=5m has this timeout; the default is two minutes
//	```sh not-run: why   is not run, and is counted and listed as NOT RUN
//	```text          is the expected output of the block above: whole lines, … matches any text
//	<!-- lab         up to --> is run too and not displayed: it causes the fault that the page repairs
//	<!-- lab finally up to --> is run at the end, whatever the result of the rest
//
// The blocks of README.md are run at the beginning of each shell. README.md also lists
// the runbooks, in the order in which they are run.
//
// The package must not depend on the purpose of a block: it starts shells, waits and
// compares output.
package runbook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options are the settings of [Run].
type Options struct {
	// Dir is the folder of the runbooks.
	Dir string
	// Files are the names of the runbooks to run; empty means all that README.md lists.
	Files []string
	// Lab is the program of test/cluster. Every shell is started by its exec command, in
	// the lab's network, with its kubectl. Empty: shells are started directly.
	Lab string
	// Root is the working directory of commands, the root of the repository. Empty: two
	// levels above Dir.
	Root string
	// Env is additional environment of the shells, NAME=value.
	Env []string
	// Anima is the path of the command line program. Empty: it is built from Root.
	Anima string
	// Out receives a line for each runbook, and for each failure the block and its
	// output; nil means none.
	Out io.Writer
	// Timeout is the timeout of blocks without one; 0: two minutes.
	Timeout time.Duration
}

// Report is the result of all runbooks.
type Report struct {
	Runbooks []Result
}

// Result is the result of one runbook.
type Result struct {
	Name   string
	Ran    int           // blocks that completed with the expected output
	Left   int           // blocks that were not reached because of a failure
	NotRun []string      // blocks marked not-run: line and reason
	Err    error         // of the first failed block, or of the final ones; nil: none failed
	Took   time.Duration // duration of the whole runbook
}

// OK reports whether there is at least one runbook, and each of them has run a block and
// has not failed.
func (r Report) OK() bool {
	return len(r.Runbooks) > 0 && !slices.ContainsFunc(r.Runbooks, func(b Result) bool { return b.Err != nil || b.Ran == 0 })
}

// String returns the numbers of runbooks that passed and failed, and of blocks that were
// not run.
func (r Report) String() string {
	passed, blocks, notRun := 0, 0, 0
	for _, b := range r.Runbooks {
		if b.Err == nil && b.Ran > 0 {
			passed++
		}
		blocks += b.Ran
		notRun += len(b.NotRun)
	}
	return fmt.Sprintf("runbooks: %d passed, %d failed; %d blocks run, %d not run", passed, len(r.Runbooks)-passed, blocks, notRun)
}

// defaultTimeout is the timeout of a block that sets none.
const defaultTimeout = 2 * time.Minute

// Run runs the runbooks one after the other; a failure ends only its own runbook. Its
// error means that no runbook could be run, or that ctx ended; failures are in the
// report.
func Run(ctx context.Context, o Options) (Report, error) {
	var rep Report
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	for _, p := range []*string{&o.Dir, &o.Root, &o.Lab, &o.Anima} {
		if *p == "" {
			continue
		}
		full, err := filepath.Abs(*p)
		if err != nil {
			return rep, err
		}
		*p = full
	}
	if o.Root == "" {
		o.Root = filepath.Dir(filepath.Dir(o.Dir))
	}
	first, names, err := index(o.Dir)
	if err != nil {
		return rep, err
	}
	if len(o.Files) > 0 {
		if names, err = choose(names, o.Files); err != nil {
			return rep, err
		}
	}
	pages := make([][]Block, len(names))
	for i, name := range names { // all pages are parsed before the first command is run
		if pages[i], err = parseFile(filepath.Join(o.Dir, name)); err != nil {
			return rep, err
		}
	}
	tmp, err := os.MkdirTemp("", "runbook-")
	if err != nil {
		return rep, err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a temporary folder
	if o.Anima == "" {
		o.Anima = filepath.Join(tmp, "bin", "anima")
		c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", o.Anima, "./cmd/anima")
		c.Dir, c.Env = o.Root, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=")
		if out, err := c.CombinedOutput(); err != nil {
			return rep, fmt.Errorf("build anima: %w\n%s", err, out)
		}
	}
	env, err := environment(ctx, o)
	if err != nil {
		return rep, err
	}
	for i, name := range names {
		if ctx.Err() != nil {
			return rep, context.Cause(ctx)
		}
		res := runPage(ctx, o, env, filepath.Join(tmp, name), name, first, pages[i])
		rep.Runbooks = append(rep.Runbooks, res)
		say(o.Out, res)
	}
	return rep, nil
}

// say prints the result of a runbook.
func say(out io.Writer, r Result) {
	verdict := "PASS"
	switch {
	case r.Err != nil:
		verdict = "FAIL"
	case r.Ran == 0:
		verdict = "FAIL (it has nothing to run)"
	}
	_, _ = fmt.Fprintf(out, "%s  %s: %d blocks in %.0f s\n", verdict, r.Name, r.Ran, r.Took.Seconds()) // a failed write cannot be reported
	if r.Err != nil {
		_, _ = fmt.Fprintf(out, "%v\n", r.Err)
	}
	if r.Left > 0 {
		_, _ = fmt.Fprintf(out, "  %d blocks after it were not reached\n", r.Left)
	}
	for _, n := range r.NotRun {
		_, _ = fmt.Fprintf(out, "NOT RUN: %s %s\n", r.Name, n)
	}
}

var link = regexp.MustCompile(`\]\(([a-z0-9-]+\.md)[#)]`)

// index parses README.md: the blocks that begin every page, and the names of the pages in
// their order. A page that is missing in it, or in the folder, is an error.
func index(dir string) (first []Block, names []string, err error) {
	path := filepath.Join(dir, "README.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if first, err = Parse("README.md", text); err != nil {
		return nil, nil, err
	}
	for _, m := range link.FindAllSubmatch(text, -1) {
		if name := string(m[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return nil, nil, err
	}
	for i, p := range there {
		there[i] = filepath.Base(p)
	}
	for _, name := range names {
		if !slices.Contains(there, name) {
			return nil, nil, fmt.Errorf("README.md lists %s, which is not there", name)
		}
	}
	for _, name := range there {
		if name != "README.md" && !slices.Contains(names, name) {
			return nil, nil, fmt.Errorf("README.md does not list %s", name)
		}
	}
	return first, names, nil
}

// choose returns the requested names in the order of the index.
func choose(names, asked []string) ([]string, error) {
	var out []string
	for _, a := range asked {
		base := filepath.Base(a)
		if !strings.HasSuffix(base, ".md") {
			base += ".md"
		}
		if !slices.Contains(names, base) {
			return nil, fmt.Errorf("there is no runbook %s; there are %s", a, strings.Join(names, " "))
		}
		out = append(out, base)
	}
	slices.SortFunc(out, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	return slices.Compact(out), nil
}

// environment returns the environment of every shell, except HOME. The caches of Go keep
// their paths, although HOME changes.
func environment(ctx context.Context, o Options) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := os.Environ()
	if _, named := os.LookupEnv("ANIMA_CACHE"); !named {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		env = append(env, "ANIMA_CACHE="+filepath.Join(home, ".cache", "anima"))
	}
	for i, v := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		env = append(env, []string{"GOCACHE=", "GOMODCACHE=", "GOPATH="}[i]+v)
	}
	env = append(env, "PATH="+filepath.Dir(o.Anima)+":"+os.Getenv("PATH"), "NO_COLOR=1", "LC_ALL=C.UTF-8")
	return append(env, o.Env...), nil
}

// runPage runs one runbook with work as its private folder.
func runPage(ctx context.Context, o Options, env []string, work, name string, first, blocks []Block) (res Result) {
	began := time.Now()
	res.Name = name
	defer func() { res.Took = time.Since(began) }()
	if res.Err = os.MkdirAll(work, 0o700); res.Err != nil {
		return res
	}
	p := &page{opts: o, env: append(slices.Clip(env), "HOME="+work), work: work}
	defer p.close()
	finally := slices.DeleteFunc(slices.Clone(blocks), func(b Block) bool { return !b.Finally })
	blocks = slices.DeleteFunc(slices.Clone(blocks), func(b Block) bool { return b.Finally })
	for i, b := range slices.Concat(first, blocks) {
		if b.NotRun != "" {
			res.NotRun = append(res.NotRun, fmt.Sprintf("line %d: %s", b.Line, b.NotRun))
			continue
		}
		if res.Err = p.run(ctx, b); res.Err != nil {
			res.Left = len(first) + len(blocks) - i - 1
			break
		}
		if i >= len(first) {
			res.Ran++
		}
	}
	if len(finally) == 0 {
		return res
	}
	// The final blocks have a separate shell, because the first one may have ended. They
	// also run when ctx has ended, so that the fault is repaired.
	p.leave()
	for _, b := range finally {
		if err := p.run(context.WithoutCancel(ctx), b); err != nil {
			res.Err = errors.Join(res.Err, err)
			p.leave()
			continue
		}
		res.Ran++
	}
	return res
}
