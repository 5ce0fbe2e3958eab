// Package runbook runs what the runbooks in docs/runbooks tell an operator to type,
// so that they stay true. A runbook is Markdown:
//
//	```sh            is run, in the order of the page, in one shell for each runbook
//	```sh terminal   is run beside the rest, as in a second terminal, until the page ends
//	```sh timeout=5m may take that long; two minutes otherwise
//	```sh not-run: why   is not run, and is counted and listed as NOT RUN
//	```text          is what the block above prints: whole lines, … stands for anything
//	<!-- lab         up to --> is run too and not shown: it breaks what the page repairs
//	<!-- lab finally up to --> is run at the end, whatever became of the rest
//
// README.md says what to do first on every page: its blocks begin each shell. It
// also lists the runbooks, in the order in which they are run.
//
// The package must not know what a block does: it starts shells, waits and compares.
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

// Options of [Run].
type Options struct {
	// Dir is the folder of the runbooks.
	Dir string
	// Files are the names of those to run; none means all that README.md lists.
	Files []string
	// Lab is the program of test/cluster: every shell is run by its exec command, in
	// the lab's network, with its kubectl. Empty: shells are run as they are.
	Lab string
	// Root is the folder that commands are typed in, the root of the repository.
	// Empty: two above Dir.
	Root string
	// Env are settings of the shells, NAME=value, beside this program's own.
	Env []string
	// Anima is the command line's program. Empty: it is built from Root.
	Anima string
	// Out gets a line for each runbook, and of each failure the block and what it
	// printed; nil: nobody.
	Out io.Writer
	// Timeout of blocks that name none; 0: two minutes.
	Timeout time.Duration
}

// Report is what became of the runbooks.
type Report struct {
	Runbooks []Result
}

// Result is what became of one runbook.
type Result struct {
	Name   string
	Ran    int           // blocks that were run to their end and printed what they should
	Left   int           // blocks that were not reached because of the failure
	NotRun []string      // blocks marked not-run: line and reason
	Err    error         // of the first block that failed, or of the last ones; nil: none did
	Took   time.Duration // all of it
}

// OK reports whether there was something to run and nothing failed.
func (r Report) OK() bool {
	return len(r.Runbooks) > 0 && !slices.ContainsFunc(r.Runbooks, func(b Result) bool { return b.Err != nil || b.Ran == 0 })
}

// String is the closing line: how many runbooks passed and failed, and how many
// blocks were not run.
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

// defaultTimeout is what a block may take that names no time.
const defaultTimeout = 2 * time.Minute

// Run runs the runbooks one after the other; a failure ends its own runbook only.
// The error says that nothing could be run at all, or that ctx ended; what failed
// is in the report.
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
	for i, name := range names { // all of them, before anything is touched
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
		c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", o.Anima, "./cmd/anima")
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

// say prints what became of a runbook.
func say(out io.Writer, r Result) {
	verdict := "PASS"
	switch {
	case r.Err != nil:
		verdict = "FAIL"
	case r.Ran == 0:
		verdict = "FAIL (it has nothing to run)"
	}
	_, _ = fmt.Fprintf(out, "%s  %s: %d blocks in %.0f s\n", verdict, r.Name, r.Ran, r.Took.Seconds()) // nobody to tell
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

// index reads README.md: what every page begins with, and the names of the pages
// in their order. A page that is missing from it, or from the folder, is an error.
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

// choose keeps the names that were asked for, in the order of the index.
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

// environment is that of every shell, but for its HOME. The caches of Go stay where
// they are, although HOME moves.
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
	// In a shell of its own: the first one may be gone. And also when ctx has ended,
	// so that nothing stays broken.
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
