package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	router "github.com/anima-run/anima/services/inference-router"
)

// TestEndpoints checks that calls are balanced over the endpoints of a provider, that the
// calls of an agent with a long prompt stay at one, and that calls go to the other endpoint
// when the key of one is refused, at once and without an error: also more calls than the
// budget of retries covers.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	fine := func(_ int64, out raw, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer locked" {
			out.fail(http.StatusUnauthorized, "no")
			return
		}
		out.events(chunkText("fine"), chunkStop, chunkDone)
	}
	one, two := answering(t, fine), answering(t, fine)
	w := start(t, one.provider, map[string]string{"ANIMA_INFERENCE_ROUTER_ENDPOINTS": "openai=" + two.url + "|second"})
	call := func(id, text string) {
		t.Helper()
		if c, _, err := ask(t, w.Bus, request(id, text)); err != nil || c.Text != "fine" {
			t.Fatalf("%s: got %+v, %v", id, c, err)
		}
	}
	for i := range 40 {
		call(fmt.Sprintf("short-%d", i), "hello")
	}
	if a, b := one.calls.Load(), two.calls.Load(); a == 0 || b == 0 || a+b != 40 { // the slower one is chosen for a quarter of them, by chance
		t.Errorf("%d and %d calls, want calls of both endpoints", a, b)
	}
	before := one.calls.Load()
	for i := range 20 {
		call(fmt.Sprintf("long-%d", i), strings.Repeat("a long prompt ", 1000))
	}
	if n := one.calls.Load() - before; n > 1 && n < 19 {
		t.Errorf("%d of 20 calls with one prompt came to the first endpoint, want all or none", n)
	}

	locked := start(t, one.provider, map[string]string{"ANIMA_INFERENCE_ROUTER_ENDPOINTS": "openai=|locked"})
	for i := range 200 {
		if c, _, err := ask(t, locked.Bus, request(fmt.Sprintf("locked-%d", i), "hello")); err != nil || c.Text != "fine" {
			t.Fatalf("with a refused key: got %+v, %v", c, err)
		}
	}
}

// TestEndpointWithAPassingFault checks that a call is repeated at the endpoint whose failure
// may pass, although the key of the other one is refused after it.
func TestEndpointWithAPassingFault(t *testing.T) {
	t.Parallel()
	var works atomic.Int64 // calls with the key that works
	s := answering(t, func(_ int64, out raw, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") == "Bearer locked":
			out.fail(http.StatusUnauthorized, "no")
		case works.Add(1)%2 == 1:
			out.fail(http.StatusServiceUnavailable, "not now")
		default:
			out.events(chunkText("fine"), chunkStop, chunkDone)
		}
	})
	w := start(t, s.provider, map[string]string{"ANIMA_INFERENCE_ROUTER_ENDPOINTS": "openai=|locked"})
	for i := range 4 { // by the second one the failing endpoint is the second choice
		if c, _, err := ask(t, w.Bus, request(fmt.Sprintf("call-%d", i), "hello")); err != nil || c.Text != "fine" {
			t.Errorf("got %+v, %v; want an answer of the endpoint that works", c, err)
		}
	}
}

// TestEndpointSettings checks that a wrong setting is refused without its keys.
func TestEndpointSettings(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"openai", "openai=sekret", "=|sekret", "nobody=|sekret", "openai=ftp://x|sekret"} {
		err := router.CheckEndpoints(setting)
		if err == nil || strings.Contains(err.Error(), "sekret") || !strings.Contains(err.Error(), "ANIMA_INFERENCE_ROUTER_ENDPOINTS") {
			t.Errorf("%s: got %v", setting, err)
		}
	}
	if err := router.CheckEndpoints("openai=https://eu.example/v1|sekret, openai=|other"); err != nil {
		t.Error(err)
	}
}
