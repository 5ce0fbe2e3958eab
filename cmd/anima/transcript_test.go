package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// bare parses a transcript and clears the fields that belong to its session.
func bare(t testing.TB, text string) []api.TranscriptLine {
	t.Helper()
	all := lines[api.TranscriptLine](t, text)
	for i := range all {
		all[i].Seq, all[i].Turn = 0, ""
	}
	return all
}

func TestExportAndImport(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.born("Nova")
	m.cli("session", "send", "lucky", "work")
	m.cli("session", "send", "lucky", "hello")
	dir := t.TempDir()
	file := filepath.Join(dir, "lucky.jsonl")
	if v := asked[exported](m, "session", "export", "lucky-main", "-f", file); v.Lines != 8 || v.File != file {
		t.Errorf("exported %+v, want 8 lines", v)
	}
	whole := m.cli("session", "export", "lucky-main")
	if read(t, file) != whole || whole != m.cli("session", "transcript", "lucky-main", "-o", "json") {
		t.Errorf("the file is\n%s\nwant what is printed:\n%s", read(t, file), whole)
	}
	m.fails(exitConflict, "", []string{"session", "export", "lucky-main", "-f", file}, "already exists", "--force")
	m.cli("session", "export", "lucky-main", "-f", file, "--force")
	m.fails(exitNotFound, "", []string{"session", "export", "ghost"}, "no such session")
	m.fails(exitNotFound, "", []string{"session", "export", "ghost", "-f", file + "2"}, "no such session")
	m.fails(exitUsage, "", []string{"session", "export", "lucky-main", "-f", filepath.Join(dir, "none", "x")}, "none")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("in the folder: %v, %v, want the export alone", left, err)
	}

	// An exported transcript can be imported for another agent.
	v := asked[api.Imported](m, "session", "import", "Nova", file, "--id", "monday")
	if v.Agent != "nova" || v.Turns != 4 || v.Kept != 8 || len(v.Cut) != 0 {
		t.Fatalf("imported %+v", v)
	}
	if diff := cmp.Diff(bare(t, whole), bare(t, m.cli("session", "export", v.Session)), cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() == ".Timestamp"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("what came in again (-out +in):\n%s", diff)
	}
	if again := asked[api.Imported](m, "session", "import", "nova", file, "--id", "monday"); again.Session != v.Session {
		t.Errorf("the same id gave the sessions %s and %s", v.Session, again.Session)
	}
	if end := asked[api.LoopEnd](m, "session", "send", "nova", "hello", "--session", v.Session); !end.Success {
		t.Errorf("a run in it ends as %+v", end)
	}
}

func TestImportDamaged(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	const good = `{"role":"user","content":"hi","timestamp":"2026-11-21T08:00:00.000Z"}`
	src := good + "\noops \x1b[2J\n" + `{"role":"tool","tool_call_id":"c9","content":"x","timestamp":"2026-11-21T08:00:01.000Z"}` + "\n"
	r := m.run(src, "session", "import", "lucky", "-")
	if r.code != exitOK || !strings.Contains(r.out, "1 turns of 1 lines") || !strings.Contains(r.out, "not JSON") || !strings.Contains(r.out, "without a call") || strings.Contains(r.out, "\x1b") {
		t.Errorf("got %+v", r)
	}
	m.fails(exitUsage, "oops\n", []string{"session", "import", "lucky", "-"}, "no line", "line 1: not JSON")
	m.fails(exitUsage, "\n \n", []string{"session", "import", "lucky", "-"}, "has no lines")
	m.fails(exitUsage, "", []string{"session", "import", "lucky", filepath.Join(t.TempDir(), "none")}, "none")
	m.fails(exitUsage, strings.Repeat("x", maxGroup+1), []string{"session", "import", "lucky", "-"}, "after line 0", "4 MiB")
	m.fails(exitNotFound, good, []string{"session", "import", "ghost", "-"}, "no such agent")

	// A long transcript is imported in parts, none of which separates a call from its
	// result.
	var long strings.Builder
	const turns = 2000
	for i := range turns {
		fmt.Fprintf(&long, `{"role":"user","content":"%d %s","timestamp":"2026-11-21T08:00:00.000Z"}`+"\n", i, strings.Repeat("x", 500))
		fmt.Fprintf(&long, `{"role":"assistant","content":"","tool_calls":[{"id":"c","name":"exec","arguments":"{}"}],"timestamp":"2026-11-21T08:00:00.000Z"}`+"\n")
		fmt.Fprintf(&long, `{"role":"tool","tool_call_id":"c","content":"%d","timestamp":"2026-11-21T08:00:00.000Z"}`+"\n", i)
	}
	r = m.run(long.String(), "session", "import", "lucky", "-", "-o", "json")
	var v api.Imported
	one(t, r.out, &v)
	if v.Turns != turns || v.Kept != 3*turns || len(v.Cut) != 0 {
		t.Errorf("the long one: %d turns of %d lines, %d cut: %.300v", v.Turns, v.Kept, len(v.Cut), v.Cut)
	}
	if n := strings.Count(m.cli("session", "export", v.Session), "\n"); n != 3*turns {
		t.Errorf("%d lines come out, want %d", n, 3*turns)
	}
}

