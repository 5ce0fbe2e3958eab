package provider_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		``: ``, `null`: ``, `{"type":"text"}`: ``, `{"type":"json_object"}`: `{"type":"json_object"}`,
		`{"type":"json_schema","json_schema":{"schema":{"type":"object"},"strict":true,"name":"a-b_1"}}`: `{"type":"json_schema","json_schema":{"name":"a-b_1","schema":{"type":"object"},"strict":true}}`,
	} {
		f, err := provider.FormatOf(json.RawMessage(in))
		if err != nil {
			t.Errorf("%s: got %v", in, err)
			continue
		}
		if got, err := f.Encode(); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		`1`: "not an object", `{"type":"xml"}`: `"xml" is none of`, `{"type":"json_schema"}`: "needs a name",
		`{"type":"json_schema","json_schema":{"name":"a b","schema":{}}}`:                             "needs a name",
		`{"type":"json_schema","json_schema":{"name":"` + strings.Repeat("a", 65) + `","schema":{}}}`: "needs a name",
		`{"type":"json_schema","json_schema":{"name":"a","schema":[]}}`:                               "needs a schema",
		`{"type":"json_schema","json_schema":{"name":"a"}}`:                                           "needs a schema",
	} {
		if _, err := provider.FormatOf(json.RawMessage(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}
