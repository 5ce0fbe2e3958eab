package builtin_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
	"github.com/anima-run/anima/services/loop/internal/tools/toolstest"
)

// schema is the part of JSON Schema that the tools use. Decoding refuses other keywords.
type schema struct {
	Type                 string            `json:"type"`
	Description          string            `json:"description"`
	AdditionalProperties *bool             `json:"additionalProperties"`
	Required             []string          `json:"required"`
	Properties           map[string]schema `json:"properties"`
	Enum                 []string          `json:"enum"`
	MinLength            int               `json:"minLength"`
	MaxLength            *int              `json:"maxLength"`
	Minimum              *float64          `json:"minimum"`
	Maximum              *float64          `json:"maximum"`
}

func schemaOf(t *testing.T, tool engine.Tool) schema {
	t.Helper()
	var s schema
	dec := json.NewDecoder(strings.NewReader(string(tool.Schema)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		t.Fatalf("schema of %s: %v", tool.Name, err)
	}
	if s.Type != "object" || s.AdditionalProperties == nil || *s.AdditionalProperties || s.Properties == nil {
		t.Fatalf("schema of %s does not describe a closed object: %s", tool.Name, tool.Schema)
	}
	for _, r := range s.Required {
		if _, ok := s.Properties[r]; !ok {
			t.Errorf("%s requires %s and does not describe it", tool.Name, r)
		}
	}
	return s
}

// takes reports whether a value fits the schema.
func (s schema) takes(v any) bool {
	switch s.Type {
	case "object":
		o, ok := v.(map[string]any)
		if !ok {
			return false
		}
		for _, r := range s.Required {
			if _, there := o[r]; !there {
				return false
			}
		}
		for k, v := range o {
			if p, known := s.Properties[k]; !known || !p.takes(v) {
				return false
			}
		}
		return true
	case "string":
		text, ok := v.(string)
		n := utf8.RuneCountInString(text)
		return ok && n >= s.MinLength && (s.MaxLength == nil || n <= *s.MaxLength) && (s.Enum == nil || slices.Contains(s.Enum, text))
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "integer", "number":
		number, ok := v.(json.Number)
		if !ok {
			return false
		}
		exact, ok := new(big.Rat).SetString(number.String())
		if !ok || s.Type == "integer" && !exact.IsInt() {
			return false
		}
		return (s.Minimum == nil || exact.Cmp(new(big.Rat).SetFloat64(*s.Minimum)) >= 0) &&
			(s.Maximum == nil || exact.Cmp(new(big.Rat).SetFloat64(*s.Maximum)) <= 0)
	}
	panic("a type that no tool has: " + s.Type)
}

// values returns values to try for an argument, as JSON; "" omits the argument.
func (s schema) values() []string {
	out := []string{"", `null`, `true`, `[]`, `{}`, `""`, `"x"`, `"é"`, `0`, `-1`, `1`, `0.5`, `1e400`, `99999999999999999999`}
	for _, e := range s.Enum {
		out = append(out, fmt.Sprintf("%q", e))
	}
	if s.MaxLength != nil {
		for _, n := range []int{*s.MaxLength, *s.MaxLength + 1} {
			out = append(out, `"`+strings.Repeat("é", n)+`"`)
		}
	}
	for _, bound := range []*float64{s.Minimum, s.Maximum} {
		if bound != nil {
			for _, d := range []float64{-1, 0, 1} {
				out = append(out, fmt.Sprint(int64(*bound+d)))
			}
		}
	}
	return out
}

// TestSchemas tests that the check of a tool accepts the values that its schema accepts.
// It varies one argument at a time, with the others valid or missing.
func TestSchemas(t *testing.T) {
	t.Parallel()
	for name, tool := range newBench(t).Tools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := schemaOf(t, tool)
			taken := 0
			try := func(args string) {
				t.Helper()
				dec := json.NewDecoder(strings.NewReader(args))
				dec.UseNumber()
				var v any
				if err := dec.Decode(&v); err != nil {
					t.Fatalf("sample %s: %v", args, err)
				}
				err := tool.Check(json.RawMessage(args))
				// Two tools have checks that a schema cannot express.
				narrower := name == "git_branch" || name == "install_npm_package"
				if fits := s.takes(v); fits != (err == nil) && (!narrower || err == nil) {
					t.Errorf("%.200s fits the schema: %t; check says %v", args, fits, err)
				}
				if err == nil {
					taken++
				}
			}
			for _, whole := range []string{`null`, `[]`, `"x"`, `1`, `true`, `{}`, `{"other":1}`} {
				try(whole)
			}
			for one, p := range s.Properties {
				for _, v := range p.values() {
					for _, rest := range []string{"good", "required", "none"} {
						object := []string{}
						if v != "" {
							object = append(object, fmt.Sprintf("%q:%s", one, v))
						}
						for other, o := range s.Properties {
							if other != one && (rest == "good" || rest == "required" && slices.Contains(s.Required, other)) {
								object = append(object, fmt.Sprintf("%q:%s", other, o.good()))
							}
						}
						try("{" + strings.Join(object, ",") + "}")
					}
				}
			}
			if taken == 0 {
				t.Error("no sample is good: the test proves nothing")
			}
		})
	}
}

