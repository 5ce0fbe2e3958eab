package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
)

// TestAdmission fills the router with calls. One more waits, the next one is refused with
// a time to wait, over both transports, and a safety check begins at once.
func TestAdmission(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := withBalances(t, start(t, up, map[string]string{
		"ANIMA_INFERENCE_ROUTER_WORKERS": "2", "ANIMA_INFERENCE_ROUTER_QUEUE": "1",
		"ANIMA_DRAIN": "1s", // the cancellation of a call may be lost when the router stops
	}))
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 3)
	for _, id := range []string{"a1", "a2", "a3"} {
		go func() {
			_, err := bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, request(id, "quiet"), func(api.Delta) error { return nil })
			results <- err
		}()
		if id == "a1" {
			<-up.asked
		}
	}
	defer func() {
		cancel()
		for range 2 {
			if err := <-results; err == nil {
				t.Error("a canceled call: got no error")
			}
		}
	}()
	if err := <-results; api.ReasonOf(err) != api.ReasonBusy || api.Wire(err).RetryAfter == 0 {
		t.Errorf("the third call: got %v, want busy with a time to wait", err)
	}
	status, body := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky")
	if status != http.StatusTooManyRequests {
		t.Errorf("a call over HTTP: got %d %s, want %d", status, body, http.StatusTooManyRequests)
	}
	urgent := request("a4", "hello")
	urgent.Task = api.TaskSafety
	if _, text, err := complete(t, w.Bus, urgent); err != nil || text == "" {
		t.Errorf("a safety check: got %q, %v", text, err)
	}
	if n := up.calls.Load(); n != 2 {
		t.Errorf("the provider got %d calls, want 2: the first one and the safety check", n)
	}
}

// TestKeysAreNotUrgent checks that the holder of an API key cannot have its calls begin
// before others by the task that it names.
func TestKeysAreNotUrgent(t *testing.T) {
	t.Parallel()
	up, desk := serve(t), &keyDesk{}
	w := withBalances(t, apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": up.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000",
		"ANIMA_INFERENCE_ROUTER_WORKERS": "2", "ANIMA_INFERENCE_ROUTER_QUEUE": "0", "ANIMA_DRAIN": "1s",
	}}, router.Service, desk.service()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, request("a1", "quiet"), func(api.Delta) error { return nil })
		ended <- err
	}()
	defer func() {
		cancel()
		if err := <-ended; err == nil {
			t.Error("a canceled call: got no error")
		}
	}()
	<-up.asked
	const body = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	for _, task := range []string{"safety_check", "heartbeat_triage", "agent_turn"} {
		got := fetch(t, w, "POST /v1/chat/completions", body, "Authorization", desk.issue("lucky", api.KeyScopes()...), "Anima-Task", task)
		if got.status != http.StatusTooManyRequests {
			t.Errorf("%s with a key: got %d %s, want %d", task, got.status, got.body, http.StatusTooManyRequests)
		}
	}
	if status, got := post(t, w, "/v1/chat/completions", body, "Anima-Agent", "lucky", "Anima-Task", "safety_check"); status != http.StatusOK {
		t.Errorf("a safety check of the operator: got %d %s", status, got)
	}
}

// TestRequestMemory checks that a large request waits while the requests in progress use
// the memory for requests, until a call ends or it is refused, over both transports, and
// that a small one does not wait.
func TestRequestMemory(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := withBalances(t, start(t, up, map[string]string{"ANIMA_INFERENCE_ROUTER_REQUEST_MEMORY": "1", "ANIMA_DRAIN": "1s"}))
	body := func(size int, text string) string { // JSON may have space, which has no tokens
		return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}` + strings.Repeat(" ", size) + `]}`
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.HTTP+"/v1/chat/completions", strings.NewReader(body(600<<10, "quiet")))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+w.Token)
			req.Header.Set("Anima-Agent", "lucky")
			var res *http.Response
			if res, err = http.DefaultClient.Do(req); err == nil {
				err = res.Body.Close()
			}
		}
		ended <- err
	}()
	<-up.asked
	refusedOnce, waiting := make(chan struct{}), make(chan string, 1)
	go func() {
		status, header, answer := send(t, http.MethodPost, w.HTTP+"/v1/chat/completions", body(600<<10, "hello"), "Authorization", "Bearer "+w.Token, "Anima-Agent", "lucky")
		if status != http.StatusTooManyRequests || header.Get("Retry-After") != "1" || !strings.Contains(answer, "memory") {
			t.Errorf("over HTTP: got %d, Retry-After %q, %s; want %d", status, header.Get("Retry-After"), answer, http.StatusTooManyRequests)
		}
		close(refusedOnce)
		_, answer = post(t, w, "/v1/chat/completions", body(600<<10, "hello"), "Anima-Agent", "lucky")
		waiting <- answer
	}()
	large := request("a1", "hello")
	encoded := api.CompleteV2{Messages: append(bytes.Repeat([]byte(" "), 600<<10), chat.Encode(large.Messages)...), Tools: json.RawMessage("[]"), Call: large}
	encoded.Call.Messages, encoded.Call.Tools = nil, nil
	long, done := context.WithTimeout(t.Context(), time.Minute) // without a deadline it would be that of the bus
	defer done()
	if _, err := bus.CallStream[api.Delta, api.Completion](long, w.Bus, encoded, func(api.Delta) error { return nil }); api.ReasonOf(err) != api.ReasonBusy {
		t.Errorf("over NATS: got %v, want busy", err)
	}
	if status, answer := post(t, w, "/v1/chat/completions", body(1000, "hello"), "Anima-Agent", "lucky"); status != http.StatusOK {
		t.Errorf("a small request: got %d %s", status, answer)
	}
	<-refusedOnce
	cancel()
	if err := <-ended; err == nil {
		t.Error("the canceled request: got no error")
	}
	if answer := <-waiting; !strings.Contains(answer, "You said: hello") {
		t.Errorf("a request that waited for the end of the first one: got %s", answer)
	}
}

// TestAdmissionDeadline checks that a call which waits is answered at its deadline.
func TestAdmissionDeadline(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := start(t, up, map[string]string{"ANIMA_INFERENCE_ROUTER_WORKERS": "1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	began := make(chan struct{}, 64)
	go func() {
		_, err := bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, request("d1", "slow"), func(api.Delta) error {
			select {
			case began <- struct{}{}:
			default:
			}
			return nil
		})
		done <- err
	}()
	defer func() {
		cancel()
		if err := <-done; err == nil {
			t.Error("a canceled call: got no error")
		}
	}()
	<-began
	late := request("d2", "hello")
	late.Deadline = time.Now().Add(100 * time.Millisecond).UnixMicro()
	if _, _, err := complete(t, w.Bus, late); api.ReasonOf(err) != api.ReasonBusy {
		t.Errorf("got %v, want busy", err)
	}
}
