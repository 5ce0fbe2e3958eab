package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

var update = flag.Bool("update", false, "write golden files that are missing, and the generated docs")

// TestContracts checks that the encoding of every message equals its golden file.
// Golden files are added, never edited.
func TestContracts(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range api.Contracts() {
		s := c.Message.Subject()
		t.Run(s.Template(), func(t *testing.T) {
			if seen[s.Template()] {
				t.Errorf("%s is listed twice", s.Template())
			}
			seen[s.Template()] = true
			if (s.Class == api.Request) != (c.Answer != nil) {
				t.Errorf("class %s with answer %T: requests, and only they, have one", s.Class, c.Answer)
			}
			zero, ok := reflect.Zero(reflect.TypeOf(c.Message)).Interface().(api.Message)
			if !ok || zero.Subject().Template() != s.Template() {
				t.Errorf("the subject of the zero value is not %s", s.Template())
			}
			frozen(t, s.Template(), c.Message)
			if c.Answer != nil {
				frozen(t, s.Template()+".answer", c.Answer)
			}
		})
	}
}

// TestMessages checks that Messages lists the messages of the contracts, in their order.
func TestMessages(t *testing.T) {
	t.Parallel()
	all := api.Messages()
	var got, want []string
	for _, m := range all {
		got = append(got, fmt.Sprintf("%T", m))
		if !reflect.ValueOf(m).IsZero() {
			t.Errorf("%T is not the zero value", m)
		}
	}
	for _, c := range api.Contracts() {
		want = append(want, fmt.Sprintf("%T", c.Message))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func frozen(t *testing.T, name string, m any) {
	t.Helper()
	file := filepath.Join("testdata", name+".json")
	got, err := api.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if _, err := os.Stat(file); *update && os.IsNotExist(err) {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\na new message: run `make gen` and commit its golden", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("bytes changed: add a new version instead\n got %s\nwant %s", got, want)
	}
	back := reflect.New(reflect.TypeOf(m))
	if err := api.Decode(want, back.Interface()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back.Elem().Interface(), m) {
		t.Errorf("round trip: got %+v, want %+v", back.Elem(), m)
	}
}

func TestSubject(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^anima\.[a-z]+\.(evt|cmd|req|live)\.[a-z]+(_[a-z]+)*\.v[1-9]$`)
	for _, c := range api.Contracts() {
		if s := c.Message.Subject(); !form.MatchString(s.Template()) {
			t.Errorf("%s does not follow the form of design §3", s.Template())
		}
	}
	keyed := api.LoopStart{Session: "lucky-main"}.Subject()
	for got, want := range map[string]string{
		keyed.String():                           "anima.loop.evt.loop_start.v1.lucky-main",
		keyed.All():                              "anima.loop.evt.loop_start.v1.*",
		keyed.Stream():                           "LOOP_EVT",
		api.LoopStart{}.Subject().String():       "anima.loop.evt.loop_start.v1.-",
		api.Evaluate{}.Subject().String():        "anima.policy.req.evaluate.v1",
		api.Evaluate{}.Subject().All():           "anima.policy.req.evaluate.v1",
		api.Evaluate{}.Subject().Stream():        "",
		api.StreamDelta{}.Subject().Stream():     "",
		api.Run{Session: "s"}.Subject().Stream(): "LOOP_CMD",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range api.Streams() {
		names = append(names, s.Name)
		if s.Work != strings.HasSuffix(s.Name, "_CMD") {
			t.Errorf("%s: work queue %v", s.Name, s.Work)
		}
	}
	want := []string{"HEARTBEAT_EVT", "LOOP_CMD", "LOOP_EVT", "SOCIAL_EVT", "TREASURY_EVT"}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

// TestGenerated compares docs/subjects.md and the JSON Schemas with those that it
// generates from the contracts.
func TestGenerated(t *testing.T) {
	t.Parallel()
	var md bytes.Buffer
	md.WriteString("# Subjects\n\nGenerated from `pkg/api` by `make gen`. Do not edit.\n\n" +
		"`evt` facts in a stream, `cmd` work in a work queue, `req` questions over micro, `live` never stored. `*` is the key.\n\n" +
		"| subject | class | stream | message | answer | example |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, c := range api.Contracts() {
		s, answer, stream := c.Message.Subject(), "", s(c.Message.Subject().Stream())
		if c.Answer != nil {
			answer = s2(name(c.Answer))
		}
		fmt.Fprintf(&md, "| `%s` | %s | %s | `%s` | %s | [json](../pkg/api/testdata/%s.json) |\n",
			s.All(), s.Class, stream, name(c.Message), answer, s.Template())
		generated(t, filepath.Join("schema", s.Template()+".json"), schema(t, s.Template(), c.Message))
		if c.Answer != nil {
			generated(t, filepath.Join("schema", s.Template()+".answer.json"), schema(t, s.Template()+".answer", c.Answer))
		}
	}
	generated(t, filepath.Join("..", "..", "docs", "subjects.md"), md.Bytes())
}

func s(stream string) string {
	if stream == "" {
		return ""
	}
	return "`" + stream + "`"
}

func s2(v string) string { return "`" + v + "`" }

func name(v any) string { return reflect.TypeOf(v).Name() }

func generated(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the contracts say: run `make gen`", file)
	}
}

func schema(t *testing.T, title string, v any) []byte {
	t.Helper()
	m := schemaOf(reflect.TypeOf(v))
	m["$schema"], m["title"] = "https://json-schema.org/draft/2020-12/schema", title
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// schemaOf returns the JSON Schema of a type. It supports only the kinds that contracts
// use.
func schemaOf(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	case t == reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Struct:
		props, required := map[string]any{}, []string{}
		for f := range t.Fields() {
			key, opt, _ := strings.Cut(f.Tag.Get("json"), ",")
			props[key] = schemaOf(f.Type)
			if opt != "omitempty" {
				required = append(required, key)
			}
		}
		return map[string]any{"type": "object", "properties": props, "required": required}
	default:
		panic("contracts do not use " + t.String())
	}
}
