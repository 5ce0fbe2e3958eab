package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// giveScript makes the model call transfer_credits with the address of the message.
const giveScript = `{"model":"anima-sim-1","rules":[{"when":{"last_user":"(?is)\\Agive a dollar to (0x[0-9a-f]{40})"},"steps":[
	{"text":"I give.","tool_calls":[{"name":"transfer_credits","arguments":{"to_address":"{{index .Match 1}}","amount_cents":100,"reason":"asked to"}}]},
	{"text":"Result:{{with .ToolResult}} {{.}}{{end}}"}]}],
	"default":{"steps":[{"text":"I have nothing to do."}]}}`

// TestAgentGivesCredits makes an agent transfer credits in a turn: the model asks for the
// tool, policy decides, treasury executes it. The transfer is in the ledger with its turn;
// more than half of the credits, and a message of another principal, move nothing.
func TestAgentGivesCredits(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	script := filepath.Join(t.TempDir(), "script.json")
	write(t, script, giveScript)
	m.env["ANIMA_INFERENCE_ROUTER_SCRIPT"] = script
	u := m.up()
	nova := m.born("Nova") // one dollar
	if r := m.run("---\nname: Rich\ntools: [transfer_credits, create_sandbox]\n---\nBe kind.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	m.cli("agent", "fund", "rich", "3")
	give := "give a dollar to " + nova.Address
	end := asked[api.LoopEnd](m, "session", "send", "rich", give)
	if !end.Success || !strings.Contains(end.Response, "gave $1.00 to "+nova.Address) {
		t.Fatalf("the run ended as %+v\n%s", end, u.log())
	}
	has := func(agent string) api.Micros {
		return asked[[]api.Balance](m, "ledger", "balance", agent)[0].Available
	}
	if got := has("nova"); got != 2*api.Dollar {
		t.Errorf("nova has %s, want $2.00", got)
	}
	var moved []api.Posted
	for _, e := range asked[api.Entries](m, "ledger", "entries", "nova").Entries {
		if e.Kind == "settle" && strings.HasPrefix(e.ID, "tool/") {
			moved = append(moved, e)
		}
	}
	if len(moved) != 1 || moved[0].Turn == "" || moved[0].Trace == "" || moved[0].Memo != "asked to" {
		t.Errorf("transfers in the ledger: %+v, want one with turn, trace and reason", moved)
	}
	// Rich has less than two dollars now, so the same amount is more than half.
	end = asked[api.LoopEnd](m, "session", "send", "rich", give)
	if !strings.Contains(end.Response, "more than half") || has("nova") != 2*api.Dollar {
		t.Errorf("more than half: %+v, and nova has %s", end, has("nova"))
	}
	// Sandboxes need a provider, so their tools are not offered.
	for _, tool := range asked[api.Tools](m, "tool", "list", "rich").Tools {
		if tool.Name == "create_sandbox" && tool.Executable || tool.Name == "transfer_credits" && !tool.Executable {
			t.Errorf("tool %+v", tool)
		}
	}
}
