package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/internal/health"
)

// fails are the statuses that a provider answers with, one for each attempt, before it
// answers; 0 cuts the connection.
func fails(t *testing.T, models string, statuses ...int) *server {
	t.Helper()
	return answeringFor(t, models, func(n int64, out raw, r *http.Request) {
		switch {
		case r.Header.Get("Idempotency-Key") != "":
			t.Errorf("got an Idempotency-Key that nobody has given: %s", r.Header.Get("Idempotency-Key"))
		case int(n) > len(statuses):
			out.events(chunkText("fine"), chunkStop, chunkDone)
		case statuses[n-1] == 0:
			cut()
		default:
			out.fail(statuses[n-1], "no")
		}
	})
}

// TestVectorsOfHTTP checks the vectors V-27. The waits between attempts are random parts of
// those of the vector (TestJitter), and a cut connection is a failed attempt of its own in
// the bill: the transport sends nothing twice (TestTransportSendsOnce).
func TestVectorsOfHTTP(t *testing.T) {
	t.Parallel()
	const one = `{"id":"m","object":"model"}`
	for _, c := range []struct {
		vector   string
		statuses []int
		attempts int64
		failure  string // in the error; "": the call is answered
	}{
		{"500 then 200 → 1 retry", []int{500}, 2, ""},
		{"429 retried", []int{429}, 2, ""},
		{"502 retried", []int{502}, 2, ""},
		{"503 retried", []int{503}, 2, ""},
		{"504 retried", []int{504}, 2, ""},
		{"529 retried", []int{529}, 2, ""},
		{"400 not", []int{400}, 1, "status 400"},
		{"401 not", []int{401}, 1, "status 401"},
		{"404 not", []int{404}, 1, "status 404"},
		{"last retryable status returned", []int{500, 503, 503, 504, 200}, 4, "status 504"},
		{"network error thrown after retries", []int{0, 0, 0, 0, 200}, 4, "provider openai"},
		{"F: 502 and network errors are repeated as well", []int{502, 0}, 3, ""},
	} {
		t.Run(c.vector, func(t *testing.T) {
			t.Parallel()
			s := fails(t, one, c.statuses...)
			w := start(t, s.provider, nil)
			answer, _, err := ask(t, w.Bus, request("v", "hello"))
			switch {
			case s.calls.Load() != c.attempts:
				t.Errorf("got %d attempts, want %d: %v", s.calls.Load(), c.attempts, err)
			case c.failure == "" && (err != nil || answer.Text != "fine"):
				t.Errorf("got %+v, %v, want an answer", answer, err)
			case c.failure != "" && (err == nil || !strings.Contains(err.Error(), c.failure)):
				t.Errorf("got %+v, %v, want an error with %q", answer, err, c.failure)
			}
		})
	}
}

// TestVectorsOfBreaker checks the vectors V-26 and V-27: five failures open the breaker for
// 60 s, so that the sixth attempt is not made, and an answer resets the count.
func TestVectorsOfBreaker(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	p := failing(t, func(_ int64, out raw) bool {
		if broken.Load() {
			out.fail(500, "no")
		}
		return broken.Load()
	})
	w := start(t, p, map[string]string{"ANIMA_INFERENCE_ROUTER_ATTEMPTS": "1"})
	n := 0
	call := func(fails bool) error {
		broken.Store(fails)
		n++
		_, _, err := ask(t, w.Bus, request(fmt.Sprint("breaker-", n), "hello"))
		return err
	}
	for range 2 {
		for range health.MaxFailures - 1 {
			if err := call(true); err == nil {
				t.Fatal("got an answer of a provider that fails")
			}
		}
		if err := call(false); err != nil {
			t.Fatalf("after %d failures: %v, want an answer, which resets the count", health.MaxFailures-1, err)
		}
	}
	for range health.MaxFailures {
		if err := call(true); err == nil {
			t.Fatal("got an answer of a provider that fails")
		}
	}
	before := p.calls.Load()
	if err := call(false); err == nil || p.calls.Load() != before || api.Wire(err).RetryAfter < 50_000 || api.Wire(err).RetryAfter > 61_000 {
		t.Errorf("got %v after %d attempts, want an error that asks for 60 s without an attempt", err, p.calls.Load()-before)
	}
	all, err := bus.Call[api.Models](t.Context(), w.Bus, api.ListModels{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all.Models {
		if left := time.Until(time.UnixMicro(m.BreakerUntil)); m.ID == "m" && (left <= 0 || left > health.OpenFor) {
			t.Errorf("the breaker is open for another %s, want at most %s", left, health.OpenFor)
		}
	}
}

// TestVectorsOfFailover checks the vectors V-26 with two providers. The reference makes
// four attempts at the first one; the router goes on after two, because a call has four
// attempts in all.
func TestVectorsOfFailover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vector        string
		statuses      []int // of the first provider
		first, second int64 // attempts
		down          bool  // the second one fails too
	}{
		{"429,429,ok → retries", []int{429}, 2, 0, false},
		{"4×429 then ok → second provider", []int{429, 429, 429, 429}, 2, 1, false},
		{"4×500 then ok → second provider", []int{500, 500, 500, 500}, 2, 1, false},
		{"4×503 then ok → second provider", []int{503, 503, 503, 503}, 2, 1, false},
		{"F: 502 must fail over", []int{502, 502, 502, 502}, 1, 1, false},
		{"F: network errors must fail over", []int{0, 0, 0, 0}, 1, 1, false},
		{"400 → thrown, no failover", []int{400}, 1, 0, false},
		{"all fail → error naming providers", []int{502, 502, 502, 502}, 2, 2, true},
	} {
		t.Run(c.vector, func(t *testing.T) {
			t.Parallel()
			one, two := fails(t, `{"id":"m"}`, c.statuses...), fails(t, `{"id":"other"}`)
			if c.down {
				two = fails(t, `{"id":"other"}`, 502, 502, 502, 502)
			}
			w := apptest.Start(t, apptest.Options{Env: map[string]string{
				"OPENAI_BASE_URL": one.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000", "OLLAMA_HOST": strings.TrimSuffix(two.url, "/v1"),
			}}, router.Service)
			answer, _, err := ask(t, w.Bus, request("f", "hello"))
			got := [2]int64{one.calls.Load(), two.calls.Load()}
			if c.down { // after both have failed, random waits decide which one is asked again
				if got[0] == 0 || got[1] == 0 || got[0]+got[1] != c.first+c.second {
					t.Errorf("got %d attempts, want %d, and each provider among them: %v", got, c.first+c.second, err)
				}
			} else if got != [2]int64{c.first, c.second} {
				t.Errorf("got %d attempts, want %d and %d: %+v, %v", got, c.first, c.second, answer, err)
			}
			details := strings.Join(api.Wire(err).Details, "\n")
			switch {
			case c.down && (err == nil || strings.Count(details, "openai/m: ") != int(got[0]) || strings.Count(details, "ollama/other: ") != int(got[1])):
				t.Errorf("got %v with the details %q, want %d attempts at the providers", err, details, got)
			case !c.down && c.first == 1 && c.second == 0 && err == nil:
				t.Errorf("got %+v, want an error", answer)
			case !c.down && c.second > 0 && (err != nil || answer.Provider != "ollama"):
				t.Errorf("got %+v, %v, want an answer of the second provider", answer, err)
			}
		})
	}
}
