package model_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// TestVectorsOfSelection checks the vectors V-14: the first model for each tier and task,
// also with models that are disabled.
func TestVectorsOfSelection(t *testing.T) {
	t.Parallel()
	all := baseline(t)
	disabled := func(ids ...string) *model.Registry {
		r := all
		for _, id := range ids {
			m := get(t, r, id)
			m.Absent = "disabled"
			r = with(t, r, m)
		}
		return r
	}
	one, both := disabled("gpt-5.2"), disabled("gpt-5.2", "gpt-5-mini")
	tasks := []api.Task{api.TaskTurn, api.TaskTriage, api.TaskSafety, api.TaskSummary, api.TaskPlanning}
	for _, c := range []struct {
		vector string
		r      *model.Registry
		tier   api.Tier
		tasks  []api.Task
		want   string
	}{
		{"high/agent_turn gpt-5.2", all, api.TierHigh, tasks[:1], "gpt-5.2"},
		{"high/heartbeat_triage gpt-5-mini", all, api.TierHigh, tasks[1:2], "gpt-5-mini"},
		{"normal/agent_turn gpt-5.2", all, api.TierNormal, tasks[:1], "gpt-5.2"},
		{"normal/heartbeat_triage gpt-5-mini", all, api.TierNormal, tasks[1:2], "gpt-5-mini"},
		{"low_compute/* gpt-5-mini", all, api.TierLow, tasks, "gpt-5-mini"},
		{"critical/agent_turn, heartbeat_triage, safety_check gpt-5-mini", all, api.TierCritical, tasks[:3], "gpt-5-mini"},
		{"critical/summarization, planning none", all, api.TierCritical, tasks[3:], ""},
		{"dead/* none", all, api.TierDead, tasks, ""},
		{"gpt-5.2 disabled: high→gpt-5.3", one, api.TierHigh, tasks[:1], "gpt-5.3"},
		{"gpt-5.2 disabled: normal→gpt-5-mini", one, api.TierNormal, tasks[:1], "gpt-5-mini"},
		{"both disabled: normal none", both, api.TierNormal, tasks[:1], ""},
		{"both disabled: low_compute none", both, api.TierLow, tasks, ""},
	} {
		for _, task := range c.tasks {
			got := ""
			if usable := ids(pick(c.r, c.tier, task, "")); len(usable) > 0 {
				got = usable[0]
			}
			if got != c.want {
				t.Errorf("%s, %s: got %q, want %q", c.vector, task, got, c.want)
			}
		}
	}
}

// TestVectorsOfCost checks the vectors V-15. Its prices of gpt-5.2 are rounded to $1.80 a
// million input tokens; with those prices the cost is that of the vector, rounded up to
// one micro-USD instead of a cent. The registry has the exact price, $1.75.
func TestVectorsOfCost(t *testing.T) {
	t.Parallel()
	const nano = 1_000 // of a micro-USD; a cent has 10,000,000
	for _, c := range []struct {
		id        string
		in, out   int64
		cents     int64 // of the vector, in nano-USD: 0.00018 cents are 1,800
		reference int64 // cents
	}{
		{"gpt-5.2", 0, 0, 0, 0},
		{"gpt-5.2", 1, 0, 1_800, 1},
		{"gpt-5.2", 100, 50, 880_000, 1},
		{"gpt-5.2", 1000, 500, 8_800_000, 1},
		{"gpt-5.2", 10_000, 1000, 32_000_000, 4},
		{"gpt-5.2", 100_000, 8192, 294_688_000, 30},
		{"gpt-5-mini", 10, 1, 11_200, 1},
		{"gpt-5-mini", 1000, 500, 2_400_000, 1},
		{"gpt-5-mini", 20_000, 2048, 22_553_600, 3},
	} {
		m := get(t, baseline(t), c.id)
		exact := m.Cost(model.Tokens{Input: c.in, Output: c.out})
		if c.id == "gpt-5.2" {
			m.InputPrice = 1_800_000
		}
		got := m.Cost(model.Tokens{Input: c.in, Output: c.out})
		if want := (c.cents + nano - 1) / nano; got != want {
			t.Errorf("%s, %d in, %d out: got %d micro-USD, want %d", c.id, c.in, c.out, got, want)
		}
		if cents := (got + int64(api.Cent) - 1) / int64(api.Cent); cents != c.reference || exact > got {
			t.Errorf("%s, %d in, %d out: got %d cents for display and %d micro-USD at the exact price, want %d cents and at most %d", c.id, c.in, c.out, cents, exact, c.reference, got)
		}
	}
	// The estimates of the vector, of a prompt in characters: 4 of them are a token.
	m := get(t, baseline(t), "gpt-5.2")
	for _, c := range []struct{ characters, output, reference int64 }{
		{100, 1000, 2}, // no maximum: 1,000 tokens
		{100_000, 50_000, 75},
	} {
		if got := (m.Most(c.characters/4, c.output) + int64(api.Cent) - 1) / int64(api.Cent); got != c.reference {
			t.Errorf("estimate of %d characters and %d tokens: got %d cents, want %d", c.characters, c.output, got, c.reference)
		}
	}
}
