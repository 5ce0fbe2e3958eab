package model_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// ids returns the usable candidates of a route.
func ids(route *model.Route) []string {
	var ids []string
	for _, c := range route.Candidates {
		if c.Reason == model.Usable {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// skipped returns the other candidates with their reasons.
func skipped(route *model.Route) []string {
	var all []string
	for i := range route.Candidates {
		if c := &route.Candidates[i]; c.Reason != model.Usable {
			all = append(all, c.ID+": "+route.Why(c))
		}
	}
	return all
}

// pick selects with the default matrix, for an empty prompt.
func pick(r *model.Registry, tier api.Tier, task api.Task, requested string) *model.Route {
	return choose(r, model.Query{Tier: tier, Task: task, Model: requested, Budget: model.Unlimited})
}

func choose(r *model.Registry, q model.Query) *model.Route {
	var route model.Route
	r.Select(model.DefaultMatrix(), q, &route)
	return &route
}

func with(t *testing.T, r *model.Registry, models ...model.Model) *model.Registry {
	t.Helper()
	next, err := model.NewRegistry(append(r.All(), models...)...)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestMatrix checks the whole routing matrix (docs/reference/inference-router.md, Routing
// matrix): first candidates, output limit, ceiling in cents.
func TestMatrix(t *testing.T) {
	t.Parallel()
	tasks := []api.Task{api.TaskTurn, api.TaskTriage, api.TaskSafety, api.TaskSummary, api.TaskPlanning}
	type cell struct {
		models     []string
		max, cents int64
	}
	top, mixed, mini := []string{"gpt-5.2", "gpt-5.3"}, []string{"gpt-5.2", "gpt-5-mini"}, []string{"gpt-5-mini"}
	r := baseline(t)
	for tier, row := range map[api.Tier][5]cell{
		api.TierHigh:     {{top, 8192, -1}, {mini, 2048, 5}, {top, 4096, 20}, {mixed, 4096, 15}, {top, 8192, -1}},
		api.TierNormal:   {{mixed, 4096, -1}, {mini, 2048, 5}, {mixed, 4096, 10}, {mixed, 4096, 10}, {mixed, 4096, -1}},
		api.TierUnknown:  {{mixed, 4096, -1}, {mini, 2048, 5}, {mixed, 4096, 10}, {mixed, 4096, 10}, {mixed, 4096, -1}},
		api.TierLow:      {{mini, 4096, 10}, {mini, 1024, 2}, {mini, 2048, 5}, {mini, 2048, 5}, {mini, 2048, 5}},
		api.TierCritical: {{mini, 2048, 3}, {mini, 512, 1}, {mini, 1024, 2}, {}, {}},
		api.TierDead:     {},
	} {
		for i, want := range row {
			route := pick(r, tier, tasks[i], "")
			ceiling := want.cents * 10_000
			if want.cents < 0 {
				ceiling = model.Unlimited
			}
			if diff := cmp.Diff(want.models, ids(route)); diff != "" {
				t.Errorf("%s/%s: models (-want +got):\n%s", tier, tasks[i], diff)
			}
			if route.MaxTokens != want.max || route.Ceiling != ceiling {
				t.Errorf("%s/%s: got %d tokens, ceiling %d; want %d, %d", tier, tasks[i], route.MaxTokens, route.Ceiling, want.max, ceiling)
			}
			if route.Served != (len(want.models) > 0) {
				t.Errorf("%s/%s: served is %v", tier, tasks[i], route.Served)
			}
		}
	}
}

// TestDisabledModelsAreSkipped checks the vectors V-14 (docs/reference/inference-router.md,
// Test vectors): the remaining candidates when models are disabled.
func TestDisabledModelsAreSkipped(t *testing.T) {
	t.Parallel()
	r := baseline(t)
	big, small := get(t, r, "gpt-5.2"), get(t, r, "gpt-5-mini")
	big.Absent, small.Absent = "disabled", "disabled"
	one, both := with(t, r, big), with(t, r, big, small)
	for _, c := range []struct {
		name string
		r    *model.Registry
		tier api.Tier
		want []string
	}{
		{"gpt-5.2 off", one, api.TierHigh, []string{"gpt-5.3"}},
		{"gpt-5.2 off", one, api.TierNormal, []string{"gpt-5-mini"}},
		{"both off", both, api.TierNormal, nil},
		{"both off", both, api.TierLow, nil},
	} {
		route := pick(c.r, c.tier, api.TaskTurn, "")
		if diff := cmp.Diff(c.want, ids(route)); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", c.name, c.tier, diff)
		}
	}
	want := []string{"gpt-5.2: disabled", "gpt-5-mini: disabled"}
	if diff := cmp.Diff(want, skipped(pick(both, api.TierNormal, api.TaskTurn, ""))); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if m := get(t, r, "gpt-5.2"); m.Absent != "" {
		t.Error("With changed the registry that it was called on")
	}
}

func TestRequestedModel(t *testing.T) {
	t.Parallel()
	r := with(t, baseline(t),
		model.Model{ID: "mystery", Provider: "openai"},
		model.Model{ID: "llama", Provider: "ollama", Known: true, TierMinimum: api.TierNormal},
	)
	for _, c := range []struct {
		name, requested string
		tier            api.Tier
		want            []string
	}{
		{"allowed comes first", "gpt-4.1", api.TierNormal, []string{"gpt-4.1", "gpt-5.2", "gpt-5-mini"}},
		{"of the matrix moves to the front", "gpt-5-mini", api.TierNormal, []string{"gpt-5-mini", "gpt-5.2"}},
		{"of the matrix needs no minimum tier", "gpt-5-mini", api.TierCritical, []string{"gpt-5-mini"}},
		{"too dear for the tier", "gpt-4.1", api.TierLow, []string{"gpt-5-mini"}},
		{"unknown to the registry", "gpt-9", api.TierLow, []string{"gpt-5-mini"}},
		{"price unknown", "mystery", api.TierHigh, []string{"gpt-5.2", "gpt-5.3"}},
		{"free is never too dear", "llama", api.TierCritical, []string{"llama", "gpt-5-mini"}},
		{"free for a dead agent", "llama", api.TierDead, []string{"llama"}},
		{"a dead agent pays for no model", "gpt-5-mini", api.TierDead, nil},
	} {
		if diff := cmp.Diff(c.want, ids(pick(r, c.tier, api.TaskTurn, c.requested))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestFallbacksComeLast(t *testing.T) {
	t.Parallel()
	r := with(t, baseline(t),
		model.Model{ID: "sim", Provider: "simulated", Known: true, InputPrice: 1, OutputPrice: 1, TierMinimum: api.TierCritical, Fallback: true},
		model.Model{ID: "dear", Provider: "other", Known: true, InputPrice: 1, TierMinimum: api.TierHigh, Fallback: true},
		model.Model{ID: "unpriced", Provider: "other", Fallback: true},
	)
	route := pick(r, api.TierCritical, api.TaskTurn, "")
	if diff := cmp.Diff([]string{"gpt-5-mini", "sim"}, ids(route)); diff != "" {
		t.Errorf("critical (-want +got):\n%s", diff)
	}
	want := []string{"dear: needs tier high", "unpriced: price unknown"}
	if diff := cmp.Diff(want, skipped(route)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if got := ids(pick(r, api.TierCritical, api.TaskPlanning, "")); got != nil {
		t.Errorf("a task that the tier does not serve: got %v, want none", got)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model, asked int64
		task         api.Task
		want         int64
	}{
		{0, 0, api.TaskTurn, 2048},
		{1000, 0, api.TaskTurn, 1000},
		{1000, 500, api.TaskTurn, 500},
		{0, 9000, api.TaskTurn, 2048},
		{0, -1, api.TaskTurn, 2048},
		{0, 0, api.TaskPlanning, 2048}, // not served: the cell has no limit
		{8000, 0, api.TaskPlanning, 2048},
	} {
		r := with(t, baseline(t), model.Model{ID: "free", Provider: "p", Known: true, MaxOutput: c.model})
		route := choose(r, model.Query{Tier: api.TierCritical, Task: c.task, Model: "free", Output: c.asked, Budget: model.Unlimited})
		if got := route.Candidates[0].Limit; got != c.want {
			t.Errorf("model %d, asked %d, %s: got %d, want %d", c.model, c.asked, c.task, got, c.want)
		}
	}
	m := model.Model{ContextWindow: 100}
	if !m.Fits(80, 20) || m.Fits(81, 20) || !(model.Model{}).Fits(1<<40, 1) {
		t.Error("prompt and answer must fit together, and an unknown window refuse nothing")
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	for task, want := range map[api.Task]time.Duration{
		api.TaskTriage: 15 * time.Second, api.TaskSafety: 30 * time.Second, api.TaskSummary: time.Minute,
		api.TaskTurn: 2 * time.Minute, api.TaskPlanning: 2 * time.Minute, "other": 2 * time.Minute,
	} {
		if got := model.Timeout(task); got != want {
			t.Errorf("%s: got %s, want %s", task, got, want)
		}
	}
}

func TestRegistryRefuses(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]model.Model{
		"no id":          {Provider: "p"},
		"no provider":    {ID: "m"},
		"negative price": {ID: "m", Provider: "p", Known: true, OutputPrice: -1},
		"odd parameter":  {ID: "m", Provider: "p", TokenParam: "max_length"},
	} {
		if _, err := model.NewRegistry(m); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestRegistryOrder(t *testing.T) {
	t.Parallel()
	r := with(t, baseline(t), model.Model{ID: "gpt-5.3", Provider: "openai"}, model.Model{ID: "extra", Provider: "p"})
	want := []string{"gpt-5.2", "gpt-5.3", "gpt-5-mini", "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano", "extra"}
	var got []string
	for _, m := range r.All() {
		got = append(got, m.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m := get(t, r, "extra"); m.TokenParam != model.MaxTokens {
		t.Errorf("default token parameter: got %q", m.TokenParam)
	}
}
