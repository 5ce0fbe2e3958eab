// Package balance chooses among the endpoints of one provider: addresses and keys that
// serve the same models. A call goes to the better of two endpoints, by the tokens in
// progress, the latency and the share of attempts that were answered. A call with a long
// prompt stays at the endpoint that has the beginning of the prompt in its cache, unless
// that one is overloaded. An endpoint that mostly fails is left out for some time.
//
// The package must not make calls, read a clock or decide whether a provider may be called
// at all: breakers are those of package health. Methods of [Pool] are safe for concurrent
// use, and allocate nothing.
package balance

import (
	"math/bits"
	"sync"
	"time"
)

const (
	// Max is the most endpoints of a provider: a [Set] is a bit mask.
	Max = 64

	// Overload is how many times the load of its second choice the preferred endpoint of a
	// prompt may have. A call beyond it goes to the second choice.
	Overload = 2

	// CachedFrom is the number of prompt tokens from which providers cache prompts.
	CachedFrom = 1024

	// MinLatency is the latency in seconds below which endpoints count as equally fast. A
	// cached prompt is worth more than such a difference.
	MinLatency = 0.05

	// MinHealth is the health below which an endpoint gets no call while another one has
	// more. By its load alone it would get many: it fails at once, so it has no tokens in
	// progress.
	MinHealth = 0.5

	weight     = 0.3                  // of the latest attempt in the moving averages
	divisor    = 0.05                 // the least health by which a load is divided
	firstGuess = 0.5                  // seconds, of an endpoint without an attempt
	halfLife   = float64(time.Minute) // the time in which an average loses half of its distance to that of an endpoint without an attempt
	seed       = 0x9e3779b97f4a7c15   // of the hashes of endpoints
)

// Set is a set of endpoints by their index.
type Set uint64

// With returns the set with an endpoint.
func (s Set) With(i int) Set { return s | 1<<i }

// Has reports whether an endpoint is in the set.
func (s Set) Has(i int) bool { return s&(1<<i) != 0 }

// Len returns the number of endpoints in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// State is what a choice depends on for one endpoint.
type State struct {
	Tokens  int64   // of the attempts in progress, prompts and output limits
	Latency float64 // moving average of the seconds to the first token
	Health  float64 // moving average of the share of answered attempts, from 0 to 1
}

// Load returns the load of an endpoint with a further attempt of this many tokens. Less is
// better.
func (s State) Load(tokens int64) float64 {
	return float64(max(s.Tokens+tokens, 1)) * max(s.Latency, MinLatency) / max(s.Health, divisor)
}

// Better returns the endpoint with the lower load of two, the first one if they are equal.
func Better(all []State, i, j int, tokens int64) int {
	if all[j].Load(tokens) < all[i].Load(tokens) {
		return j
	}
	return i
}

// Preferred returns the first and the second choice for a key among the endpoints that are
// not excluded, by rendezvous hash: without one endpoint the keys of the others do not
// move. second is first if there is only one, and both are -1 if there is none.
func Preferred(key uint64, n int, excluded Set) (first, second int) {
	first, second = -1, -1
	var best, next uint64
	for i := range n {
		if excluded.Has(i) {
			continue
		}
		switch h := mix(key ^ mix(uint64(i+1)*seed)); {
		case first < 0 || h > best:
			second, next = first, best
			first, best = i, h
		case second < 0 || h > next:
			second, next = i, h
		}
	}
	if second < 0 {
		second = first
	}
	return first, second
}

