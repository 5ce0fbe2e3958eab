package simulated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"
)

// compiled is a compiled script.
type compiled struct {
	Script

	rules []rule // the last one is the default and matches each request
}

type rule struct {
	lastUser, system *regexp.Regexp // nil matches each text
	steps            []*step
}

type step struct {
	Step
	text  *template.Template
	calls []callTemplate
}

type callTemplate struct {
	name      string
	arguments any // decoded JSON with its strings compiled to templates
}

// templateData is the data of templates.
type templateData struct {
	User, ToolResult string
	Match            []string
}

func compile(s Script) (*compiled, error) {
	if s.Model == "" {
		return nil, errors.New("the script has no model")
	}
	if s.ContextWindow < 0 {
		return nil, errors.New("context_window cannot be negative")
	}
	p := &compiled{Script: s}
	for i, r := range s.Rules {
		if r.When == (When{}) {
			return nil, fmt.Errorf("rules[%d]: when needs last_user or system; use default for what matches everything", i)
		}
		if len(r.Steps) == 0 {
			return nil, fmt.Errorf("rules[%d]: it has no steps", i)
		}
		c, err := compileRule(r.When, r.Plot)
		if err != nil {
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		p.rules = append(p.rules, c)
	}
	c, err := compileRule(When{}, s.Default)
	if err != nil {
		return nil, fmt.Errorf("default: %w", err)
	}
	p.rules = append(p.rules, c)
	return p, nil
}

func compileRule(w When, plot Plot) (rule, error) {
	var r rule
	var err error
	if w.LastUser != "" {
		if r.lastUser, err = regexp.Compile(w.LastUser); err != nil {
			return r, fmt.Errorf("last_user: %w", err)
		}
	}
	if w.System != "" {
		if r.system, err = regexp.Compile(w.System); err != nil {
			return r, fmt.Errorf("system: %w", err)
		}
	}
	groups := 1
	if r.lastUser != nil {
		groups = r.lastUser.NumSubexp() + 1
	}
	sample := templateData{Match: make([]string, groups)}
	for i, s := range plot.Steps {
		c, err := compileStep(s)
		if err == nil {
			_, _, err = c.render(sample) // detects references to missing groups
		}
		if err != nil {
			return r, fmt.Errorf("steps[%d]: %w", i, err)
		}
		r.steps = append(r.steps, c)
	}
	return r, nil
}

func compileStep(s Step) (*step, error) {
	c := &step{Step: s}
	if s.DelayMS < 0 || s.DeltaMS < 0 {
		return nil, errors.New("delays cannot be negative")
	}
	if f := s.Error; f != nil && (f.Status < 400 || f.Status > 599 || f.RetryAfter < 0 || f.Times < 0) {
		return nil, errors.New("error: status is 400 to 599, retry_after and times are not negative")
	}
	if s.Text == "" && len(s.ToolCalls) == 0 && (s.Error == nil || s.Error.Times > 0) {
		return nil, errors.New("it has neither text nor tool_calls, nor an error without times")
	}
	var err error
	if c.text, err = newTemplate(s.Text); err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	for i, call := range s.ToolCalls {
		if call.Name == "" {
			return nil, fmt.Errorf("tool_calls[%d]: it has no name", i)
		}
		arguments, err := compileArguments(call.Arguments)
		if err != nil {
			return nil, fmt.Errorf("tool_calls[%d]: %w", i, err)
		}
		c.calls = append(c.calls, callTemplate{name: call.Name, arguments: arguments})
	}
	return c, nil
}

func compileArguments(data json.RawMessage) (any, error) {
	if len(data) == 0 {
		return map[string]any{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil || object == nil {
		return nil, errors.New("arguments is not a JSON object")
	}
	return mapValues(object, func(v any) (any, error) {
		if s, ok := v.(string); ok {
			return newTemplate(s)
		}
		return v, nil
	})
}

// newTemplate compiles a template. Executing it fails on a missing key or group instead
// of writing "<no value>".
func newTemplate(text string) (*template.Template, error) {
	return template.New("").Option("missingkey=error").Parse(text)
}

// mapValues returns the value with f applied to each value in it that is neither a map
// nor a list.
func mapValues(v any, f func(any) (any, error)) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			mapped, err := mapValues(e, f)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			out[k] = mapped
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			mapped, err := mapValues(e, f)
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			out[i] = mapped
		}
		return out, nil
	}
	return f(v)
}

// render returns the step's text and the arguments of its tool calls, in order.
func (s *step) render(data templateData) (string, []string, error) {
	text, err := execute(s.text, data)
	if err != nil {
		return "", nil, fmt.Errorf("text: %w", err)
	}
	var arguments []string
	for i, c := range s.calls {
		filled, err := fill(c.arguments, data)
		if err != nil {
			return "", nil, fmt.Errorf("tool_calls[%d]: %w", i, err)
		}
		encoded, err := json.Marshal(filled)
		if err != nil {
			return "", nil, fmt.Errorf("tool_calls[%d]: %w", i, err)
		}
		arguments = append(arguments, string(encoded))
	}
	return text, arguments, nil
}

// fill executes the templates of compiled arguments. The result of a template is always a
// string, so a text cannot add JSON structure.
func fill(v any, data templateData) (any, error) {
	return mapValues(v, func(v any) (any, error) {
		if t, ok := v.(*template.Template); ok {
			return execute(t, data)
		}
		return v, nil
	})
}

func execute(t *template.Template, data templateData) (string, error) {
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", err
	}
	return b.String(), nil
}
