package loop_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// TestRunWithAnUnusableFolder tests that a run ends whatever its agent has made of its
// folder.
func TestRunWithAnUnusableFolder(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 1)
	ended := apptest.Watch[api.LoopEnd](t, b)
	folder := filepath.Join(worlds[0].Data, "loop", "workspaces", "lucky")
	for _, c := range []struct {
		name string
		make func() error
	}{
		{"a file in place of the folder for temporary files", func() error {
			if err := os.MkdirAll(folder, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(folder, ".tmp"), nil, 0o600)
		}},
		{"a dangling link in its place", func() error {
			if err := os.Remove(filepath.Join(folder, ".tmp")); err != nil {
				return err
			}
			return os.Symlink("missing", filepath.Join(folder, ".tmp"))
		}},
		{"a file in place of the agent's folder", func() error {
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
			return os.WriteFile(folder, nil, 0o600)
		}},
	} {
		if err := c.make(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		accepted := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "hello"})
		if end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == accepted.Run }); !end.Success {
			t.Errorf("%s: the run ended with %q, want success", c.name, end.Error)
		}
	}
}
