package router_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic/anthropictest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// haiku has the prices of the model of the bill.
var haiku = model.Model{Known: true, InputPrice: 1_000_000, OutputPrice: 5_000_000, CachedPrice: 100_000, WritePrice: 1_250_000}

// serveAnthropic runs a server of the Messages API whose answer is chosen by the last
// message. The first event of a stream reports the prompt, most of which is read from the
// cache or written to it, and one token of the answer, as Anthropic's does.
func serveAnthropic(t *testing.T, b *bill) string {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			anthropictest.WriteModels(w, false, anthropictest.Model{ID: "claude-haiku-4-5", CreatedAt: "2026-01-01T00:00:00Z"})
			return
		}
		req, err := anthropictest.Decode(r.Body)
		if err != nil {
			anthropictest.WriteError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
			return
		}
		neutral := req.Neutral()
		say := neutral.Messages[len(neutral.Messages)-1].Content
		mu.Lock()
		seen[say]++
		n := seen[say]
		mu.Unlock()
		switch {
		case say == "busy" && n == 1:
			w.Header().Set("Retry-After", "0.01")
			anthropictest.WriteError(w, http.StatusTooManyRequests, "rate_limit_error", "wait")
			return
		case say == "overloaded" && n == 1:
			anthropictest.WriteError(w, 529, "overloaded_error", "full")
			return
		case say == "broken" && n == 1:
			anthropictest.WriteError(w, http.StatusInternalServerError, "api_error", "it broke")
			return
		case say == "silent":
			b.charge(openaitest.Usage{Input: neutral.Estimate()})
			hang(r)
			return
		}
		out := anthropictest.NewStream(w, "msg_1", req.Model)
		used := openaitest.Usage{Input: 170, CachedInput: 100, CacheWrite: 50, Output: 1}
		if say == "uncounted" || say == "cut, uncounted" {
			used = openaitest.Usage{Input: neutral.Estimate()}
		} else {
			out.Start(used)
		}
		if say == "started" {
			out.Empty()
			b.charge(used)
			hang(r)
			return
		}
		out.Text(half)
		used.Output = chat.Tokens(half)
		switch {
		case say == "abort":
			b.charge(used)
			hang(r)
			return
		case say == "stalled" && n == 1:
			b.charge(used)
			hang(r)
			return
		case (say == "cut" || say == "cut, uncounted") && n == 1:
			b.charge(used)
			panic(http.ErrAbortHandler)
		case say == "failed" && n == 1:
			b.charge(used)
			out.Error("overloaded_error", "full")
			return
		}
		out.Text(whole)
		used.Output = chat.Tokens(half + whole)
		out.Finish("stop")
		if say != "uncounted" && say != "cut, uncounted" {
			used.Output, used.Reasoning = used.Output+11, 9
			out.Usage(used)
		}
		b.charge(used)
		out.Done()
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestAnthropicBill is TestBill for the Messages API, with the tokens that the provider
// reads from its cache and writes to it.
func TestAnthropicBill(t *testing.T) {
	t.Parallel()
	charged := &bill{prices: haiku}
	b := newBooks()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"ANTHROPIC_API_KEY": "sekret", "ANTHROPIC_BASE_URL": serveAnthropic(t, charged), "ANIMA_INFERENCE_ROUTER_LOCAL": "no",
		"ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT": "2s", "ANIMA_INFERENCE_ROUTER_TOKEN_TIMEOUT": "1s",
	}}, router.Service, b.service())
	call := func(text string) api.Complete {
		req := request("claude-"+text, text)
		req.Model = "claude-haiku-4-5"
		return req
	}
	for _, text := range []string{"plain", "uncounted", "busy", "overloaded", "broken", "cut", "cut, uncounted", "failed", "stalled"} {
		if c, _, err := ask(t, w.Bus, call(text)); err != nil || c.Text != half+whole {
			t.Errorf("%s: got %q, %v", text, c.Text, err)
		} else if text == "plain" && (c.InputTokens != 170 || c.CachedTokens != 100 || c.CacheWrite != 50 || c.ReasonTokens != 9) {
			t.Errorf("%s: got %+v, want the tokens of the cache and of the reasoning", text, c)
		}
	}
	leave, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := bus.CallStream[api.Delta, api.Completion](leave, w.Bus, call("abort"), func(d api.Delta) error {
		if d.Content != "" {
			cancel()
		}
		return nil
	})
	if err == nil {
		t.Error("the aborted call was answered")
	}
	for _, text := range []string{"silent", "started"} { // without any text of the answer
		req := call(text)
		req.Deadline = time.Now().Add(500 * time.Millisecond).UnixMicro()
		if _, _, err := ask(t, w.Bus, req); err == nil {
			t.Errorf("%s: the server answered", text)
		}
	}
	w.Stop() // ends the work after the aborted call
	b.agrees(t, charged, rows(t, w))
}
