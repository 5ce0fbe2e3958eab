//go:build interop

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// modelfile is the Modelfile of the tiny model. Ollama refuses tools for a model whose
// template does not use them.
const modelfile = `FROM ./tiny.gguf
TEMPLATE """{{- if .System }}S: {{ .System }}
{{ end }}{{- if .Tools }}T: {{ .Tools }}
{{ end }}{{- range .Messages }}{{ .Role }}: {{ .Content }}
{{ end }}assistant: """
PARAMETER num_predict 8
PARAMETER num_ctx 65536
`

// ollama is a real Ollama with its own home folder.
type ollama struct {
	bin, addr, home string
}

func (o ollama) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), o.bin, args...)
	cmd.Dir = o.home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.home, "OLLAMA_HOST=" + o.addr, "OLLAMA_MODELS=" + filepath.Join(o.home, "models")}
	return cmd
}

func (o ollama) run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := o.command(t, args...).CombinedOutput(); err != nil {
		t.Fatalf("ollama %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (o ollama) serve(t *testing.T) {
	t.Helper()
	cmd := o.command(t, "serve")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = apptest.Output(t), apptest.Output(t)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended the process
}

// offered waits until the suite has read the list of models and offers exactly the given
// ones.
func offered(t *testing.T, w *world, ids ...string) map[string]api.Model {
	t.Helper()
	var got map[string]api.Model
	var faults []string
	for late := time.Now().Add(90 * time.Second); time.Now().Before(late); {
		answer := call[api.Models](t, w, api.ListModels{})
		got, faults = map[string]api.Model{}, answer.Faults
		for _, m := range answer.Models {
			if m.Usable {
				got[m.ID] = m
			}
		}
		right := len(got) == len(ids) && len(faults) == 0
		for _, id := range ids {
			right = right && got[id].Usable
		}
		if right {
			return got
		}
		select {
		case <-t.Context().Done():
		case <-time.After(100 * time.Millisecond): // the start of another program sends no signal
		}
	}
	t.Fatalf("models: got %v, faults %v; want %v", got, faults, ids)
	return nil
}

// endedWithin waits for the end of a run.
func endedWithin(t *testing.T, w *world, acc api.Accepted, d time.Duration) api.LoopEnd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var end api.LoopEnd
	found := errors.New("found")
	err := w.bus.Events(ctx, 0, func(s bus.Stored) error {
		if err := api.Decode(s.Data, &end); err != nil {
			return err
		}
		if end.Run == acc.Run {
			return found
		}
		return nil
	}, api.LoopEnd{Session: acc.Session}.Subject())
	if !errors.Is(err, found) {
		t.Fatalf("run %s has no end: %v", acc.Run, err)
	}
	return end
}

// TestOllama runs the example of the README with a real Ollama, whose path is in
// ANIMA_OLLAMA. Ollama starts after anima, its models are added and removed, and only its
// address is configured.
func TestOllama(t *testing.T) {
	bin := os.Getenv("ANIMA_OLLAMA")
	if bin == "" {
		t.Fatal("ANIMA_OLLAMA is empty: make interop-ollama OLLAMA=/path/to/ollama")
	}
	o := ollama{bin: bin, addr: freeAddr(t), home: t.TempDir()}
	w := oneProcess(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SIMULATED": "false", "OPENAI_BASE_URL": "http://" + o.addr + "/v1"})
	beside := oneProcess(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SIMULATED": "false", "OLLAMA_HOST": o.addr})
	if faults := call[api.Models](t, w, api.ListModels{}).Faults; len(faults) != 1 || !strings.Contains(faults[0], o.addr) {
		t.Errorf("before it is up: faults %v", faults)
	}
	writeTiny(t, filepath.Join(o.home, "tiny.gguf"))
	if err := os.WriteFile(filepath.Join(o.home, "Modelfile"), []byte(modelfile), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := strings.Replace(modelfile, "{{- if .Tools }}T: {{ .Tools }}\n{{ end }}", "", 1)
	if err := os.WriteFile(filepath.Join(o.home, "Plain"), []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	o.serve(t)
	offered(t, w)
	o.run(t, "create", "tiny", "-f", "Modelfile")
	// With one tool the prompt is short: a token of the tiny model is a byte.
	terse := func(w *world, name string) api.Agent {
		return call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: " + name + "\ntools: [read_file]\n---\nBe brief.\n"})
	}
	a := terse(w, "Local")
	spoke := func(w *world, agent, provider, model string) {
		t.Helper()
		acc := call[api.Accepted](t, w, api.SendMessage{Agent: agent, Content: "hello"})
		end := endedWithin(t, w, acc, 3*time.Minute) // allows for a machine without a GPU
		turns := turnsOf(t, w, end.Run)
		if len(turns) == 0 {
			t.Fatalf("no turns: %+v", end)
		}
		if got := turns[0]; got.Model != model || got.Provider != provider || got.Thinking == "" || got.Cost != 0 || got.OutputTokens == 0 {
			t.Errorf("got %+v of %+v; want words of %s at %s for nothing", got, end, model, provider)
		}
	}
	spoke(w, a.ID, "openai", "tiny:latest")
	if m := offered(t, w, "tiny:latest")["tiny:latest"]; m.ContextWindow != tinyWindow || m.InputPrice != 0 || m.OutputPrice != 0 {
		t.Errorf("got %+v; want a free model of %d tokens", m, tinyWindow)
	}
	b := terse(beside, "Beside")
	spoke(beside, b.ID, "ollama", "tiny:latest")

	o.run(t, "rm", "tiny")
	o.run(t, "create", "plain", "-f", "Plain")
	c := terse(w, "Toolless")
	spoke(w, c.ID, "openai", "plain:latest")
	offered(t, w, "plain:latest")
}
