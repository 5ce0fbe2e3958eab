package model_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// TestReasons checks each reason, and that of several reasons the first one in the order
// of the constants is shown.
func TestReasons(t *testing.T) {
	t.Parallel()
	ok := model.Model{ID: "m", Provider: "p", Known: true, InputPrice: 1_000_000, OutputPrice: 1_000_000, Tools: true, TierMinimum: api.TierCritical, Fallback: true}
	query := model.Query{Tier: api.TierCritical, Task: api.TaskTurn, Prompt: 100, Tools: 50, Output: 300, Budget: 10_000}
	for _, c := range []struct {
		name   string
		change func(*model.Model, *model.Query)
		want   model.Reason
		why    string
	}{
		{"usable", func(*model.Model, *model.Query) {}, model.Usable, ""},
		{"not listed", func(m *model.Model, _ *model.Query) { m.Absent, m.Known = "u does not list it", false }, model.Unlisted, "u does not list it"},
		{"not configured", func(m *model.Model, _ *model.Query) { m.Provider, m.Known = "other", false }, model.NotConfigured, "provider other is not configured"},
		{"unpriced", func(m *model.Model, _ *model.Query) { m.Known, m.ContextWindow = false, 10 }, model.Unpriced, "price unknown"},
		{"too long", func(m *model.Model, _ *model.Query) { m.ContextWindow, m.Tools = 99, false }, model.TooLong, "the prompt of about 100 tokens and an answer of 300 do not fit its window of 99"},
		{"images", func(m *model.Model, q *model.Query) { m.Vision, m.ContextWindow, q.Images = false, 1, 1 }, model.NoVision, "cannot see images"},
		{"no tools", func(m *model.Model, q *model.Query) { m.Tools, m.TierMinimum = false, api.TierHigh }, model.NoTools, "takes no tools"},
		{"tier", func(m *model.Model, q *model.Query) { m.TierMinimum, q.Budget = api.TierLow, 0 }, model.NeedsTier, "needs tier low_compute"},
		{"not served", func(_ *model.Model, q *model.Query) { q.Task, q.Budget = api.TaskPlanning, 0 }, model.Unserved, "only free models serve this task in this tier"},
		{"unknown task", func(m *model.Model, q *model.Query) { m.InputPrice, m.OutputPrice, q.Task = 0, 0, "gossip" }, model.Unserved, `no model serves task "gossip" in tier "critical"`},
		{"ceiling", func(m *model.Model, q *model.Query) { m.InputPrice, q.Budget = 200_000_000, 0 }, model.OverCeiling, "a call may cost $0.0603, more than the ceiling of $0.03"},
		{"budget", func(_ *model.Model, q *model.Query) { q.Budget = 299 }, model.OverBudget, "a call may cost $0.0006, more than the available $0.000299"},
	} {
		m, q := ok, query
		c.change(&m, &q)
		q.Configured = func(name string) bool { return name == "p" }
		r, err := model.NewRegistry(m)
		if err != nil {
			t.Fatal(err)
		}
		route := choose(r, q)
		if got := route.Candidates[len(route.Candidates)-1]; got.Reason != c.want || route.Why(&got) != c.why {
			t.Errorf("%s: got %d, %q; want %d, %q", c.name, got.Reason, route.Why(&got), c.want, c.why)
		}
	}
	route := choose(baseline(t), model.Query{Tier: api.TierHigh, Task: api.TaskTurn, Model: "gpt-9"})
	if got := route.Candidates[0]; got.Reason != model.Unregistered || route.Why(&got) != "not registered" {
		t.Errorf("an unknown model: got %+v", got)
	}
}

