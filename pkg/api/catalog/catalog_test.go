package catalog_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api/catalog"
)

// TestCounts checks the counts of docs/reference/platform.md, Tool catalogue.
func TestCounts(t *testing.T) {
	t.Parallel()
	risks, categories := map[catalog.Risk]int{}, map[catalog.Category]int{}
	status, names := []string{}, map[string]bool{}
	for _, tool := range catalog.Tools() {
		risks[tool.Risk]++
		categories[tool.Category]++
		if tool.Status {
			status = append(status, tool.Name)
		}
		if names[tool.Name] || tool.Does == "" || tool.Owner == "" || tool.Effect == "" {
			t.Errorf("%s is there twice or lacks what every tool has: %+v", tool.Name, tool)
		}
		names[tool.Name] = true
		if tool.Effect == catalog.Pure && tool.Mutating || tool.Status && tool.Mutating || tool.Spends && tool.Effect != catalog.Keyed {
			t.Errorf("%s contradicts itself: %+v", tool.Name, tool)
		}
	}
	if diff := cmp.Diff(map[catalog.Risk]int{catalog.Safe: 34, catalog.Caution: 25, catalog.Dangerous: 18}, risks); diff != "" {
		t.Errorf("risks (-want +got):\n%s", diff)
	}
	want := map[catalog.Category]int{
		catalog.SelfMod: 13, catalog.Conway: 11, catalog.Memory: 9, catalog.Replication: 8, catalog.Git: 7, catalog.Orchestration: 6,
		catalog.VM: 5, catalog.Survival: 5, catalog.Registry: 5, catalog.Financial: 4, catalog.Skills: 4,
	}
	if diff := cmp.Diff(want, categories); diff != "" {
		t.Errorf("categories (-want +got):\n%s", diff)
	}
	// See docs/reference/loop.md, Tool classes.
	idle := strings.Fields(`check_credits check_usdc_balance system_synopsis review_memory list_children check_child_status
		list_sandboxes list_models list_skills git_status git_log check_reputation recall_facts recall_procedure heartbeat_ping
		check_inference_spending orchestrator_status list_goals get_plan`)
	slices.Sort(idle)
	slices.Sort(status)
	if diff := cmp.Diff(idle, status); diff != "" {
		t.Errorf("tools that only look at the agent's own state (-want +got):\n%s", diff)
	}
}

// TestParse checks common errors of models, and arguments that two parsers could read
// differently (V-39; docs/reference/platform.md, two readings).
func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ tool, args, says string }{
		{"check_credits", ``, ""},
		{"check_credits", ` {} `, ""},
		{"check_credits", `null`, "not a JSON object"},
		{"check_credits", `[]`, "not a JSON object"},
		{"check_credits", `{"agent":"bob"}`, `no argument "agent"`},
		{"exec", `{"command":"ls","timeout":600}`, ""},
		{"exec", `{"command":"ls"}{"command":"rm -rf /"}`, "more than one JSON value"},
		{"exec", `{"command":"ls"`, "not valid JSON"},
		{"exec", `{"command":"ls","Command":"rm -rf /"}`, `no argument "Command"`},
		{"exec", `{"command":"ls","command":"rm"}`, "given twice"},
		{"exec", `{"command":"ls","c\u006fmmand":"rm"}`, "given twice"},
		{"exec", `{"command":null}`, "command is null"},
		{"exec", `{"command":" "}`, "command is empty"},
		{"exec", `{"command":"a\u0000b"}`, "U+0000"},
		{"exec", `{"command":"ls","timeout":1.5}`, "whole number"},
		{"exec", `{"command":"ls","timeout":601}`, "at most 600"},
		{"exec", `{"command":"` + strings.Repeat("x", 32<<10+1) + `"}`, "at most 32768"},
		{"exec", "{\"command\":\"\xff\"}", "not UTF-8"},
		{"write_file", `{"path":123,"content":"x"}`, "must be of type string"},
		{"write_file", `{"path":"a","content":"\u0000"}`, ""},
		{"write_file", `{"path":"a"}`, "content is missing"},
		{"sleep", `{"duration_seconds":1e400}`, "too large"},
		{"sleep", `{"duration_seconds":"abc"}`, "must be of type integer"},
		{"remember_fact", `{"category":"gossip","key":"k","value":"v"}`, "one of self"},
		{"remember_fact", `{"category":"self","key":"k","value":"v","confidence":1.1}`, "at most 1"},
		{"git_commit", `{"message":"m","add_all":"yes"}`, "must be of type boolean"},
	} {
		tool, ok := catalog.Named(tt.tool)
		if !ok {
			t.Fatalf("there is no %s", tt.tool)
		}
		_, err := tool.Parse(json.RawMessage(tt.args))
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s takes %.80s with %v, want %q", tt.tool, tt.args, err, tt.says)
		}
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	tool, _ := catalog.Named("git_commit")
	a, err := tool.Parse(json.RawMessage(`{"message":"m","add_all":false}`))
	if err != nil {
		t.Fatal(err)
	}
	if a.String("message") != "m" || a.Bool("add_all", true) || a.String("path") != "" || a.Has("path") || a.Int("limit", 3) != 3 || a.Float("x", .5) != .5 {
		t.Errorf("got %+v", a)
	}
	if _, ok := catalog.Named("rm"); ok {
		t.Error("there is a tool rm")
	}
}

// FuzzParse checks that Parse does not panic, and that accepted arguments are one
// object that encoding/json reads in the same way.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"path":"a"}`, `{"command":"ls","Command":"x"}`, `{"path":"a","path":"b"}`, `null`, `{"duration_seconds":1}`, `{"":0}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, args string) {
		for _, tool := range catalog.Tools() {
			if _, err := tool.Parse(json.RawMessage(args)); err != nil || strings.TrimSpace(args) == "" {
				continue
			}
			var object map[string]json.RawMessage
			if err := json.Unmarshal([]byte(args), &object); err != nil {
				t.Fatalf("%s takes %q, which is no object: %v", tool.Name, args, err)
			}
			again, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tool.Parse(again); err != nil {
				t.Errorf("%s takes %q and not %s: %v", tool.Name, args, again, err)
			}
		}
	})
}
