package jsontext_test

import (
	"encoding/json"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/jsontext"
)

func FuzzAppend(f *testing.F) {
	for c := range 256 {
		f.Add("a" + string([]byte{byte(c)}) + "b")
	}
	f.Add("")
	f.Add("<b>&amp; \u2027\u2028\u2029\u202a \ufffd \xe2\x80 é 世界 \U0001F600")
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := jsontext.Append([]byte("x"), s); string(got) != "x"+string(want) {
			t.Errorf("%q: got %s, want x%s", s, got, want)
		}
	})
}
