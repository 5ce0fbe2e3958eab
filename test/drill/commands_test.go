package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// with returns options with the texts of commands, by their flags.
func with(t *testing.T, texts map[string]string) Options {
	t.Helper()
	o := Options{commands: newCommands()}
	for flag, text := range texts {
		if err := o.command(flag).Set(text); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func TestCommandPlaceholders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, text, want string }{
		{"node-stop", "docker kill {node}", ""},
		{"node-stop", "docker kill node1", "{node} is missing"},
		{"node-stop", "docker kill {nodes}", "unknown placeholder {nodes}"},
		{"node-stop", "", ""}, // as if the flag was not given
		{"load", "kind load image-archive {archive}", ""},
		{"load", "import {image} {archive}", ""},
		{"load", "import {image}", "{archive} is missing"},
		{"keda", "helm install keda -f <(echo {node})", "unknown placeholder {node}"},
	} {
		err := Options{commands: newCommands()}.command(c.flag).Set(c.text)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("-%s %q: got %v, want %q", c.flag, c.text, err, c.want)
		}
	}
}

// TestCommandRuns checks that values reach the program unchanged, and that the output is
// shown and is part of an error.
func TestCommandRuns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	o := with(t, map[string]string{
		"load":       "printf '%s|%s' {image} {archive} >" + file,
		"node-stop":  "echo no such node {node}; exit 4",
		"node-start": "echo NOT RUN: {node} is not ours >&2; exit 3",
	})
	ctx, limit := t.Context(), time.Minute
	if err := o.command("load").run(ctx, &bytes.Buffer{}, limit, map[string]string{"image": "a/b:c", "archive": "/it's $HOME/x.tar"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "a/b:c|/it's $HOME/x.tar" {
		t.Errorf("got %q, %v", got, err)
	}
	var shown bytes.Buffer
	err := o.command("node-stop").run(ctx, &shown, limit, map[string]string{"node": "n1"})
	if err == nil || !strings.Contains(err.Error(), "-node-stop: exit status 4: no such node n1") || shown.String() != "no such node n1\n" {
		t.Errorf("got %v with output %q", err, shown.String())
	}
	var no notRun
	if err := o.command("node-start").run(ctx, &shown, limit, map[string]string{"node": "n1"}); !errors.As(err, &no) || !strings.Contains(err.Error(), "n1 is not ours") {
		t.Errorf("status 3: got %v, want notRun with the output", err)
	}
}

// TestCommandEnds checks that a command ends with its children when its time is over.
func TestCommandEnds(t *testing.T) {
	t.Parallel()
	o := with(t, map[string]string{"volumes": "sleep 3600 & wait"})
	err := o.command("volumes").run(t.Context(), &bytes.Buffer{}, 10*time.Millisecond, nil)
	if err == nil || !strings.Contains(err.Error(), "-volumes: not done after 10ms") {
		t.Errorf("got %v", err)
	}
}

// TestBusyEnds checks that the script of make drill ends with its loops.
func TestBusyEnds(t *testing.T) {
	t.Parallel()
	o := with(t, map[string]string{"busy": "./busy.sh {seconds}"})
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	time.AfterFunc(10*time.Millisecond, func() { cancel(over) })
	if err := o.command("busy").run(ctx, &bytes.Buffer{}, time.Minute, map[string]string{"seconds": "3600"}); !errors.Is(err, over) {
		t.Errorf("got %v, want %v", err, over)
	}
}

// TestMissingCommands checks that each step that needs a command is reported as not run
// without it, with the flag.
func TestMissingCommands(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &world{Options: Options{commands: newCommands()}, report: newReport(&out)}
	needy := 0
	for _, s := range steps() {
		if len(s.needs) == 0 {
			continue
		}
		needy++
		s.run = func(context.Context, *world) error { t.Errorf("%s was run", s.name); return nil }
		w.step(t.Context(), s)
		last := w.report.Checks[len(w.report.Checks)-1]
		for _, flag := range s.needs {
			if last.Step != s.name || last.Outcome != NotRun || !strings.Contains(last.Figures, "-"+flag+" is not set, the command that ") {
				t.Errorf("%s: got %+v, want not run and -%s", s.name, last, flag)
			}
		}
		if !strings.Contains(describe(), "(needs -"+strings.Join(s.needs, ", -")+")") {
			t.Errorf("%s: the help does not name its commands", s.name)
		}
	}
	if needy == 0 || w.report.Count(NotRun) != needy || len(w.report.Checks) != needy {
		t.Errorf("%d steps need commands: got %s", needy, w.report.Summary())
	}
	// One of two commands is not enough.
	w.Options = with(t, map[string]string{"node-stop": "kill {node}"})
	if why := w.missing("node-stop", "node-start"); strings.Contains(why, "node-stop") || !strings.Contains(why, "-node-start") {
		t.Errorf("got %q", why)
	}
}

// TestStepsThatCannotBeRun checks that a command that exits with 3 makes its step not run.
func TestStepsThatCannotBeRun(t *testing.T) {
	t.Parallel()
	w := &world{Options: with(t, map[string]string{"runbooks": "echo NOT RUN: no root; exit 3"}), report: newReport(&bytes.Buffer{})}
	w.step(t.Context(), step{name: "runbooks", run: runbooks, needs: []string{"runbooks"}})
	w.Options = with(t, map[string]string{"runbooks": "echo two differ; exit 1"})
	w.step(t.Context(), step{name: "runbooks", run: runbooks, needs: []string{"runbooks"}})
	w.Options = with(t, map[string]string{"runbooks": "true"})
	w.step(t.Context(), step{name: "runbooks", run: runbooks, needs: []string{"runbooks"}})
	if got, want := w.report.Summary(), "1 passed, 1 failed, 1 not run"; got != want {
		t.Errorf("got %q, want %q: %+v", got, want, w.report.Checks)
	}
}
