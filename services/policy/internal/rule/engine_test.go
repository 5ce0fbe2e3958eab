package rule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/policy/internal/rule"
)

func fixed(id string, priority int, f *rule.Finding) rule.Rule {
	return rule.Rule{ID: id, Priority: priority, Check: func(*rule.Call) (*rule.Finding, error) { return f, nil }}
}

// TestEngine tests the vectors V-09 (docs/reference/policy.md, Test vectors), and rules
// that fail.
func TestEngine(t *testing.T) {
	t.Parallel()
	no := &rule.Finding{Action: api.Deny, Code: "NO", Message: "no"}
	wait := &rule.Finding{Action: api.Quarantine, Code: "WAIT", Message: "wait"}
	yes := &rule.Finding{Action: api.Allow, Code: "YES", Message: "yes"}
	fails := rule.Rule{ID: "fails", Check: func(*rule.Call) (*rule.Finding, error) { return nil, errors.New("disk gone") }}
	panics := rule.Rule{ID: "panics", Check: func(*rule.Call) (*rule.Finding, error) {
		var none map[string][]int
		return nil, errors.New(string(rune(none["x"][3])))
	}}
	only := func(r rule.Rule, s rule.Selector) rule.Rule {
		r.Applies = s
		return r
	}
	for name, c := range map[string]struct {
		rules                []rule.Rule
		code                 rule.Code
		action               api.Action
		evaluated, triggered []string
	}{
		"no rules allow":          {nil, rule.Allowed, api.Allow, []string{}, nil},
		"by priority":             {[]rule.Rule{fixed("c", 3, nil), fixed("b", 2, nil), fixed("a", 1, nil)}, rule.Allowed, api.Allow, []string{"a", "b", "c"}, nil},
		"equal priorities":        {[]rule.Rule{fixed("z", 1, nil), fixed("a", 1, nil)}, rule.Allowed, api.Allow, []string{"z", "a"}, nil},
		"first deny stops":        {[]rule.Rule{fixed("a", 1, no), fixed("b", 2, nil)}, "NO", api.Deny, []string{"a"}, []string{"a"}},
		"quarantine is kept":      {[]rule.Rule{fixed("a", 1, wait), fixed("b", 2, nil)}, "WAIT", api.Quarantine, []string{"a", "b"}, []string{"a"}},
		"deny after a quarantine": {[]rule.Rule{fixed("a", 1, wait), fixed("b", 2, no)}, "NO", api.Deny, []string{"a", "b"}, []string{"a", "b"}},
		"allow has no effect":     {[]rule.Rule{fixed("a", 1, yes), fixed("b", 2, no)}, "NO", api.Deny, []string{"a", "b"}, []string{"b"}},
		"an error denies":         {[]rule.Rule{fails}, rule.RuleError, api.Deny, []string{"fails"}, []string{"fails"}},
		"a panic denies":          {[]rule.Rule{panics}, rule.RuleError, api.Deny, []string{"panics"}, []string{"panics"}},
		"selected by name":        {[]rule.Rule{only(fixed("a", 1, no), rule.Selector{Tools: []string{"check_credits"}})}, "NO", api.Deny, []string{"a"}, []string{"a"}},
		"not selected by name":    {[]rule.Rule{only(fixed("a", 1, no), rule.Selector{Tools: []string{"exec"}})}, rule.Allowed, api.Allow, []string{}, nil},
		"selected by category":    {[]rule.Rule{only(fixed("a", 1, no), rule.Selector{Categories: []catalog.Category{catalog.Conway}})}, "NO", api.Deny, []string{"a"}, []string{"a"}},
		"selected by risk":        {[]rule.Rule{only(fixed("a", 1, no), rule.Selector{Risks: []catalog.Risk{catalog.Safe}})}, "NO", api.Deny, []string{"a"}, []string{"a"}},
		"not selected by risk":    {[]rule.Rule{only(fixed("a", 1, no), rule.Selector{Risks: []catalog.Risk{catalog.Dangerous}})}, rule.Allowed, api.Allow, []string{}, nil},
		"two quarantines":         {[]rule.Rule{fixed("a", 1, wait), fixed("b", 1, &rule.Finding{Action: api.Quarantine, Code: "LATER"})}, "WAIT", api.Quarantine, []string{"a", "b"}, []string{"a"}},
		"an error after an allow": {[]rule.Rule{fixed("a", 0, nil), fails}, rule.RuleError, api.Deny, []string{"a", "fails"}, []string{"fails"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := rule.New(catalog.ByName(), c.rules...)
			if err != nil {
				t.Fatal(err)
			}
			d := b.Evaluate(call("check_credits", nil))
			if d.Code != c.code || d.Action != c.action {
				t.Errorf("got %s %s, want %s %s", d.Action, d.Code, c.action, c.code)
			}
			if diff := cmp.Diff(c.evaluated, d.RulesEvaluated); diff != "" {
				t.Errorf("evaluated (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.triggered, d.RulesTriggered); diff != "" {
				t.Errorf("triggered (-want +got):\n%s", diff)
			}
			if d.Code == rule.RuleError {
				if !strings.Contains(d.Message, d.RulesTriggered[0]) || strings.Contains(d.Message, "goroutine") || strings.Contains(d.Message, "disk") {
					t.Errorf("message %q must name the rule and nothing from inside it", d.Message)
				}
				if d.Err == nil {
					t.Error("no cause for the log")
				}
			}
		})
	}
}

// TestDangerousTools tests the vector V-12, authority (docs/reference/policy.md, Test
// vectors), for the rule alone: a dangerous tool needs authority 60.
func TestDangerousTools(t *testing.T) {
	t.Parallel()
	b, err := rule.New(map[string]catalog.Tool{"spawn_child": {Name: "spawn_child", Risk: catalog.Dangerous}}, rule.StandardForTest("authority.external_tool_restriction"))
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[api.PrincipalKind]rule.Code{
		api.Creator: rule.Allowed, api.Self: rule.Allowed, api.HeartbeatKind: rule.ExternalDangerous,
		api.Peer: rule.ExternalDangerous, api.External: rule.ExternalDangerous, "": rule.ExternalDangerous,
	} {
		in := call("spawn_child", nil)
		in.Args, in.By.Kind = nil, kind
		wantCode(t, string(kind), b.Evaluate(in), want)
	}
}

// TestSelfModification tests the vectors V-12, own files (docs/reference/policy.md, Test
// vectors), for the rule alone. In the standard engine, path.protected_files is evaluated
// first.
func TestSelfModification(t *testing.T) {
	t.Parallel()
	b, err := rule.New(catalog.ByName(), rule.StandardForTest("authority.self_mod_from_external"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]rule.Code{
		"~/.automaton/SOUL.md": rule.ExternalSelfMod, "src/policy-rules/financial.ts": rule.ExternalSelfMod, "constitution.md": rule.ExternalSelfMod,
		"heartbeat.yml": rule.ExternalSelfMod, "wallet.json": rule.ExternalSelfMod, "self-mod/code.ts": rule.ExternalSelfMod,
		".git/config": rule.ExternalSelfMod, "sub/.git/hooks/pre-commit": rule.ExternalSelfMod, ".gitconfig": rule.ExternalSelfMod, "skills/x/.skill.json": rule.ExternalSelfMod,
		"data/output.txt": rule.Allowed, ".github/workflows/ci.yml": rule.Allowed, ".gitignore": rule.Allowed,
	} {
		for kind, want := range map[api.PrincipalKind]rule.Code{api.External: want, api.HeartbeatKind: want, api.Self: rule.Allowed, api.Creator: rule.Allowed} {
			in := call("write_file", map[string]any{"path": path, "content": "x"})
			in.By.Kind = kind
			wantCode(t, string(kind)+" "+path, b.Evaluate(in), want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]rule.Rule{
		"an id twice": {fixed("a", 1, nil), fixed("a", 2, nil)},
		"no id":       {fixed("", 1, nil)},
		"no check":    {{ID: "a"}},
	} {
		if _, err := rule.New(catalog.ByName(), rules...); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	a, b := standard(t), standard(t)
	if a.Version() != b.Version() || len(a.Version()) != 16 {
		t.Errorf("got %q and %q, want one version of 16 digits", a.Version(), b.Version())
	}
	seen := map[string]string{a.Version(): "standard"}
	changed := fixed("a", 1, nil)
	changed.Data = map[string]int{"limit": 1}
	for name, rules := range map[string][]rule.Rule{
		"no rules": nil, "one rule": {fixed("a", 1, nil)}, "other priority": {fixed("a", 2, nil)}, "other data": {changed},
	} {
		engine, err := rule.New(catalog.ByName(), rules...)
		if err != nil {
			t.Fatal(err)
		}
		if same, ok := seen[engine.Version()]; ok {
			t.Errorf("%s has the version of %s", name, same)
		}
		seen[engine.Version()] = name
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	b := standard(t)
	infos := b.Describe()
	ids := make([]string, len(infos))
	for i, r := range infos {
		ids[i] = r.ID
		if r.Does == "" || len(r.Codes) == 0 {
			t.Errorf("%s does not say what it does", r.ID)
		}
	}
	want := []string{
		"catalogue.known_tool", "validate.schema", "definition.granted_tools",
		"validate.package_name", "validate.skill_name", "validate.git_hash", "validate.cron_expression", "validate.address_format", "validate.git_address",
		"path.protected_files", "path.read_sensitive", "path.traversal_detection",
		"command.shell_injection", "command.forbidden_patterns", "network.granted",
		"authority.minimum", "authority.mcp", "authority.external_tool_restriction", "authority.self_mod_from_external", "authority.spending",
		"rate.self_mod_hourly", "rate.messages_hourly", "rate.spawn_daily", "rate.genesis_prompt_daily",
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}
