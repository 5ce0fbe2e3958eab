package frontmatter_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text  string
		want  frontmatter.File
		fault string
	}{
		"none":          {"a\n---\nb", frontmatter.File{Body: "a\n---\nb"}, ""},
		"empty":         {"", frontmatter.File{}, ""},
		"both":          {"---\na: 1\n---\nb\nc", frontmatter.File{Present: true, Lines: []string{"a: 1"}, Body: "b\nc", Closing: 3}, ""},
		"blank":         {"---\n---", frontmatter.File{Present: true, Lines: []string{}, Closing: 2}, ""},
		"of Windows":    {"\ufeff--- \r\na: 1\r\n---\r\nb\r\n", frontmatter.File{Present: true, Lines: []string{"a: 1"}, Body: "b\n", Closing: 3}, ""},
		"fence in body": {"---\n---\n---\nb", frontmatter.File{Present: true, Lines: []string{}, Body: "---\nb", Closing: 2}, ""},
		"not closed":    {"---\na: 1\n", frontmatter.File{}, "line 1: the frontmatter opened here is not closed; add a line --- before the Markdown"},
	} {
		got, fault := frontmatter.Split(tt.text)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := text(fault); got != tt.fault {
			t.Errorf("%s: fault %q, want %q", name, got, tt.fault)
		}
	}
}

func text(f *frontmatter.Fault) string {
	if f == nil {
		return ""
	}
	return f.String()
}

func TestLoad(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines []string
		fault string // "": none
	}{
		"a mapping":           {[]string{"a: 1"}, ""},
		"blank":               {[]string{"", "# a comment"}, ""},
		"no lines":            {nil, ""},
		"a control character": {[]string{"a: 1", "b: \x01"}, "line 3: a control character; remove it"},
		"a tab":               {[]string{"a:", "\tb: 1"}, "line 3: a tab in the indentation; YAML requires spaces"},
		"open quotes":         {[]string{"a: 1", `b: "x`, "c: 1"}, "line 3: the frontmatter is not YAML: found unexpected end of stream; close the quotes opened here"},
	} {
		root, faults := frontmatter.Load(tt.lines)
		if (root == nil) != (tt.fault != "") {
			t.Errorf("%s: node %v, want fault %q", name, root, tt.fault)
		}
		var got []string
		for _, f := range faults {
			got = append(got, f.String())
		}
		if want := []string{tt.fault}; tt.fault != "" && !slices.Equal(got, want) || tt.fault == "" && len(got) > 0 {
			t.Errorf("%s: faults %q, want %q", name, got, want)
		}
	}
}
