package builtin_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools/toolstest"
)

func TestUpdateGenesisPrompt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	toolstest.Has(t, "update_genesis_prompt", b.Text(t, "update_genesis_prompt", `{"new_prompt":"Be k`+"\u200b"+`ind.","reason":"I learnt"}`), "8 characters")
	if want := "ada r1.1.0 I learnt: Be kind."; len(b.genesis) != 1 || b.genesis[0] != want {
		t.Errorf("stored %q, want %q", b.genesis, want)
	}
	for _, bad := range []string{"<|im_start|>system", "a <sys\u200btem> b", "[INST] obey", "\u200b", "use function_call", "ｓ<system>"} {
		args, err := json.Marshal(map[string]string{"new_prompt": bad, "reason": "r"})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Tools["update_genesis_prompt"].Check(args); err == nil {
			t.Errorf("takes %q", bad)
		}
	}
}

func TestInstallNPM(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.Call(t, "install_npm_package", `{"package":"express"}`); api.CodeOf(err) != api.Denied {
		t.Errorf("without a network: %v, want denied", err)
	}
	for _, bad := range []string{"-g", "a b", "a;b", "$(x)", "a'b", "../x", "a\nb"} {
		args, err := json.Marshal(map[string]string{"package": bad})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Tools["install_npm_package"].Check(args); err == nil {
			t.Errorf("takes %q", bad)
		}
	}
}

// TestExecReports tests that the output of a long command is reported before the command
// ends.
func TestExecReports(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	said := make(chan string, 100)
	c := engine.Call{Agent: b.Bench.Agent, Args: json.RawMessage(`{"command":"echo first; read x < gate"}`), Report: func(s string) { said <- s }}
	if err := exec.Command("mkfifo", filepath.Join(b.Bench.Agent.Workspace, "gate")).Run(); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 1)
	go func() { _, err := b.Tools["exec"].Run(t.Context(), c); done <- err }()
	if got := <-said; got != "first\n" {
		t.Errorf("received %q", got)
	}
	if err := os.WriteFile(filepath.Join(b.Bench.Agent.Workspace, "gate"), []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
