package balance_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/services/inference-router/internal/balance"
)

// states draws the states of 1 to Max endpoints.
func states(t *rapid.T) []balance.State {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) balance.State {
		return balance.State{
			Tokens:  rapid.Int64Range(0, 1e7).Draw(t, "tokens"),
			Latency: rapid.Float64Range(0, 60).Draw(t, "latency"),
			Health:  rapid.Float64Range(0, 1).Draw(t, "health"),
		}
	}), 1, balance.Max).Draw(t, "states")
}

// TestChoice checks for any states that the chosen endpoint is not excluded, that one which
// mostly fails is chosen only if there is no other, that a call without a key never gets the
// only worst endpoint of its two, and that a call with a key gets its first choice unless
// that is overloaded, and its second choice then.
func TestChoice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := states(t)
		key, random := rapid.Uint64Min(1).Draw(t, "key"), rapid.Uint64().Draw(t, "random")
		excluded := balance.Set(rapid.Uint64().Draw(t, "excluded"))
		tokens := rapid.Int64Range(0, 1e6).Draw(t, "tokens")
		fails := func(i int) bool { return excluded.Has(i) || all[i].Health < balance.MinHealth }
		left := 0
		worst, works := -1, false
		for i, s := range all {
			if excluded.Has(i) {
				continue
			}
			works = works || !fails(i)
			if left++; worst < 0 || s.Load(tokens) > all[worst].Load(tokens) {
				worst = i
			}
		}
		for name, got := range map[string]int{
			"without a key": balance.Choose(all, 0, tokens, excluded, random), "with a key": balance.Choose(all, key, tokens, excluded, random),
		} {
			if left == 0 && got != -1 || left > 0 && (got < 0 || got >= len(all) || excluded.Has(got)) {
				t.Fatalf("%s: got endpoint %d of %d, excluded %b", name, got, len(all), excluded)
			}
			if works && fails(got) {
				t.Fatalf("%s: got endpoint %d with %+v, want one that mostly answers", name, got, all[got])
			}
		}
		if left == 0 {
			return
		}
		if works {
			left = 0
			for i := range all {
				if fails(i) {
					excluded = excluded.With(i)
				} else {
					left++
				}
			}
		}
		first, second := balance.Preferred(key, len(all), excluded)
		if (first == second) != (left == 1) {
			t.Fatalf("first choice %d, second choice %d of %d", first, second, left)
		}
		want := first
		if all[first].Load(tokens) > balance.Overload*all[second].Load(tokens) {
			want = second
		}
		if got := balance.Choose(all, key, tokens, excluded, random); got != want {
			t.Fatalf("got endpoint %d, want %d", got, want)
		}
		// The endpoint after the choice of a random number that names two different ones.
		if got := balance.Better(all, worst, first, tokens); got != first && all[first].Load(tokens) < all[worst].Load(tokens) {
			t.Fatalf("the worse endpoint %d was chosen instead of %d", worst, first)
		}
	})
}

// TestLoadOrder checks that each part of the load counts in its direction, a latency from
// MinLatency on.
func TestLoadOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := states(t)[0]
		s.Latency = max(s.Latency, balance.MinLatency)
		tokens := rapid.Int64Range(1, 1e6).Draw(t, "tokens")
		busier, slower, worse := s, s, s
		busier.Tokens += rapid.Int64Range(1, 1e6).Draw(t, "more")
		slower.Latency += rapid.Float64Range(0.01, 10).Draw(t, "slower")
		worse.Health *= rapid.Float64Range(0, 1).Draw(t, "part")
		if l := s.Load(tokens); busier.Load(tokens) <= l || slower.Load(tokens) <= l || worse.Load(tokens) < l || l <= 0 {
			t.Fatalf("loads %v, of more tokens %v, of more latency %v, of less health %v", l, busier.Load(tokens), slower.Load(tokens), worse.Load(tokens))
		}
	})
}

// TestFastEndpoints checks that a difference of latencies below MinLatency moves no call.
func TestFastEndpoints(t *testing.T) {
	t.Parallel()
	all := []balance.State{{Latency: 0.001, Health: 1}, {Latency: 0.04, Health: 1}}
	for key := range uint64(100) {
		first, _ := balance.Preferred(key+1, len(all), 0)
		if got := balance.Choose(all, key+1, 2000, 0, 0); got != first {
			t.Errorf("key %d: got endpoint %d, want its first choice %d", key+1, got, first)
		}
	}
}

// TestAffinity checks that a key keeps its endpoint when another one is excluded, moves to
// its second choice when its own is, and that keys are spread evenly.
func TestAffinity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, key := rapid.IntRange(2, balance.Max).Draw(t, "n"), rapid.Uint64Min(1).Draw(t, "key")
		first, second := balance.Preferred(key, n, 0)
		other := rapid.IntRange(0, n-1).Draw(t, "other")
		got, _ := balance.Preferred(key, n, balance.Set(0).With(other))
		if want := first; other != first && got != want || other == first && got != second {
			t.Fatalf("without %d: got %d, first choice %d, second choice %d", other, got, first, second)
		}
		if grown, _ := balance.Preferred(key, n-1, 0); first != n-1 && grown != first {
			t.Fatalf("with one endpoint more the key moved from %d to %d", grown, first)
		}
	})
	const keys, endpoints = 10_000, 5
	var count [endpoints]int
	for i := range keys {
		first, _ := balance.Preferred(balance.Key("agent", []byte{byte(i), byte(i >> 8)}), endpoints, 0)
		count[first]++
	}
	for i, n := range count {
		if n < keys/endpoints*8/10 || n > keys/endpoints*12/10 {
			t.Errorf("endpoint %d has %d of %d keys", i, n, keys)
		}
	}
}