// TestModelsOfTheCell checks that the minimum tier does not apply to a model of the cell that
// is requested in another form or as a part of a class, and that a model of the cell that no
// provider has is a candidate with that reason.
func TestModelsOfTheCell(t *testing.T) {
	t.Parallel()
	r, err := model.NewRegistry(
		model.Model{ID: "openai/gpt-x", Provider: "p", Known: true, InputPrice: 1, TierMinimum: api.TierHigh},
		model.Model{ID: "gpt-4.1-mini", Provider: "p", Known: true, InputPrice: 1, TierMinimum: api.TierHigh},
	)
	if err != nil {
		t.Fatal(err)
	}
	matrix := model.NewMatrix(api.Matrix{{Tier: api.TierLow, Task: api.TaskTurn, Models: []string{"gpt-y", "gpt-x", "gpt-4.1-mini"}, MaxTokens: 100, Ceiling: -1}})
	for requested, want := range map[string][]string{
		"":             {"openai/gpt-x", "gpt-4.1-mini"},
		"openai/gpt-x": {"openai/gpt-x", "gpt-4.1-mini"},
		model.Fast:     {"gpt-4.1-mini", "openai/gpt-x"},
		"gpt-y":        {"openai/gpt-x", "gpt-4.1-mini"},
	} {
		var route model.Route
		r.Select(matrix, model.Query{Tier: api.TierLow, Task: api.TaskTurn, Model: requested, Budget: model.Unlimited}, &route)
		if diff := cmp.Diff(want, ids(&route)); diff != "" {
			t.Errorf("%q: usable (-want +got):\n%s", requested, diff)
		}
		if diff := cmp.Diff([]string{"gpt-y: not registered"}, skipped(&route)); diff != "" {
			t.Errorf("%q: skipped (-want +got):\n%s", requested, diff)
		}
	}
}

