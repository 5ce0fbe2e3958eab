package builtin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
)

// TestExecQuota tests that the result of a command that the quota ended has the reason
// and the output until then, that the next command can only delete files, and says so, and
// that the command after that is not restricted. Without a sandbox it is not run.
func TestExecQuota(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := tools.Config{AllowUnsandboxed: true, Quota: sandbox.Quota{Bytes: 4 * disk.MiB}}
	exec := builtin.All(cfg, b.world, b.world)["exec"]
	call := func(command string) (engine.Output, error) {
		args, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		return exec.Run(t.Context(), engine.Call{Agent: b.Bench.Agent, Args: args})
	}
	out, err := call("echo begun; i=0; while :; do i=$((i+1)); head -c 1048576 /dev/zero > f$i; done")
	if err == nil || !strings.Contains(err.Error(), "was ended: the folder's quota is used up") || !strings.HasPrefix(out.Text, "begun\n") {
		t.Errorf("got %q, %v, want the output so far and the quota", out.Text, err)
	}
	if !sandbox.Probe(t.Context()).Sandboxed() {
		if _, err := call("echo begun"); err == nil || !strings.Contains(err.Error(), "not run: the folder's quota is used up") || api.CodeOf(err) != api.Internal {
			t.Errorf("the next command: %v, want it not run", err)
		}
		return
	}
	const note = "[the folder's quota is used up: its files may take 4 MiB; delete some; until then commands can only read and delete files]\n"
	out, err = call("echo x > f1 || rm f*")
	if text, noted := strings.CutPrefix(out.Text, note); err != nil || !noted || !strings.HasPrefix(text, "\n[stderr]\n") {
		t.Errorf("the next command: %q, %v, want the quota and that f1 was not changed", out.Text, err)
	}
	if out, err = call("echo x > f1 && ls"); err != nil || out.Text != "f1\n" {
		t.Errorf("after the files were deleted: %q, %v", out.Text, err)
	}
}
