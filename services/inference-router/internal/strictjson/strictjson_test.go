package strictjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/services/inference-router/internal/strictjson"
)

func TestValue(t *testing.T) {
	t.Parallel()
	var (
		text    string
		yes     bool
		number  float64
		integer int64
	)
	read := map[string]func(json string) error{
		"string": func(json string) error { return strictjson.Value(gjson.Parse(json), &text) },
		"bool":   func(json string) error { return strictjson.Value(gjson.Parse(json), &yes) },
		"float":  func(json string) error { return strictjson.Value(gjson.Parse(json), &number) },
		"int":    func(json string) error { return strictjson.Value(gjson.Parse(json), &integer) },
	}
	good := map[string]string{`"a\n"`: "string", `true`: "bool", `1.5e3`: "float", `-9007199254740993`: "int"}
	for json, kind := range good {
		for other, f := range read {
			if err := f(json); (err == nil) != (other == kind || other == "float" && kind == "int") {
				t.Errorf("%s as %s: got error %v", json, other, err)
			}
		}
	}
	for json, kind := range good { // again, because a refused value leaves the zero value
		if err := read[kind](json); err != nil {
			t.Errorf("%s: %v", json, err)
		}
	}
	if text != "a\n" || !yes || number != 1500 || integer != -9007199254740993 {
		t.Errorf("got %q, %t, %v, %d", text, yes, number, integer)
	}
	for kind, f := range read {
		if err := f("null"); err != nil {
			t.Errorf("null as %s: %v", kind, err)
		}
	}
	if text != "" || yes || number != 0 || integer != 0 {
		t.Errorf("null: got %q, %t, %v, %d, want zero values", text, yes, number, integer)
	}
}

func TestObjectAndArray(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	object := func(json string) (names []string, err error) {
		err = strictjson.Object(gjson.Parse(json), func(name string, _ gjson.Result) error {
			if names = append(names, name); name == "bad" {
				return stop
			}
			return nil
		})
		return names, err
	}
	if names, err := object(`{"a":1,"b":[2]}`); err != nil || strings.Join(names, " ") != "a b" {
		t.Errorf("got %v, %v", names, err)
	}
	if names, err := object(`{"bad":1,"b":2}`); !errors.Is(err, stop) || len(names) != 1 {
		t.Errorf("got %v, %v, want the error after one field", names, err)
	}
	if _, err := object(`{"a":1,"a":2}`); !errors.Is(err, strictjson.ErrField) {
		t.Errorf("a repeated field: got %v", err)
	}
	if _, err := object(`{` + strings.Repeat(`"x":0,`, strictjson.MaxFields) + `"y":0}`); !errors.Is(err, strictjson.ErrField) {
		t.Errorf("many fields: got %v", err)
	}
	elements := func(json string) (n int, err error) {
		err = strictjson.Array(gjson.Parse(json), func(gjson.Result) error { n++; return nil })
		return n, err
	}
	for json, want := range map[string]int{`[{},{"a":1}]`: 2, `null`: 0, `[]`: 0} {
		if n, err := elements(json); err != nil || n != want {
			t.Errorf("%s: got %d, %v, want %d", json, n, err, want)
		}
	}
	for _, json := range []string{`{}`, `7`, `[null]`, `[[]]`} {
		if _, err := elements(json); err == nil {
			t.Errorf("array %s: got no error", json)
		}
	}
	for _, json := range []string{`[]`, `7`, `"a"`} {
		if _, err := object(json); err == nil {
			t.Errorf("object %s: got no error", json)
		}
	}
}

// FuzzText compares texts with those of encoding/json.
func FuzzText(f *testing.F) {
	for _, seed := range []string{`"a\u00e9\ud83d\ude00"`, `"\ud800\u0000"`, `"\udc00x\ud800"`, `"\ud800\ud800\udc00\n"`, `"�\\"`, `"a"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || !gjson.Valid(text) || gjson.Parse(text).Type != gjson.String {
			return
		}
		var got, want string
		if err := strictjson.Value(gjson.Parse(text), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	})
}