// good returns a valid value, as JSON.
func (s schema) good() string {
	switch {
	case s.Type == "boolean":
		return "true"
	case s.Minimum != nil && *s.Minimum > 1:
		return fmt.Sprint(*s.Minimum)
	case s.Type != "string":
		return "1"
	case s.Enum != nil:
		return fmt.Sprintf("%q", s.Enum[0])
	}
	return `"x"`
}

// FuzzCheck tests that accepted arguments are one JSON object that all parsers read
// alike, and that no arguments make a check panic.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{}`, `{"path":"a"}`, `{"command":"ls","Command":"x"}`, `{"path":"a","path":"b"}`, `null`, `{"duration_seconds":1}`, `{"":0}`} {
		f.Add(s)
	}
	tools := builtin.All(tools.Config{}, nil, nil)
	f.Fuzz(func(t *testing.T, args string) {
		for _, tool := range tools {
			if tool.Check(json.RawMessage(args)) != nil || strings.TrimSpace(args) == "" { // empty arguments mean {}
				continue
			}
			var object map[string]json.RawMessage
			if err := json.Unmarshal([]byte(args), &object); err != nil {
				t.Fatalf("%s takes %q, which is no object: %v", tool.Name, args, err)
			}
			if again, err := json.Marshal(object); err != nil || tool.Check(again) != nil {
				t.Errorf("%s takes %q and not %s", tool.Name, args, again)
			}
		}
	})
}

// FuzzRun tests that no arguments make a tool panic, and that refused arguments have no
// effect (docs/reference/loop.md, invalid arguments). Tools that run commands or contact
// other machines are omitted.
func FuzzRun(f *testing.F) {
	names := []string{}
	for name := range builtin.All(tools.Config{}, nil, nil) {
		if !slices.Contains([]string{"exec", "install_npm_package", "git_clone", "git_push"}, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i := range names {
		for _, s := range []string{
			`{}`, `{"path":"a/b.md","content":"x","description":"d"}`, `{"path":"../../x","content":"x","description":"\u0000"}`, `{"path":"a","path":"b"}`,
			`{"path":".","action":"create","branch_name":"a..b"}`, `{"message":"m","add_all":false}`, `{"new_prompt":"p","reason":"r"}`, `{"limit":1e99}`, `null`,
			`{"duration_seconds":1}`, `{"category":"self","key":"k","value":"v","confidence":"NaN"}`, `{"to_address":"0x","content":"hi"}`,
		} {
			f.Add(uint8(i), s)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, args string) {
		name := names[int(which)%len(names)]
		w := &world{}
		b := bench{w, toolstest.New(t)}
		b.Tools = builtin.All(tools.Config{Now: time.Now}, w, w)
		one := b.Tools[name]
		fits := one.Check(json.RawMessage(args)) == nil
		out, err := one.Run(t.Context(), engine.Call{Agent: b.Bench.Agent, Turn: "r1.1", Key: "r1.1.0", Args: json.RawMessage(args), At: at})
		if fits {
			return
		}
		files, rerr := os.ReadDir(b.Bench.Agent.Workspace)
		done := len(b.alarms) + len(b.genesis) + b.balances + len(files)
		if err == nil || rerr != nil || out.Text != "" || done != 0 {
			t.Errorf("%s ran with %q, which it refuses: %q, %v", name, args, out.Text, err)
		}
	})
}
