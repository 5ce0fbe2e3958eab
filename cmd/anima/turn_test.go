package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestForkWaitsForTheModel forks a turn with a model that needs longer than a request
// without a stream may take.
func TestForkWaitsForTheModel(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_INFERENCE_ROUTER_SCRIPT"] = filepath.Join(t.TempDir(), "script.json")
	write(t, m.env["ANIMA_INFERENCE_ROUTER_SCRIPT"], `{"model":"anima-sim-1","rules":[{"when":{"system":"Think for long"},"steps":[
		{"text":"At last.","delay_ms":11000}]}],"default":{"steps":[{"text":"At once."}]}}`)
	m.up()
	m.cli("session", "send", "lucky", "hello")
	turn := asked[api.Turns](m, "turn", "list", "lucky").Turns[0].ID
	genesis := filepath.Join(t.TempDir(), "genesis.md")
	write(t, genesis, "Think for long.")
	// The context of the program has no deadline, which the bus would use.
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"turn", "replay", turn, "--fork", "--prompt", genesis, "-o", "json"}, m.app(nil, &out, &errs)); code != exitOK {
		t.Fatalf("exit %d\n%s", code, &errs)
	}
	var got api.Forked
	if one(t, out.String(), &got); got.Forked.Text != "At last." || got.Recorded.Text != "At once." {
		t.Errorf("got %+v, want the answer of the slow model beside the recorded one", got)
	}
}