// TestImportIsComplete reads a transcript that is as large as the maximum, and one that is
// larger, of which nothing may be imported.
func TestImportIsComplete(t *testing.T) {
	t.Parallel()
	const text = "one\ntwo\nthree\n"
	read := func(most int64) ([]string, error) {
		return sessionImportCmd{File: "-"}.lines(&app{In: strings.NewReader(text)}, most)
	}
	if got, err := read(int64(len(text))); err != nil || len(got) != 3 {
		t.Errorf("got %q, %v, want three lines", got, err)
	}
	for most := range int64(len(text)) {
		if got, err := read(most); api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "is larger than") {
			t.Errorf("at most %d bytes: got %q, %v, want an error", most, got, err)
		}
	}
}

// TestImportShowsProgress checks that an import, which may take minutes, shows its progress on
// a terminal.
func TestImportShowsProgress(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	file := filepath.Join(t.TempDir(), "lucky.jsonl")
	write(t, file, `{"role":"user","content":"hello","timestamp":"2026-11-21T08:00:00.000Z"}`+"\n")
	p := sitting(t, m, true, "session", "import", "lucky", file)
	code := p.code()
	for _, want := range []string{"0 of 1 lines", "1 turns of 1 lines"} {
		if text := p.text(); code != exitOK || !strings.Contains(text, want) {
			t.Errorf("exit %d and\n%s\nwant %q in it", code, text, want)
		}
	}
}

func TestPortions(t *testing.T) {
	t.Parallel()
	user, tool := `{"role":"user"}`, `{"role":"tool"}` // 15 bytes each
	for name, tt := range map[string]struct {
		lines             []string
		most, size, whole int
		want              []int
	}{
		"all":                    {[]string{user, tool}, 5, 100, 100, []int{2}},
		"none":                   {nil, 5, 100, 100, []int{0}},
		"by number":              {[]string{user, user, user}, 2, 100, 100, []int{2, 1}},
		"by size":                {[]string{user, user, user}, 9, 30, 30, []int{2, 1}},
		"before what opens":      {[]string{user, tool, user, tool, tool, user}, 4, 999, 999, []int{2, 4}},
		"a group stays whole":    {[]string{user, tool, tool, tool, user}, 9, 20, 60, []int{4, 1}},
		"a group that is larger": {[]string{user, tool, tool, tool, user}, 9, 20, 30, []int{2, 2, 1}},
		"nothing opens":          {[]string{tool, "oops", tool}, 2, 999, 999, []int{2, 1}},
	} {
		var got []int
		parts := portions(tt.lines, tt.most, tt.size, tt.whole)
		for _, p := range parts {
			got = append(got, len(p))
		}
		if !slices.Equal(got, tt.want) || !slices.Equal(slices.Concat(parts...), tt.lines) {
			t.Errorf("%s: parts of %v, want %v", name, got, tt.want)
		}
	}
}
