package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const source = `package p

import "errors"

func guard(a, b int) error {
	if a < b && b > 0 {
		return errNo
	}
	log(a)
	var err = errors.New("x")
	return err
}
`

func TestChanges(t *testing.T) {
	t.Parallel()
	changes, err := changesOf([]byte(source))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, c := range changes {
		got[c.operator]++
		if m := apply(c, "p.go", []byte(source), nil); string(m.source) == source || !strings.Contains(source, m.text) {
			t.Errorf("%s changes nothing, or not the line %q", c.operator, m.text)
		}
	}
	for _, want := range []string{"negate the condition", "replace < by <=", "replace > by >=", "replace && by ||", "remove the call", "return no error"} {
		if got[want] != 1 {
			t.Errorf("%s: %d changes, want 1, among %v", want, got[want], got)
		}
	}
}

// TestJudge checks that a mutant is killed if a test detects it, that it survives if no
// test does, and that one that does not compile counts as neither.
func TestJudge(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module m\n\ngo 1.26.0\n",
		"m.go":      "package m\n\nfunc Max(a, b int) int {\n\tif a > b {\n\t\treturn a\n\t}\n\treturn b\n}\n\nfunc Unused(a int) bool { return a == 1 }\n",
		"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestMax(t *testing.T) {\n\tif Max(1, 2) != 2 || Max(2, 1) != 2 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tg := target{files: []string{"m.go"}, tests: []string{"."}, named: []named{{"m.go", "return a == 1", "return a", "do not compile"}}}
	drawn, err := tg.drawnMutants(root)
	if err != nil {
		t.Fatal(err)
	}
	all, err := tg.namedMutants(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]verdict{"negate the condition": killed, "replace > by >=": survived, "replace == by !=": survived, "do not compile": invalid}
	r := runner{root: root, work: t.TempDir(), timeout: time.Minute}
	for _, m := range append(all, drawn...) {
		got, err := r.test(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if got != want[m.operator] {
			t.Errorf("%s: got %s, want %s", m, got, want[m.operator])
		}
	}
	if err := r.judge(t.Context(), all, nil, io.Discard); err != nil {
		t.Errorf("tests that pass: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "m_test.go"), []byte("package m\n\nimport \"testing\"\n\nfunc TestMax(t *testing.T) { t.Error(\"always\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.judge(t.Context(), all, nil, io.Discard); err == nil {
		t.Error("tests that fail without a mutant: got no error")
	}
	tg.named[0].old = "no such text"
	if _, err := tg.namedMutants(root); err == nil {
		t.Error("a table that is behind the code: got no error")
	}
}

// TestTables checks that the named and the accepted mutants exist in the current code.
func TestTables(t *testing.T) {
	t.Parallel()
	const root = "../.."
	accepted, err := readAccepted("accepted.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []mutant
	for _, tg := range targets() {
		named, err := tg.namedMutants(root)
		if err != nil {
			t.Error(err)
		}
		drawn, err := tg.drawnMutants(root)
		if err != nil || len(drawn) == 0 {
			t.Errorf("target %s: %d mutants, %v", tg.name, len(drawn), err)
		}
		all = append(append(all, named...), drawn...)
	}
	for _, a := range accepted {
		if !slices.ContainsFunc(all, a.fits) {
			t.Errorf("accepted.txt has a line that fits no mutant: %s, %s, %s", a.file, a.operator, a.line)
		}
	}
}