// TestDegradation checks that a call gets a smaller model, then fewer tokens, then no
// tools, before it is refused.
func TestDegradation(t *testing.T) {
	t.Parallel()
	paid := func(id string, price int64) model.Model {
		return model.Model{ID: id, Provider: "p", Known: true, OutputPrice: price, Tools: true, TierMinimum: api.TierCritical, Fallback: true}
	}
	dear, cheap := paid("dear", 50_000_000), paid("cheap", 1_000_000)
	small := model.Model{ID: "small", Provider: "p", Known: true, ContextWindow: 1000, Tools: true, Fallback: true}
	plain := model.Model{ID: "plain", Provider: "p", Known: true, Fallback: true}
	for _, c := range []struct {
		name   string
		models []model.Model
		q      model.Query
		want   model.Candidate
	}{
		{"the smaller model", []model.Model{dear, cheap}, model.Query{}, model.Candidate{ID: "cheap", Limit: 2048}},
		{"fewer tokens by the ceiling", []model.Model{dear}, model.Query{}, model.Candidate{ID: "dear", Limit: 600, Fewer: true}},
		{"fewer tokens by the credits", []model.Model{cheap}, model.Query{Budget: 400}, model.Candidate{ID: "cheap", Limit: 400, Fewer: true}},
		{"too few tokens", []model.Model{cheap}, model.Query{Budget: 255}, model.Candidate{}},
		{"as few as asked", []model.Model{cheap}, model.Query{Budget: 100, Output: 100}, model.Candidate{ID: "cheap", Limit: 100}},
		{"fewer tokens by the window", []model.Model{small}, model.Query{Prompt: 500}, model.Candidate{ID: "small", Limit: 500, Fewer: true}},
		{"the window is full", []model.Model{small}, model.Query{Prompt: 800}, model.Candidate{}},
		{"tools before all", []model.Model{plain, cheap}, model.Query{Tools: 10}, model.Candidate{ID: "cheap", Limit: 2048}},
		{"fewer tokens before no tools", []model.Model{plain, dear}, model.Query{Tools: 10}, model.Candidate{ID: "dear", Limit: 600, Fewer: true}},
		{"without tools", []model.Model{plain}, model.Query{Tools: 10}, model.Candidate{ID: "plain", Limit: 2048, Without: true}},
		{"the caller has named it", []model.Model{plain, cheap}, model.Query{Tools: 10, Model: "plain"}, model.Candidate{ID: "plain", Limit: 2048, Without: true}},
	} {
		r, err := model.NewRegistry(c.models...)
		if err != nil {
			t.Fatal(err)
		}
		c.q.Tier, c.q.Task = api.TierCritical, api.TaskTurn
		if c.q.Budget == 0 {
			c.q.Budget = model.Unlimited
		}
		route := choose(r, c.q)
		var got model.Candidate
		if i := slices.IndexFunc(route.Candidates, func(c model.Candidate) bool { return c.Reason == model.Usable }); i >= 0 {
			chosen := route.Candidates[i]
			got = model.Candidate{ID: chosen.ID, Limit: chosen.Limit, Fewer: chosen.Fewer, Without: chosen.Without}
			if chosen.Most > 30_000 || c.q.Budget >= 0 && chosen.Most > c.q.Budget {
				t.Errorf("%s: the call may cost %d", c.name, chosen.Most)
			}
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(model.Candidate{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestSelectionIsWithinTheLimits checks for random models, prompts and limits that each
// usable candidate fits its window, the ceiling and the credits.
func TestSelectionIsWithinTheLimits(t *testing.T) {
	t.Parallel()
	amount := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, 1<<40), rapid.Int64())
	price := rapid.OneOf(rapid.Int64Range(0, 100_000_000), rapid.Int64Range(0, 1<<62))
	rapid.Check(t, func(t *rapid.T) {
		m := model.Model{
			ID: "m", Provider: "p", Known: true, InputPrice: price.Draw(t, "input price"), OutputPrice: price.Draw(t, "output price"),
			ContextWindow: rapid.Int64Range(0, 1<<20).Draw(t, "window"), Tools: rapid.Bool().Draw(t, "tools"), Fallback: true, TierMinimum: api.TierCritical,
		}
		r, err := model.NewRegistry(m)
		if err != nil {
			t.Fatal(err)
		}
		q := model.Query{
			Tier: api.TierLow, Task: api.TaskTurn, Prompt: rapid.Int64Range(0, 1<<21).Draw(t, "prompt"), Tools: rapid.Int64Range(0, 100).Draw(t, "tool tokens"),
			Output: amount.Draw(t, "output"), Budget: amount.Draw(t, "budget"),
		}
		if q.Budget < 0 {
			q.Budget = model.Unlimited
		}
		for _, c := range choose(r, q).Candidates {
			if c.Reason != model.Usable {
				continue
			}
			most := m.Most(2*c.Prompt, c.Limit)
			if c.Limit < 1 || !m.Fits(c.Prompt, c.Limit) || most != c.Most || most > 100_000 || q.Budget >= 0 && most > q.Budget {
				t.Fatalf("chosen: %+v", c)
			}
		}
	})
}

func TestSelectAllocatesNothing(t *testing.T) {
	r := with(t, baseline(t), model.Claude()...)
	matrix, q := model.DefaultMatrix(), query()
	var route model.Route
	if n := testing.AllocsPerRun(1000, func() { r.Select(matrix, q, &route) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// query returns a query with a requested model, in the short form of its id.
func query() model.Query {
	return model.Query{Tier: api.TierNormal, Task: api.TaskTurn, Model: "gpt-4.1", Prompt: 8000, Tools: 3000, Budget: model.Unlimited, Configured: func(string) bool { return true }}
}

func BenchmarkRoute(b *testing.B) {
	r, err := model.NewRegistry(append(model.Baseline(), model.Claude()...)...)
	if err != nil {
		b.Fatal(err)
	}
	matrix := model.DefaultMatrix()
	degraded := query()
	degraded.Tier, degraded.Prompt, degraded.Model = api.TierCritical, 15_000, ""
	for name, q := range map[string]model.Query{"usual": query(), "fewer tokens": degraded} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var route model.Route
			for b.Loop() {
				r.Select(matrix, q, &route)
			}
		})
	}
}
