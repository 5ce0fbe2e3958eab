package model_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// TestClasses checks the vectors V-26 about tiers of providers: the order in each class, the
// cheaper class for agents with little money, and that providers that are not configured are
// skipped.
func TestClasses(t *testing.T) {
	t.Parallel()
	r, err := model.NewRegistry(slices.Concat(model.Baseline(), model.Groq())...)
	if err != nil {
		t.Fatal(err)
	}
	const gpt, mini, nano, large, small = "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano", "llama-3.3-70b-versatile", "llama-3.1-8b-instant"
	both := func(string) bool { return true }
	for _, c := range []struct {
		class      string
		tier       api.Tier
		configured func(string) bool
		want       []string
	}{
		{model.Reasoning, api.TierHigh, both, []string{gpt, large}},
		{model.Fast, api.TierNormal, both, []string{large, mini}},
		{model.Cheap, api.TierUnknown, both, []string{small, nano}},
		{model.Reasoning, api.TierLow, both, []string{large, mini}},
		{model.Fast, api.TierLow, both, []string{small, nano, large, mini}},
		{model.Cheap, api.TierLow, both, []string{small, nano}},
		{model.Fast, api.TierHigh, func(name string) bool { return name == "openai" }, []string{mini}},
		{model.Reasoning, api.TierHigh, func(name string) bool { return name == "groq" }, []string{large}},
		{model.Reasoning, api.TierDead, both, nil},
	} {
		route := choose(r, model.Query{Tier: c.tier, Task: api.TaskTurn, Model: c.class, Tools: 1, Budget: model.Unlimited, Configured: c.configured})
		got := slices.DeleteFunc(ids(route), func(id string) bool { return slices.Contains([]string{"gpt-5.2", "gpt-5.3", "gpt-5-mini"}, id) }) // of the cell
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s in %s (-want +got):\n%s", c.class, c.tier, diff)
		}
		if c.tier != api.TierDead && ids(route)[0] != c.want[0] {
			t.Errorf("%s in %s: the first is %s, want %s", c.class, c.tier, ids(route)[0], c.want[0])
		}
	}
}
