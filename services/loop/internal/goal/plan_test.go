package goal_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/goal"
)

func spec(title string, dependencies ...string) goal.Spec {
	return goal.Spec{Title: title, Description: "d", Dependencies: dependencies}
}

// TestGraph checks the vectors V-31 (docs/reference/goals.md, Test vectors): cycles over
// dependencies, parents and aliases. A reference that names no task forms no cycle and is
// a fault.
func TestGraph(t *testing.T) {
	t.Parallel()
	parent := func(s goal.Spec, p string) goal.Spec { s.Parent = p; return s }
	for name, tt := range map[string]struct {
		specs  []goal.Spec
		cyclic bool
		fault  string // of Decompose
	}{
		"none":                      {nil, false, "no task"},
		"chain":                     {[]goal.Spec{spec("A"), spec("B", "0"), spec("C", "#1")}, false, ""},
		"diamond":                   {[]goal.Spec{spec("A"), spec("B", "A"), spec("C", "task-1"), spec("D", "B", "C")}, false, ""},
		"a and b":                   {[]goal.Spec{spec("A", "1"), spec("B", "0")}, true, "cycle"},
		"itself":                    {[]goal.Spec{spec("A", "0")}, true, "itself"},
		"its own parent":            {[]goal.Spec{parent(spec("A"), "A")}, true, "itself"},
		"parents":                   {[]goal.Spec{parent(spec("A"), "1"), parent(spec("B"), "0")}, true, "cycle"},
		"a parent and a dependency": {[]goal.Spec{parent(spec("A"), "1"), spec("B", "0")}, true, "cycle"},
		"titles":                    {[]goal.Spec{spec("A", "B"), spec("B", "A")}, true, "cycle"},
		"task-2":                    {[]goal.Spec{spec("A", "task-2"), spec("B", "TASK-1")}, true, "cycle"},
		"far round":                 {[]goal.Spec{spec("A", "3"), spec("B", "0"), spec("C", "1"), spec("D", "2")}, true, "cycle"},
		"unknown":                   {[]goal.Spec{spec("A", "Z")}, false, `"Z", which is no task`},
		"unknown parent":            {[]goal.Spec{parent(spec("A"), "Z")}, false, `"Z" is no task`},
		"out of range":              {[]goal.Spec{spec("A", "1"), spec("task-9", "task-3")}, false, "no task"},
		"two of one title":          {[]goal.Spec{spec("A"), spec("A"), spec("C", "A")}, false, "no task"},
		"empty title":               {[]goal.Spec{spec(" ")}, false, "empty"},
		"priority":                  {[]goal.Spec{{Title: "A", Description: "d", Priority: 101}}, false, "priority 101"},
	} {
		if got := goal.Cyclic(tt.specs); got != tt.cyclic {
			t.Errorf("%s: cyclic %t, want %t", name, got, tt.cyclic)
		}
		tasks, err := goal.Decompose("g", "ada", 2, tt.specs, at)
		if tt.fault == "" && err != nil || tt.fault != "" && (api.CodeOf(err) != api.Invalid || !strings.Contains(strings.Join(api.Wire(err).Details, "\n"), tt.fault)) {
			t.Errorf("%s: %v, want %q", name, err, tt.fault)
		}
		if tt.fault != "" && tasks != nil {
			t.Errorf("%s: %d tasks all the same", name, len(tasks))
		}
	}
	got, err := goal.Decompose("g", "ada", 2, []goal.Spec{spec(" A "), parent(spec("B", "A", "0", "task-1"), "A")}, at)
	want := []goal.Task{
		{ID: "g-2-1", Version: 2, Number: 1, Title: "A", Description: "d", Status: api.TaskPending, Role: "generalist", Assignee: "ada", TimeoutMS: 300_000, CreatedAt: at},
		{ID: "g-2-2", Parent: "g-2-1", Version: 2, Number: 2, Title: "B", Description: "d", Status: api.TaskBlocked, Role: "generalist", Assignee: "ada", Dependencies: []string{"g-2-1"}, TimeoutMS: 300_000, CreatedAt: at},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

const sound = `{"analysis":"a","strategy":"s","customRoles":[{"name":"writer","description":"d","systemPrompt":"p","rationale":"r","allowedTools":["exec"]}],
	"tasks":[{"title":" one ","description":"d","agentRole":"writer","dependencies":[],"estimatedCostCents":5,"priority":50,"timeoutMs":1000},
	{"title":"two","description":"d","agentRole":"generalist","dependencies":[0],"estimatedCostCents":7,"priority":250,"timeoutMs":60000}],
	"risks":["r"],"estimatedTotalCostCents":10,"estimatedTimeMinutes":3}`

// bent returns the sound plan with one value replaced, at a path as "tasks.0.title".
func bent(t *testing.T, path string, v any) string {
	t.Helper()
	var plan any
	if err := json.Unmarshal([]byte(sound), &plan); err != nil {
		t.Fatal(err)
	}
	keys := strings.Split(path, ".")
	var set func(at any, keys []string) any
	set = func(at any, keys []string) any {
		if len(keys) == 0 {
			return v
		}
		switch x := at.(type) {
		case map[string]any:
			x[keys[0]] = set(x[keys[0]], keys[1:])
			if len(keys) == 1 && v == nil {
				delete(x, keys[0])
			}
		case []any:
			var n int
			if _, err := fmt.Sscan(keys[0], &n); err != nil {
				t.Fatal(err)
			}
			x[n] = set(x[n], keys[1:])
		}
		return at
	}
	out, err := json.Marshal(set(plan, keys))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestParsePlan checks the vectors V-34 (docs/reference/goals.md, Test vectors): the
// faults of a plan.
func TestParsePlan(t *testing.T) {
	t.Parallel()
	many, _ := json.Marshal(slices.Repeat([]map[string]any{{"title": "t", "description": "d", "agentRole": "r", "timeoutMs": 1}}, 21))
	role := map[string]any{"name": "writer", "description": "d", "systemPrompt": "p"}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", " ", "answer is empty"},
		{"not JSON", "I would write it", "not a JSON object"},
		{"a list", "[]", "not a JSON object"},
		{"a text", `"x"`, "not a JSON object"},
		{"null", "null", "not a JSON object"},
		{"two objects", sound + sound, "not a JSON object"},
		{"too long", strings.Repeat(" ", 10) + `{"analysis":"` + strings.Repeat("x", 70_000) + `"}`, "bytes"},
		{"not UTF-8", "{\"analysis\":\"\xff\"}", "UTF-8"},
		{"no analysis", bent(t, "analysis", nil), "analysis is missing"},
		{"blank strategy", bent(t, "strategy", "  "), "strategy is missing or empty"},
		{"no tasks", bent(t, "tasks", nil), "tasks is missing"},
		{"empty tasks", bent(t, "tasks", []any{}), "tasks is empty"},
		{"too many tasks", bent(t, "tasks", json.RawMessage(many)), "21 tasks"},
		{"no title", bent(t, "tasks.0.title", nil), "tasks[0].title is missing"},
		{"no role", bent(t, "tasks.1.agentRole", " "), "tasks[1].agentRole"},
		{"a title that is a number", bent(t, "tasks.0.title", 5), "tasks.title of the plan is a number"},
		{"cost -1", bent(t, "tasks.0.estimatedCostCents", -1), "estimatedCostCents is -1"},
		{"cost without end", bent(t, "tasks.0.estimatedCostCents", int64(1)<<60), "estimatedCostCents is"},
		{"total -1", bent(t, "estimatedTotalCostCents", -1), "estimatedTotalCostCents is -1"},
		{"minutes -1", bent(t, "estimatedTimeMinutes", -1), "estimatedTimeMinutes is -1"},
		{"half a cent", bent(t, "tasks.0.estimatedCostCents", 0.5), "number 0.5"},
		{"priority -1", bent(t, "tasks.0.priority", -1), "priority is -1"},
		{"timeout 0", bent(t, "tasks.0.timeoutMs", 0), "timeoutMs is 0"},
		{"no timeout", bent(t, "tasks.0.timeoutMs", nil), "timeoutMs is 0"},
		{"a day", bent(t, "tasks.0.timeoutMs", 86_400_000), "timeoutMs is 86400000"},
		{"each other", bent(t, "tasks.0.dependencies", []int{1}), "cycle"},
		{"itself", bent(t, "tasks.0.dependencies", []int{0}), "itself"},
		{"index 99", bent(t, "tasks.1.dependencies", []int{99}), "out-of-range"},
		{"twice", bent(t, "tasks.1.dependencies", []int{0, 0}), "duplicate"},
		{"a title as dependency", bent(t, "tasks.1.dependencies", []string{"one"}), "dependencies of the plan is a string"},
		{"two roles of a name", bent(t, "customRoles", []any{role, role}), "duplicate"},
		{"six roles", bent(t, "customRoles", slices.Repeat([]any{role}, 6)), "6 roles"},
		{"a risk of nothing", bent(t, "risks", []string{""}), "risks[0]"},
		{"NUL", bent(t, "analysis", "a\x00"), "U+0000"},
	} {
		if _, err := goal.ParsePlan(tt.text); api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, text := range []string{sound, "Here it is:\n```json\n" + sound + "\n```\nGood luck."} {
		d, err := goal.ParsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		if d.Total() != 12*api.Cent || d.Tasks[0].Title != "one" || d.Roles[0].Name != "writer" {
			t.Errorf("total %s of %+v", d.Total(), d)
		}
		specs := d.Specs()
		want := goal.Spec{Title: "two", Description: "d", Role: "generalist", Dependencies: []string{"#0"}, Priority: 100, Cost: 7 * api.Cent, TimeoutMS: 60_000, MaxRetries: 3}
		if diff := cmp.Diff(want, specs[1]); diff != "" {
			t.Errorf("cost, timeout and retries of a task (-want +got):\n%s", diff)
		}
	}
	if d, err := goal.ParsePlan(bent(t, "estimatedTotalCostCents", 99)); err != nil || d.Total() != 99*api.Cent {
		t.Errorf("a plan dearer than its tasks: %s, %v", d.Total(), err)
	}
	if _, err := goal.Decompose("g", "ada", 1, goal.One("t", "d").Specs(), at); err != nil {
		t.Errorf("the plan of one task: %v", err)
	}
}

// FuzzParsePlan checks that a plan without faults can be decomposed.
func FuzzParsePlan(f *testing.F) {
	f.Add(sound)
	f.Add(`{"tasks":[{"dependencies":[0]}]}`)
	f.Add("```{}```")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := goal.ParsePlan(text)
		if err != nil {
			if api.CodeOf(err) != api.Invalid {
				t.Errorf("got %v, want invalid", err)
			}
			return
		}
		if _, err := goal.Decompose("g", "ada", 1, d.Specs(), at); err != nil {
			t.Errorf("a plan that passed is no graph: %v\n%s", err, text)
		}
		if total := d.Total(); total < 0 || total > api.MaxMicros {
			t.Errorf("it costs %d", total)
		}
		if _, err := d.Hash(); err != nil {
			t.Error(err)
		}
	})
}

// TestShouldReplan checks the vectors V-34 (docs/reference/goals.md, Test vectors): the
// triggers of another plan.
func TestShouldReplan(t *testing.T) {
	t.Parallel()
	breach := func(actual, estimate api.Micros) goal.Trigger {
		return goal.Trigger{Cause: goal.BudgetBreach, Actual: actual, Estimate: estimate}
	}
	for _, tt := range []struct {
		name string
		t    goal.Trigger
		left int
		want bool
	}{
		{"breach 151/100", breach(151, 100), 1, true},
		{"breach 150/100", breach(150, 100), 1, false},
		{"breach 1/0", breach(1, 0), 1, true},
		{"breach 0/-100", breach(0, -100), 1, false},
		{"none left", breach(151, 100), 0, false},
		{"conflict 0.55", goal.Trigger{Cause: goal.RequirementChange, Conflict: 0.55}, 1, true},
		{"conflict 0.54", goal.Trigger{Cause: goal.RequirementChange, Conflict: 0.54}, 1, false},
		{"opportunity", goal.Trigger{Cause: goal.Opportunity, Suggestion: strings.Repeat("é", 24)}, 2, true},
		{"opportunity with one left", goal.Trigger{Cause: goal.Opportunity, Suggestion: strings.Repeat("x", 24)}, 1, false},
		{"opportunity in 23 characters", goal.Trigger{Cause: goal.Opportunity, Suggestion: strings.Repeat("x", 23) + "  "}, 2, false},
		{"failure", goal.Trigger{Cause: goal.TaskFailure, Task: "t", Error: "e"}, 1, true},
		{"failure of no task", goal.Trigger{Cause: goal.TaskFailure, Error: "e"}, 1, false},
		{"failure without an error", goal.Trigger{Cause: goal.TaskFailure, Task: "t"}, 1, false},
		{"environment", goal.Trigger{Cause: goal.EnvironmentChange, Resource: "r", Error: "e"}, 1, true},
		{"environment without an error", goal.Trigger{Cause: goal.EnvironmentChange, Resource: "r"}, 1, false},
		{"nothing", goal.Trigger{}, 3, false},
	} {
		if got := goal.ShouldReplan(tt.t, tt.left); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestHeuristics(t *testing.T) {
	t.Parallel()
	for words, want := range map[int]int{1: 2, 11: 2, 12: 4, 23: 4, 24: 5, 39: 5, 40: 6, 400: 6} {
		if got := goal.StepsByWords(strings.Repeat("word ", words)); got != want {
			t.Errorf("%d words: %d steps, want %d", words, got, want)
		}
	}
	for _, tt := range []struct {
		text  string
		tools int
		want  int
	}{
		{"x", 0, 1},
		{strings.Repeat("x", 120), 0, 1},
		{strings.Repeat("x", 121), 0, 2},
		{strings.Repeat("x", 321), 0, 3},
		{"read and write", 0, 2},
		{"Deploy it", 2, 2},
		{"sand", 0, 1},
		{"Deploy it, then test", 3, 4},
		{strings.Repeat("research and test ", 20), 9, 6},
	} {
		if got := goal.Complexity(tt.text, tt.tools); got != tt.want {
			t.Errorf("%.30q with %d tools: %d, want %d", tt.text, tt.tools, got, tt.want)
		}
	}
}