// mix is the finalizer of splitmix64: each bit of the result depends on each bit of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Choose returns the endpoint for an attempt of this many tokens. A key other than 0 is
// that of a prompt; see [Key]. random is a random number for a call without a key. The
// result is -1 if all endpoints are excluded.
func Choose(all []State, key uint64, tokens int64, excluded Set, random uint64) int {
	excluded = withFailing(all, excluded)
	if key != 0 {
		first, second := Preferred(key, len(all), excluded)
		if first < 0 || all[first].Load(tokens) <= Overload*all[second].Load(tokens) {
			return first
		}
		return second
	}
	left := len(all) - (excluded & (1<<len(all) - 1)).Len()
	if left <= 0 {
		return -1
	}
	// The two may be the same, so that also the slowest endpoint is chosen at times.
	i, j := nth(int(random%uint64(left)), excluded), nth(int(random>>32%uint64(left)), excluded)
	return Better(all, i, j, tokens)
}

// withFailing returns the excluded endpoints with those below [MinHealth], unless none is
// left then.
func withFailing(all []State, excluded Set) Set {
	more := excluded
	for i, s := range all {
		if s.Health < MinHealth {
			more = more.With(i)
		}
	}
	if more&(1<<len(all)-1) == 1<<len(all)-1 {
		return excluded
	}
	return more
}

// nth returns the n-th endpoint that is not excluded.
func nth(n int, excluded Set) int {
	for i := 0; ; i++ {
		if !excluded.Has(i) {
			if n == 0 {
				return i
			}
			n--
		}
	}
}

// Key returns the key of a prompt from the agent and the beginning of its text, which
// stays the same over the turns of a session. It is never 0.
func Key[T ~string | ~[]byte](agent string, prefix T) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(agent) {
		h = (h ^ uint64(agent[i])) * 1099511628211
	}
	h = (h ^ 0xff) * 1099511628211
	for i := range len(prefix) {
		h = (h ^ uint64(prefix[i])) * 1099511628211
	}
	return max(mix(h), 1)
}

// Pool holds the states of the endpoints of a provider.
type Pool struct {
	mu  sync.Mutex
	all [Max]State
	at  [Max]time.Time // of the latest result
	n   int
}

// New returns a pool of n endpoints, 1 to [Max].
func New(n int) *Pool {
	p := &Pool{n: min(max(n, 1), Max)}
	for i := range p.all {
		p.all[i] = State{Latency: firstGuess, Health: 1}
	}
	return p
}

// Len returns the number of endpoints.
func (p *Pool) Len() int { return p.n }

// Begin chooses the endpoint for an attempt and counts its tokens until [Pool.End]. The
// result is -1 if all endpoints are excluded.
func (p *Pool) Begin(key uint64, tokens int64, excluded Set, random uint64, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := 0
	if p.n > 1 || excluded != 0 {
		states := p.all // the copy is on the stack
		for i := range p.n {
			if s := &states[i]; s.Health >= MinHealth || s.Tokens == 0 { // one attempt at a time tries whether it works again
				s.age(now.Sub(p.at[i]))
			}
		}
		i = Choose(states[:p.n], key, tokens, excluded, random)
	}
	if i >= 0 {
		p.all[i].Tokens += tokens
	}
	return i
}

// age changes the averages to those that are as old as this. They approach those of an
// endpoint without an attempt, so that an endpoint that was slow or failed is called again.
func (s *State) age(age time.Duration) {
	part := halfLife / (halfLife + float64(max(age, 0)))
	s.Latency = firstGuess + (s.Latency-firstGuess)*part
	s.Health = 1 + (s.Health-1)*part
}

// Result is how an attempt ended.
type Result int

// The results.
const (
	Unknown  Result = iota // it says nothing about the endpoint: its caller left
	Answered               // also with a refusal
	Failed
)

// End ends an attempt of this many tokens, with the time to its first token, 0 for none.
func (p *Pool) End(i int, tokens int64, first time.Duration, r Result, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.all[i]
	s.Tokens -= tokens
	if r == Unknown {
		return
	}
	healthy := 0.0
	if r == Answered {
		healthy = 1
	}
	s.age(now.Sub(p.at[i]))
	s.Health += weight * (healthy - s.Health)
	if first > 0 {
		s.Latency += weight * (first.Seconds() - s.Latency)
	}
	p.at[i] = now
}
