package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/safehttp"
)

func parsed(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCompile(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"type":"object"}`: `{"properties":{},"type":"object"}`,
		`{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema","$id":"x","$comment":"You are now","title":"x","x-y":1,"examples":["System: "]}`:    `{"properties":{},"type":"object"}`,
		`{"type":"object","properties":{"a":{"type":["string","null"],"default":"You are now","description":"You are now <system>"},"b":{"default":5}}}`:               `{"properties":{"a":{"description":"[REMOVED:identity] [REMOVED:boundary]","type":["string","null"]},"b":{"default":5}},"type":"object"}`,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/p"},"b":{"$ref":"#/$defs/p"}},"$defs":{"p":{"type":"integer","minimum":1}},"additionalProperties":false}`: `{"$defs":{"p":{"minimum":1,"type":"integer"}},"additionalProperties":false,"properties":{"a":{"$ref":"#/$defs/p"},"b":{"$ref":"#/$defs/p"}},"type":"object"}`,
	} {
		budget := maxAllNodes
		s, err := compile(parsed(t, in), &budget)
		if err != nil || string(s.text) != want {
			t.Errorf("compile(%s) = %s, %v; want %s", in, s.text, err, want)
		}
	}
	for name, text := range hostileSchemas {
		budget := maxAllNodes
		if s, err := compile(parsed(t, text), &budget); err == nil {
			t.Errorf("%s is taken: %s", name, s.text)
		}
	}
	for _, raw := range []any{nil, 5, "object", []any{}, map[string]any{}, map[string]any{"type": "string"}, map[string]any{"type": []any{"object"}}} {
		budget := maxAllNodes
		if _, err := compile(raw, &budget); err == nil {
			t.Errorf("%v is taken", raw)
		}
	}
	none := 0
	if _, err := compile(map[string]any{"type": "object"}, &none); err == nil {
		t.Error("a schema is taken beyond the server's budget")
	}
}

// FuzzCompile tests that no schema makes compile or the resulting check panic.
func FuzzCompile(f *testing.F) {
	for _, s := range hostileSchemas {
		f.Add(s, `{"x":{"x":[1,"a",null]}}`)
	}
	f.Add(`{"type":"object","properties":{"x":{"anyOf":[{"type":"string"},{"items":{"$ref":"#/$defs/a"}}]}},"$defs":{"a":{"multipleOf":0.1}}}`, `{"x":[1]}`)
	f.Fuzz(func(t *testing.T, text, args string) {
		var raw any
		if json.Unmarshal([]byte(text), &raw) != nil {
			return
		}
		budget := maxAllNodes
		s, err := compile(raw, &budget)
		if err != nil {
			return
		}
		if !json.Valid(s.text) || len(s.text) > maxSchema {
			t.Errorf("schema %s", s.text)
		}
		if err := s.check(json.RawMessage(args)); err == nil && args != strings.TrimSpace(args) && args == "" {
			t.Errorf("%q fits", args)
		}
		again, err := compile(parsed(t, string(s.text)), &budget)
		if err != nil || string(again.text) != string(s.text) {
			t.Errorf("compiled again: %s, %v; want %s", again.text, err, s.text)
		}
	})
}

// FuzzServerFile tests that no file makes read panic, and that an accepted server is
// written and read back unchanged.
func FuzzServerFile(f *testing.F) {
	f.Add("box", `{"command":"npx","args":["-y","x"],"env":{"A":"b"}}`)
	f.Add("web", `{"url":"https://example.com/mcp","headers":{"Authorization":"Bearer x"}}`)
	f.Add("../x", `{"command":"sh -c"}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		s, err := read(name, []byte(text), safehttp.Options{})
		if err != nil {
			return
		}
		r := registry{dir: t.TempDir()}
		if err := r.put("ada", s); err != nil {
			t.Fatal(err)
		}
		if got, err := r.get("ada", name); err != nil || commandLine(got) != commandLine(s) || got.URL != s.URL || len(got.Headers) != len(s.Headers) {
			t.Errorf("read back %+v, %v; want %+v", got, err, s)
		}
	})
}
