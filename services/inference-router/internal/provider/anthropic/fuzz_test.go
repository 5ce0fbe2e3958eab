package anthropic_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
)

// bodyOf answers each request with a body.
type bodyOf []byte

func (b bodyOf) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
}

// FuzzStream checks that any stream results in an answer with a finish reason or in a
// typed error, with a usage that can be added up.
func FuzzStream(f *testing.F) {
	stream := func(events ...string) []byte {
		var b strings.Builder
		for _, e := range events {
			b.WriteString("data: " + e + "\n\n")
		}
		return []byte(b.String())
	}
	const text, end, stop = `{"type":"content_block_delta","delta":{"text":"x"}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`, `{"type":"message_stop"}`
	f.Add(stream(`{"type":"message_start","message":{"id":"m","usage":{"input_tokens":3}}}`, text, end, stop))
	f.Add(stream(`{"type":"content_block_start","index":-1,"content_block":{"type":"tool_use","id":"c","name":"f","input":null}}`, `{"type":"content_block_delta","index":-1,"delta":{"partial_json":"{"}}`, end))
	// Numbers of tokens whose sum does not fit int64.
	f.Add(stream(`{"type":"message_start","message":{"usage":{"input_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807}}}`, text, end, stop))
	f.Add(stream(`{"type":"message_start","message":{"usage":{"input_tokens":9223372036854775807,"cache_creation_input_tokens":9}}}`, text))
	f.Add([]byte("event: error\ndata: {\"error\":{\"type\":1e400}}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		p, err := anthropic.New(anthropic.Config{Name: "test", Key: providertest.Key, BaseURL: "http://host", HTTP: &http.Client{Transport: bodyOf(stream)}, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		var seen strings.Builder
		res, err := p.Complete(t.Context(), providertest.Ask("hi"), func(d string) error { seen.WriteString(d); return nil })
		if (err == nil) != (res.Finish != "") || err != nil && provider.KindOf(err) == "" {
			t.Errorf("got %+v, %v", res, err)
		}
		if seen.String() != res.Text {
			t.Errorf("deltas %q, text %q", seen.String(), res.Text)
		}
		u := res.Usage
		if u.Input <= 0 || u.Output < 0 || u.CachedInput < 0 || u.CacheWrite < 0 || u.CachedInput+u.CacheWrite > u.Input || u.Reasoning < 0 || u.Reasoning > u.Output {
			t.Errorf("usage: got %+v", u)
		}
	})
}
