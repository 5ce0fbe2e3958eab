package ratelimit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/anima-run/anima/services/inference-router/internal/ratelimit"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// TestTake checks the waits of requests and of tokens.
func TestTake(t *testing.T) {
	t.Parallel()
	l := ratelimit.New(map[string]ratelimit.Rates{"p": {Requests: 2, Tokens: 600}, "q": {Tokens: 60}})
	take := func(provider string, tokens int64, at, want time.Duration) {
		t.Helper()
		if got := l.Take(provider, tokens, start.Add(at)); got.Round(time.Millisecond) != want {
			t.Errorf("%s: %d tokens after %s: got a wait of %s, want %s", provider, tokens, at, got, want)
		}
	}
	take("p", 100, 0, 0)
	take("p", 550, 0, 5*time.Second)  // 50 tokens are missing, at 10 a second
	take("p", 100, 0, 0)              // the refused call took nothing
	take("p", 100, 0, 30*time.Second) // the third request of a minute
	take("p", 100, 30*time.Second, 0) // a request was added
	take("p", 100, 10*time.Second, 30*time.Second)
	take("q", 1000, 0, 0) // more than a minute's tokens, from a full bucket
	take("q", 1, 0, 60*time.Second+time.Second)
	take("other", 1<<40, 0, 0)
}

// TestCorrect checks that tokens which were not used are available again, and that those
// used in excess are missing.
func TestCorrect(t *testing.T) {
	t.Parallel()
	l := ratelimit.New(map[string]ratelimit.Rates{"p": {Tokens: 600}})
	for _, used := range []int64{100, 100, 300} {
		if wait := l.Take("p", 500-used, start); wait != 0 {
			t.Errorf("got a wait of %s, want none", wait)
		}
		l.Correct("p", 500-used, used)
	}
	if wait := l.Take("p", 200, start); wait.Round(time.Second) != 10*time.Second { // 100 are left
		t.Errorf("got a wait of %s, want 10s", wait)
	}
	l.Correct("p", 0, 1e12)
	if wait := l.Take("p", 1, start); wait > 2*time.Minute {
		t.Errorf("got a wait of %s, want at most two minutes", wait)
	}
}

// TestReturn checks that a call that was not made leaves its request and its tokens.
func TestReturn(t *testing.T) {
	t.Parallel()
	l := ratelimit.New(map[string]ratelimit.Rates{"p": {Requests: 1, Tokens: 600}})
	for range 3 {
		if wait := l.Take("p", 600, start); wait != 0 {
			t.Fatalf("got a wait of %s, want none", wait)
		}
		l.Return("p", 600)
	}
	l.Return("p", 600) // a bucket does not get more than it holds
	if first, second := l.Take("p", 600, start), l.Take("p", 1, start); first != 0 || second == 0 {
		t.Errorf("got waits of %s and %s, want one for the second call", first, second)
	}
	l.Return("other", 1)
}

// TestRate checks for random calls that no minute has more requests and tokens than twice
// the rate, a full bucket and a minute's, that a wait is as long as it says, and that a
// call is possible after it.
func TestRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rates := ratelimit.Rates{Requests: rapid.Int64Range(1, 100).Draw(t, "requests"), Tokens: rapid.Int64Range(1, 10_000).Draw(t, "tokens")}
		l := ratelimit.New(map[string]ratelimit.Rates{"p": rates})
		at := start
		type call struct {
			at     time.Time
			tokens int64
		}
		var made []call
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "pause")))
			tokens := rapid.Int64Range(0, rates.Tokens).Draw(t, "size")
			if wait := l.Take("p", tokens, at); wait > 0 {
				if early := l.Take("p", tokens, at.Add(wait-time.Microsecond)); early == 0 {
					t.Fatalf("a wait of %s was too long", wait)
				}
				at = at.Add(wait)
				if again := l.Take("p", tokens, at); again > 0 {
					t.Fatalf("after a wait of %s another one of %s", wait, again)
				}
			}
			made = append(made, call{at, tokens})
		}
		for i, first := range made {
			var requests, tokens int64
			for _, c := range made[i:] {
				if c.at.Sub(first.at) >= time.Minute {
					break
				}
				requests++
				tokens += c.tokens
			}
			if requests > 2*rates.Requests || tokens > 2*rates.Tokens {
				t.Fatalf("a minute has %d requests and %d tokens; the rates are %+v", requests, tokens, rates)
			}
		}
	})
}

// TestParse checks the form of the setting.
func TestParse(t *testing.T) {
	t.Parallel()
	got, err := ratelimit.Parse([]string{"openai=500/200000", " ollama=0/0"})
	if diff := cmp.Diff(map[string]ratelimit.Rates{"openai": {Requests: 500, Tokens: 200000}, "ollama": {}}, got); err != nil || diff != "" {
		t.Errorf("got %v, -want +got:\n%s", err, diff)
	}
	for _, bad := range [][]string{{"openai"}, {"openai=1"}, {"=1/1"}, {"a=-1/1"}, {"a=1/x"}, {"a=1/1", "a=2/2"}, {"a=1/99999999999"}} {
		if _, err := ratelimit.Parse(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

func TestTakeAllocations(t *testing.T) {
	l := ratelimit.New(map[string]ratelimit.Rates{"p": {Requests: 1e6, Tokens: 1e9}})
	if got := testing.AllocsPerRun(100, func() { l.Take("p", 1, start) }); got != 0 {
		t.Errorf("got %g allocations, want none", got)
	}
}
