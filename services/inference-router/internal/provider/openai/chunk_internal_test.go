package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/openai/openai-go/v3"
	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/services/inference-router/internal/strictjson"
)

// FuzzChunk checks that an event is read as the official client reads it.
func FuzzChunk(f *testing.F) {
	quick := func(data string) bool {
		v := gjson.Parse(data)
		return v.IsObject() && new(chunk).read(v) == nil
	}
	for _, data := range []string{
		`{"id":"c","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a\n\u00e9\ud83d\ude00 \ud83d é"},"finish_reason":null}]}`,
		`{"id":"c","model":"m","choices":[{"index":1,"delta":{"content":null,"refusal":"no","tool_calls":[{"index":2,"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"index":3,"function":null}]},"finish_reason":"tool_calls"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1,"cache_write_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}}}`,
		`{"choices":null,"usage":null}`,
		`{"usage":{"prompt_tokens":null,"prompt_tokens_details":null}}`,
		`{"choices":[{"delta":{"reasoning_content":"because","reasoning":"other"}},{"delta":{"reasoning_content":null,"reasoning":"b\ud83d"}},{"delta":{"reasoning":7}},{"delta":null}]}`,
		`{"Id":"c","CHOICES":[{"index":4}]}`,
		"{\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}",
		`{}`,
	} {
		if !quick(data) {
			f.Errorf("%s: is left to the official client", data)
		}
		f.Add(data)
	}
	for _, data := range []string{
		`{"id":7,"model":true}`,
		`{"choices":[null,{"index":"1","delta":{"content":["a"]}}]}`,
		`{"choices":{"index":0}}`,
		`{"choices":[{"delta":{"content":"a","tool_calls":[{"function":{"arguments":{"a":1}}}]}}]}`,
		`{"choices":[{"delta":{"content":"a","tool_calls":[null]}}]}`,
		`{"choices":[{"delta":"a"}]}`,
		`{"usage":{"prompt_tokens":3.0,"completion_tokens":1e3}}`,
		`{"usage":"3"}`,
		`{"id":"a","id":"b"}`,
		`{"choices":[{"delta":{"content":"a"},"delta":{"refusal":"c"}}]}`,
		`{"usage":{"prompt_tokens":99999999999999999999}}`,
		`null`, `7`, `[]`, `"a"`,
	} {
		if quick(data) {
			f.Errorf("%s: is not left to the official client", data)
		}
		f.Add(data)
	}
	var many strings.Builder
	for i := range strictjson.MaxFields {
		fmt.Fprintf(&many, `"f%d":0,`, i)
	}
	f.Add(`{` + many.String() + `"id":"c"}`)
	// The official client keeps a byte that is no UTF-8 in a text with an escape.
	f.Add("{\"choices\":[{\"delta\":{\"content\":\"\\b0000\x8f\"}}]}")
	valid := cmp.Comparer(func(a, b string) bool { return string([]rune(a)) == string([]rune(b)) })
	f.Fuzz(func(t *testing.T, data string) {
		var whole sdk.ChatCompletionChunk
		wantErr := json.Unmarshal([]byte(data), &whole)
		got, err := chunkOf([]byte(data))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: got error %v, want %v", data, err, wantErr)
		}
		if wantErr != nil {
			return
		}
		if strings.Contains(strings.ToLower(data), `\ud`) {
			return // the official client drops a character after a lone surrogate; FuzzText of strictjson has these
		}
		if diff := cmp.Diff(leniently(whole), got, valid, cmp.AllowUnexported(chunk{}, tally{}, choice{}, part{})); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", data, diff)
		}
	})
}
