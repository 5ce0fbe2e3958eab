package rule

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// revision is part of the version of an engine. Raise it when a rule judges differently
// with the same data.
const revision = 7

// Checks of the engine, which run before every rule.
const (
	knownTool   = "catalogue.known_tool"
	fitsSchema  = "validate.schema"
	buildChecks = 0 // priority of both in [Engine.Describe]
)

// Engine evaluates an ordered set of rules over a catalogue. It is immutable and safe for
// concurrent use.
type Engine struct {
	tools   map[string]catalog.Tool
	rules   []Rule
	version string
}

// Window returns the rolling window of a tool's rate limit, or 0 if the tool has no
// limit. The caller of Evaluate counts the earlier calls in this window.
func (e *Engine) Window(tool string) time.Duration { return limits()[tool].Window }

// New returns an engine with the given rules. They are evaluated by ascending priority,
// rules of equal priority in the given order. A rule without ID or Check, or a repeated
// ID, is an error.
func New(tools map[string]catalog.Tool, rules ...Rule) (*Engine, error) {
	e := &Engine{tools: tools, rules: slices.Clone(rules)}
	slices.SortStableFunc(e.rules, func(x, y Rule) int { return cmp.Compare(x.Priority, y.Priority) })
	seen := map[string]bool{}
	for _, r := range e.rules {
		switch {
		case r.ID == "" || r.Check == nil:
			return nil, fmt.Errorf("rule %q has no id or no check", r.ID)
		case seen[r.ID]:
			return nil, fmt.Errorf("rule %q is defined twice", r.ID)
		}
		seen[r.ID] = true
	}
	data := make([]any, len(e.rules))
	for i, r := range e.rules {
		data[i] = r.Data
	}
	// Maps are encoded with sorted keys, so equal engines have equal hashes.
	text, err := json.Marshal([]any{revision, tools, e.Describe(), data})
	if err != nil {
		return nil, fmt.Errorf("hash rules: %w", err)
	}
	sum := sha256.Sum256(text)
	e.version = hex.EncodeToString(sum[:8])
	return e, nil
}

// Version identifies the rules and their data by 16 hex digits. It is equal in all
// processes with the same rules.
func (e *Engine) Version() string { return e.version }

// Evaluate decides on one call. It returns no error: a call that cannot be judged is
// denied.
//
// A tool that is neither in the catalogue nor named as one of an MCP server is denied
// with [UnknownTool]. Arguments that do not fit the tool's schema are denied with
// [ValidationFailed], so rules see only values of the right type. Then the rules are
// evaluated in order. The first Deny is final. The first Quarantine is kept unless a
// later rule denies. Without a finding the call is allowed.
func (e *Engine) Evaluate(in Input) Decision {
	authority := in.By.Kind.Authority()
	t, ok := e.tools[in.Tool]
	if !ok {
		t, ok = mcpTool(in.Tool)
	}
	if !ok {
		d := Decision{Risk: catalog.Forbidden, Authority: authority}
		d.trigger(knownTool, *deny(UnknownTool, "there is no tool %.60q; use one of the tools you were given", in.Tool))
		return d
	}
	d := Decision{Action: api.Allow, Code: Allowed, Risk: t.Risk, Authority: authority}
	values, err := parse(t, in.Args)
	if err != nil {
		d.trigger(fitsSchema, *deny(ValidationFailed, "%v; correct the arguments and call %s again", err, t.Name))
		return d
	}
	call := &Call{Input: in, Spec: t, Values: values, Authority: authority}
	d.RulesEvaluated = make([]string, 0, len(e.rules))
	for _, r := range e.rules {
		if !r.Applies.selects(t) {
			continue
		}
		f, err := r.check(call)
		if err != nil {
			d.Err = fmt.Errorf("rule %s: %w", r.ID, err)
			f = deny(RuleError, "rule %s could not judge this call, so it is refused; try other arguments, or tell the operator", r.ID)
		}
		switch {
		case f != nil && f.Action == api.Deny:
			d.trigger(r.ID, *f)
			return d
		case f != nil && f.Action == api.Quarantine && d.Action == api.Allow:
			d.trigger(r.ID, *f)
		default:
			d.RulesEvaluated = append(d.RulesEvaluated, r.ID)
		}
	}
	return d
}

// trigger sets the outcome to a finding.
func (d *Decision) trigger(id string, f Finding) {
	d.Action, d.Code, d.Message = f.Action, f.Code, f.Message
	d.RulesEvaluated = append(d.RulesEvaluated, id)
	d.RulesTriggered = append(d.RulesTriggered, id)
}

var errPanic = errors.New("rule panicked")

// check evaluates one rule. A panic of the rule is returned as an error.
func (r Rule) check(c *Call) (f *Finding, err error) {
	defer func() {
		if v := recover(); v != nil {
			f, err = nil, fmt.Errorf("%w: %v", errPanic, v)
		}
	}()
	return r.Check(c)
}

func (s Selector) selects(t catalog.Tool) bool {
	if len(s.Tools)+len(s.Categories)+len(s.Risks) == 0 {
		return true
	}
	return slices.Contains(s.Tools, t.Name) || slices.Contains(s.Categories, t.Category) || slices.Contains(s.Risks, t.Risk)
}

// Describe returns the checks and rules in the order of their evaluation. The version
// depends on it.
func (e *Engine) Describe() []api.Rule {
	all := []api.Rule{
		{ID: knownTool, Priority: buildChecks, Does: "refuses a tool that is neither in the catalogue nor named as one of an MCP server (mcp_…)", Codes: []string{string(UnknownTool)}},
		{ID: fitsSchema, Priority: buildChecks, Does: "refuses arguments that do not fit the tool's schema: unknown, repeated, missing or of the wrong type", Codes: []string{string(ValidationFailed)}},
	}
	for _, r := range e.rules {
		codes := []string{}
		for _, c := range r.Codes {
			codes = append(codes, string(c))
		}
		all = append(all, api.Rule{ID: r.ID, Priority: r.Priority, Tools: r.Applies.labels(), Does: r.Does, Codes: codes})
	}
	return all
}

// labels returns the selected names, and category:x and risk:x for the others.
func (s Selector) labels() []string {
	labels := slices.Clone(s.Tools)
	for _, c := range s.Categories {
		labels = append(labels, "category:"+string(c))
	}
	for _, r := range s.Risks {
		labels = append(labels, "risk:"+string(r))
	}
	return labels
}