// TestTurnsStay checks that at least 95 of 100 turns of a session stay at one endpoint
// while other sessions use the pool, and that a session spills from an endpoint that
// fails.
func TestTurnsStay(t *testing.T) {
	t.Parallel()
	p, now := balance.New(4), time.Unix(0, 0)
	stayed, turns := 0, 0
	last := map[string]int{}
	for range 100 {
		var begun []int
		for _, agent := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			i := p.Begin(balance.Key(agent, "the system prompt"), 2000, 0, 0, now)
			if before, ok := last[agent]; ok {
				if turns++; before == i {
					stayed++
				}
			}
			last[agent] = i
			if begun = append(begun, i); len(begun) == 2 { // two calls at a time
				for _, i := range begun {
					p.End(i, 2000, 400*time.Millisecond, balance.Answered, now)
				}
				begun = begun[:0]
			}
			now = now.Add(time.Second)
		}
	}
	if stayed*100 < turns*95 {
		t.Errorf("%d of %d turns stayed at their endpoint, want 95 of 100", stayed, turns)
	}
	key := balance.Key("a", "the system prompt")
	first, second := balance.Preferred(key, 4, 0)
	for range 2 {
		i := p.Begin(key, 2000, 0, 0, now)
		p.End(i, 2000, 0, balance.Failed, now)
	}
	if i := p.Begin(key, 2000, 0, 0, now); i != second {
		t.Errorf("got endpoint %d, want the second choice %d instead of %d, which fails", i, second, first)
	}
}

// TestFailingEndpoint checks that calls avoid an endpoint that fails at once, although it has
// no tokens in progress, that one call at a time tries it again later, and that it is used
// like the other one when it answers.
func TestFailingEndpoint(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]uint64{"two choices": 0, "affinity": balance.Key("agent", "the system prompt")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, _ := balance.Preferred(balance.Key("agent", "the system prompt"), 2, 0)
			p, now, random := balance.New(2), time.Unix(0, 0), uint64(0)
			begin := func() int {
				random += 0x9e3779b97f4a7c15
				return p.Begin(key, 2000, 0, random, now)
			}
			failed := 0
			for range 1000 { // calls that are in progress at the other endpoint stay so
				if begin() == bad {
					failed++
					p.End(bad, 2000, 0, balance.Failed, now)
				}
			}
			if failed > 4 {
				t.Errorf("%d of 1000 calls came to the endpoint that fails", failed)
			}
			now = now.Add(10 * time.Minute)
			again := 0
			for range 100 {
				if begin() == bad {
					again++
				}
			}
			if again != 1 {
				t.Errorf("%d of 100 calls came to the endpoint before it answered, want 1", again)
			}
			p.End(bad, 2000, 400*time.Millisecond, balance.Answered, now)
			if again = 0; begin() == bad {
				again++
			}
			if begin() == bad {
				again++
			}
			if again == 0 {
				t.Error("the endpoint that answers again gets no calls")
			}
		})
	}
}

// TestPool checks that the tokens in progress are those of the attempts that have not
// ended, for any order of attempts.
func TestPool(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type attempt struct {
			at     int
			tokens int64
		}
		n := rapid.IntRange(1, 6).Draw(t, "n")
		p, now := balance.New(n), time.Unix(0, 0)
		var open []attempt
		want := make([]int64, n)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			if len(open) > 0 && rapid.Bool().Draw(t, "end") {
				a := open[0]
				open = open[1:]
				p.End(a.at, a.tokens, time.Duration(rapid.IntRange(0, 9000).Draw(t, "first"))*time.Millisecond, balance.Result(rapid.IntRange(0, 2).Draw(t, "result")), now)
				want[a.at] -= a.tokens
				continue
			}
			a := attempt{tokens: rapid.Int64Range(0, 1e5).Draw(t, "tokens")}
			a.at = p.Begin(rapid.Uint64().Draw(t, "key"), a.tokens, 0, rapid.Uint64().Draw(t, "random"), now)
			want[a.at] += a.tokens
			open = append(open, a)
		}
		for i, s := range p.States() {
			if s.Tokens != want[i] || s.Health < 0 || s.Health > 1 || s.Latency < 0 {
				t.Fatalf("endpoint %d: got %+v, want %d tokens", i, s, want[i])
			}
		}
	})
}

// BenchmarkChoose measures the choice of an endpoint for a call with a key and without.
func BenchmarkChoose(b *testing.B) {
	p, now := balance.New(8), time.Unix(0, 0)
	for name, key := range map[string]uint64{"two choices": 0, "affinity": balance.Key("agent", "the system prompt")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for random := uint64(1); b.Loop(); random += 0x9e3779b97f4a7c15 {
				i := p.Begin(key, 5000, 0, random, now)
				p.End(i, 5000, time.Second, balance.Answered, now)
			}
		})
	}
}
