package router_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
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
