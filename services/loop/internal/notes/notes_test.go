package notes_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/notes"
)

func TestLayer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text, want string
	}{
		"none":     {"", ""},
		"notes":    {"remember the milk\n", "remember the milk\n"},
		"too long": {strings.Repeat("x", 300<<10), "MEMORY.md is too long to be shown; write it anew, and shorter."},
	} {
		dir := t.TempDir()
		if tt.text != "" {
			if err := os.WriteFile(filepath.Join(dir, "MEMORY.md"), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range notes.Sources() {
			l, err := s.Layer(t.Context(), engine.Agent{Workspace: dir})
			want := tt.want
			if l.Name == "worklog" {
				want = ""
			}
			if err != nil || l.Text != want {
				t.Errorf("%s: %s is %.60q, %v, want %.60q", name, l.Name, l.Text, err, want)
			}
		}
	}
	if l, err := notes.Sources()[1].Layer(t.Context(), engine.Agent{Workspace: filepath.Join(t.TempDir(), "none")}); err != nil || l.Text != "" {
		t.Errorf("of an agent without a folder: %q, %v", l.Text, err)
	}
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "MEMORY.md")); err != nil {
		t.Fatal(err)
	}
	if l, err := notes.Sources()[1].Layer(t.Context(), engine.Agent{Workspace: dir}); err == nil || l.Text != "" {
		t.Errorf("a link out of the folder gives %q", l.Text)
	}
}
