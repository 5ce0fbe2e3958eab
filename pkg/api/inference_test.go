package api_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestCompleteV2 checks that a CompleteV2 is decoded from its own form and from any
// other JSON, and that a truncated one or one with wrong sizes is not.
func TestCompleteV2(t *testing.T) {
	t.Parallel()
	want := api.CompleteV2{Messages: json.RawMessage(`[{"role":"user","content":"],\"tools\":"}]`), Tools: json.RawMessage(`[]`), Call: api.Complete{ID: "c", Agent: "lucky"}}
	own, err := api.Encode(want)
	if err != nil || !json.Valid(own) {
		t.Fatalf("got %s, %v; want JSON", own, err)
	}
	for name, data := range map[string]string{
		"its own form":   string(own),
		"another order":  `{"call":{"id":"c","agent":"lucky"},"tools":[],"messages":[{"role":"user","content":"],\"tools\":"}]}`,
		"with no sizes":  `{"messages":[{"role":"user","content":"],\"tools\":"}],"tools":[],"call":{"id":"c","agent":"lucky"}}`,
		"sizes not used": `{"sizes":[         7,         2],"messages":[{"role":"user","content":"],\"tools\":"}],"tools":[],"call":{"id":"c","agent":"lucky"}}`,
	} {
		var got api.CompleteV2
		if err := api.Decode([]byte(data), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	for n := range own {
		var got api.CompleteV2
		if err := api.Decode(own[:n], &got); err == nil {
			t.Fatalf("%d of %d bytes were taken: %+v", n, len(own), got)
		}
	}
	if got, err := api.Encode(api.CompleteV2{Messages: json.RawMessage(`[]`)}); err != nil || !json.Valid(got) {
		t.Errorf("without tools: got %s, %v; want JSON", got, err)
	}
}

func FuzzCompleteV2(f *testing.F) {
	own, err := api.Encode(api.CompleteV2{Messages: json.RawMessage(`[1]`), Tools: json.RawMessage(`[2]`), Call: api.Complete{ID: "c"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte(`{"sizes":[9999999999,9999999999],"messages":[],"tools":[],"call":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m api.CompleteV2
		if api.Decode(data, &m) != nil || len(m.Messages) == 0 {
			return
		}
		again, err := api.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		var back api.CompleteV2
		if err := api.Decode(again, &back); err != nil || string(back.Messages) != string(m.Messages) {
			t.Fatalf("got %s, %v; want %s", back.Messages, err, m.Messages)
		}
	})
}
