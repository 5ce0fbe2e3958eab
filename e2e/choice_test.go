package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// choices is the script of a model that uses the tools by which an agent chooses how it
// thinks.
const choices = `{"model": "anima-sim-1", "aliases": ["sim-cheap"], "context_window": 128000, "rules": [
 {"when": {"last_user": "\\Aswitch to (\\S+)"}, "steps": [{"tool_calls": [{"name": "switch_model", "arguments": {"model_id": "{{index .Match 1}}"}}]}, {"text": "said: {{.ToolResult}}"}]},
 {"when": {"last_user": "\\Asave"}, "steps": [{"tool_calls": [{"name": "enter_low_compute", "arguments": {"reason": "little money"}}]}, {"text": "said: {{.ToolResult}}"}]}
], "default": {"steps": [{"text": "ok"}]}}`

// modelsOf returns the models of the turns of a run, in order, and its last turn.
func modelsOf(t *testing.T, w *world, run string) (models string, last api.Turn) {
	t.Helper()
	all := call[api.Turns](t, w, api.ListTurns{Run: run}).Turns // the latest first
	for _, v := range all {
		models = strings.TrimSpace(v.Model + " " + models)
	}
	return models, all[0]
}

// TestAgentChoosesItsModel runs an agent that switches its model and enters low compute by
// its tools: both apply to the next model call of the same run, survive a restart of all
// services, and the prompt of a long conversation becomes shorter.
func TestAgentChoosesItsModel(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(script, []byte(choices), 0o600); err != nil {
		t.Fatal(err)
	}
	env := environment(t, map[string]string{"ANIMA_INFERENCE_ROUTER_SCRIPT": script})
	o := apptest.Options{Server: apptest.Server(t), Data: t.TempDir(), Env: env}
	start := func() (*world, *apptest.World) {
		all := apptest.Start(t, o, services()...)
		return &world{bus: all.Bus, data: all.Data}, all
	}
	w, all := start()
	call[api.Model](t, w, api.AddModel{Model: "sim-cheap", Prices: api.Prices{Input: 10 * api.Cent, Output: 40 * api.Cent}, ContextWindow: 64_000, Fallback: true})
	agent := call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: Ada\ntools:\n  - switch_model\n  - enter_low_compute\n---\nBe brief.\n"})
	call[api.Posted](t, w, api.Deposit{ID: "birth", Agent: agent.ID, Amount: 9 * api.Dollar, Source: "faucet"})
	if len(agent.Warnings) > 0 {
		t.Errorf("the agent cannot use its tools: %q", agent.Warnings)
	}
	say := func(text, models, said string, state api.AgentState) api.Turn {
		t.Helper()
		end := send(t, w, agent.ID, text)
		got, last := modelsOf(t, w, end.Run)
		if !end.Success || got != models || !strings.Contains(end.Response, said) || last.State != state {
			t.Fatalf("%.40s: got %+v, models %q, state %s; want the models %q, %q and %s", text, end, got, last.State, models, said, state)
		}
		return last
	}
	say("hello", "anima-sim-1", "ok", api.StateRunning)
	say("switch to gpt-9", "anima-sim-1 anima-sim-1", "cannot be chosen: there is no such model", api.StateRunning)
	say("switch to gpt-5.2", "anima-sim-1 anima-sim-1", "provider openai is not configured", api.StateRunning)
	say("switch to sim-cheap", "anima-sim-1 sim-cheap", "sim-cheap of simulated", api.StateRunning)

	all.Stop()
	w, all = start()
	say("hello again", "sim-cheap", "ok", api.StateRunning)
	say("switch to default", "sim-cheap anima-sim-1", "anima-sim-1 of simulated", api.StateRunning)

	long := strings.Repeat("many words follow here ", 2000) // 46 kB, about 11,500 tokens
	var before api.Turn
	for range 4 {
		before = say(long, "anima-sim-1", "ok", api.StateRunning)
	}
	say("save", "anima-sim-1 sim-cheap", "prompts of at most 32000 tokens", api.StateLow)
	after := say("hello", "sim-cheap", "ok", api.StateLow)
	if before.InputTokens <= api.LowComputeWindow || after.InputTokens > api.LowComputeWindow {
		t.Errorf("prompts: got %d tokens before and %d in low compute, want more than %d and less", before.InputTokens, after.InputTokens, api.LowComputeWindow)
	}
	if v := call[api.Agent](t, w, api.GetAgent{Agent: agent.ID}); v.Chosen != "sim-cheap" || !v.LowCompute || v.Model != "" {
		t.Errorf("got %+v, want sim-cheap chosen, in low compute", v)
	}
	route := call[api.Route](t, w, api.ExplainRoute{Agent: agent.ID, LowCompute: true, PromptTokens: 4000, ToolTokens: 100})
	if route.Tier != api.TierLow || route.Ceiling != 10*api.Cent {
		t.Errorf("route: got %+v, want the cell of low_compute", route)
	}
	all.Stop()
	w, _ = start()
	say("hello", "sim-cheap", "ok", api.StateLow)
	call[api.Agent](t, w, api.ChooseModel{Agent: agent.ID})
	say("hello", "anima-sim-1", "ok", api.StateRunning)

	call[api.Agent](t, w, api.ChooseModel{Agent: agent.ID, Model: "sim-cheap", LowCompute: true})
	defined := call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: Ada\ndescription: Other.\ntools:\n  - switch_model\n---\nBe brief.\n"})
	if defined.Chosen != "" || defined.LowCompute {
		t.Errorf("after a new definition: got %+v, want no choice", defined)
	}
	refused[api.Agent](t, w, api.ChooseModel{Agent: "nobody", Model: "m"}, api.NotFound)
	refused[api.Agent](t, w, api.ChooseModel{Agent: agent.ID, Model: "a b"}, api.Invalid)
}
