package loop

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// TestLimited tests that a tool that writes fails if the quota is exceeded or the disk
// is full, with an error that does not make the run retry.
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
		want  string // "": the tool is executed
	}{
		{"no quota", sandbox.Quota{}, room, `{}`, ""},
		{"room for all", sandbox.Quota{Bytes: 2 * disk.MiB, Files: 3}, room, `{}`, ""},
		{"its arguments are too many", sandbox.Quota{Bytes: 2 * disk.MiB}, room, `{"content":"` + strings.Repeat("x", disk.MiB) + `"}`, "may take 2 MiB"},
		{"too many files", sandbox.Quota{Files: 2}, room, `{}`, "may hold 2 files"},
		{"a full disk", sandbox.Quota{}, full, `{}`, "nothing was written: the disk is full"},
	} {
		ran := false
		tool := limited(engine.Tool{Run: func(context.Context, engine.Call) (engine.Output, error) { ran = true; return engine.Output{}, nil }}, tt.quota, tt.room)
		_, err := tool.Run(t.Context(), engine.Call{Agent: engine.Agent{Workspace: dir}, Args: json.RawMessage(tt.args)})
		switch {
		case tt.want == "" && (err != nil || !ran):
			t.Errorf("%s: %v, ran %v, want it run", tt.name, err, ran)
		case tt.want != "" && (err == nil || ran || !strings.Contains(err.Error(), tt.want) || api.CodeOf(err) != api.Internal):
			t.Errorf("%s: %v, ran %v, want a refusal with %q", tt.name, err, ran, tt.want)
		}
	}
}

// TestWatched tests that a tool that keeps writing is cancelled if the quota is
// exceeded or the disk is full, with an error that does not make the run retry, and
// that the errors of other tools are unchanged.
func TestWatched(t *testing.T) {
	t.Parallel()
	room := func() error { return nil }
	full := func() error {
		return &api.Error{Code: api.Unavailable, Reason: api.ReasonNoSpace, Message: "the disk is full", Next: "free space"}
	}
	writes := func(ctx context.Context, c engine.Call) (engine.Output, error) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			<-tick.C
			if err := os.WriteFile(filepath.Join(c.Agent.Workspace, strconv.Itoa(n)), nil, 0o600); err != nil {
				return engine.Output{}, err
			}
		}
		return engine.Output{}, ctx.Err()
	}
	fails := func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{}, errors.New("no such address")
	}
	for _, tt := range []struct {
		name  string
		quota sandbox.Quota
		room  func() error
		run   func(context.Context, engine.Call) (engine.Output, error)
		want  string
	}{
		{"too many files", sandbox.Quota{Files: 100}, room, writes, "it was ended: the folder's quota is used up: it may hold 100 files"},
		{"a full disk", sandbox.Quota{}, full, writes, "it was ended: the disk is full"},
		{"within both", sandbox.Quota{Files: 100}, room, fails, "no such address"},
	} {
		tool := watched(engine.Tool{Run: tt.run}, tt.quota, tt.room)
		_, err := tool.Run(t.Context(), engine.Call{Agent: engine.Agent{Workspace: t.TempDir()}})
		if err == nil || !strings.Contains(err.Error(), tt.want) || api.CodeOf(err) != api.Internal {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}
