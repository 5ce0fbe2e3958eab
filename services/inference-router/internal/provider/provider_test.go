package provider_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

func TestKindOfStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		code, message string
		want          provider.Kind
	}{
		{429, "rate_limit_exceeded", "", provider.RateLimited},
		{429, "insufficient_quota", "", provider.Quota},
		{402, "", "", provider.Quota},
		{400, "", "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing", provider.Quota},
		{500, "", "", provider.RetrySame},
		{503, "", "", provider.RetrySame},
		{529, "", "", provider.RetrySame},
		{408, "", "", provider.RetrySame},
		{502, "", "", provider.Failover},
		{504, "", "", provider.Failover},
		{404, "model_not_found", "", provider.NoModel},
		{401, "", "", provider.Auth},
		{403, "", "", provider.Auth},
		{400, "", "bad schema", provider.Fatal},
		{422, "", "", provider.Fatal},
		{400, "context_length_exceeded", "", provider.ContextTooLong},
		{400, "", "This model's maximum context length is 8192 tokens", provider.ContextTooLong},
		{400, "", "prompt is too long: 210000 tokens > 200000 maximum", provider.ContextTooLong},
		{400, "", "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again", provider.ContextTooLong},
		{400, "", "This model's maximum prompt length is 131072 but the request contains 141192 tokens.", provider.ContextTooLong},
		{400, "", "Input is too long for requested model.", provider.ContextTooLong},
		{400, "", "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).", provider.ContextTooLong},
		{400, "", "max_tokens exceeds the maximum of this model", provider.Fatal},
		{413, "", "", provider.ContextTooLong},
		{200, "", "", provider.Failover},
	} {
		if got := provider.KindOfStatus(c.status, c.code, c.message); got != c.want {
			t.Errorf("%d %q %q: got %s, want %s", c.status, c.code, c.message, got, c.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "2", 2 * time.Second},
		{"Retry-After", "0.5", 500 * time.Millisecond},
		{"Retry-After", "Sun, 01 Nov 2026 12:00:30 GMT", 30 * time.Second},
		{"Retry-After", "Sun, 01 Nov 2026 11:00:00 GMT", 0},
		{"Retry-After", "-1", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "1e300", 24 * time.Hour},
		{"Retry-After-Ms", "250", 250 * time.Millisecond},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		if got := provider.RetryAfter(h, now); got != c.want {
			t.Errorf("%s: %s: got %s, want %s", c.name, c.value, got, c.want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"key sk-secret is\nwrong":        "key *** is wrong",
		strings.Repeat("é", 400):         strings.Repeat("é", 250) + "…",
		"a\xffb":                         "a?b",
		"\x1b[31mred\x00 \u0085text\x7f": "[31mred text",
		"an empty secret cuts nothing.":  "an empty secret cuts nothing.",
	} {
		if got := provider.Clean(in, "sk-secret", ""); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("turn: %w", provider.CanceledError("p", context.DeadlineExceeded))
	if provider.KindOf(err) != provider.Canceled || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got kind %q, chain %v", provider.KindOf(err), err)
	}
	if got := provider.KindOf(errors.New("other")); got != "" {
		t.Errorf("foreign error: got kind %q", got)
	}
}

// TestEstimateCountsEverything checks that schemas and arguments are part of the prompt
// (docs/reference/inference-router.md, Token estimate).
func TestEstimateCountsEverything(t *testing.T) {
	t.Parallel()
	req := provider.Request{Messages: []provider.Message{{Role: "user", Content: "abcd"}}}
	if got := req.Estimate(); got != 5 {
		t.Errorf("one message: got %d, want 4 around it and 1 in it", got)
	}
	req.Tools = []provider.Tool{{Name: "exec", Description: "abcdefgh", Schema: []byte(`{"a":1}`)}}
	if got := req.Estimate(); got != 5+8+1+2+2 {
		t.Errorf("with a tool: got %d, want 18", got)
	}
	req.Messages = append(req.Messages, provider.Message{Role: "assistant", ToolCalls: []provider.ToolCall{{Name: "exec", Arguments: "{}"}}})
	if got := req.Estimate(); got != 18+4+4+1+1 {
		t.Errorf("with a call: got %d, want 28", got)
	}
	got := provider.Estimate(req, provider.Response{Text: "abcde"})
	if want := (provider.Usage{Input: 28, Output: 2, Estimated: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
