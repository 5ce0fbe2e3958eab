package loop

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// TestLimited: a tool that writes is refused over the quota and without room, with an
// error that does not make the run wait.
func TestLimited(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, disk.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	room := func() error { return nil }
	full := func() error {
		return &api.Error{Code: api.Unavailable, Reason: api.ReasonNoSpace, Message: "the disk is full", Next: "free space"}
	}
	for _, tt := range []struct {
		name  string
		quota sandbox.Quota
		room  func() error
		args  string
		want  string // "": the tool is run
	}{
		{"no quota", sandbox.Quota{}, room, `{}`, ""},
		{"room for all", sandbox.Quota{Bytes: 2 * disk.MiB, Files: 3}, room, `{}`, ""},
		{"its arguments are too many", sandbox.Quota{Bytes: 2 * disk.MiB}, room, `{"content":"` + strings.Repeat("x", disk.MiB) + `"}`, "may take 2 MiB"},
		{"too many files", sandbox.Quota{Files: 2}, room, `{}`, "may hold 2 files"},
		{"a full disk", sandbox.Quota{}, full, `{}`, "nothing was written: the disk is full"},
	} {
		ran := false
		tool := limited(turn.Tool{Run: func(context.Context, turn.Call) (turn.Output, error) { ran = true; return turn.Output{}, nil }}, tt.quota, tt.room)
		_, err := tool.Run(t.Context(), turn.Call{Agent: turn.Agent{Workspace: dir}, Args: json.RawMessage(tt.args)})
		switch {
		case tt.want == "" && (err != nil || !ran):
			t.Errorf("%s: %v, ran %v, want it run", tt.name, err, ran)
		case tt.want != "" && (err == nil || ran || !strings.Contains(err.Error(), tt.want) || api.CodeOf(err) != api.Internal):
			t.Errorf("%s: %v, ran %v, want a refusal with %q", tt.name, err, ran, tt.want)
		}
	}
}
