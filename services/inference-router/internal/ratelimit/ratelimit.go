// Package ratelimit keeps the calls of one router within the rates that its providers
// allow: requests and tokens a minute. The router waits, or calls another provider,
// instead of making a call that the provider would refuse.
//
// It counts only the calls of its own process: with several replicas each has its share of
// a provider's rates. It does not interpret what providers report.
package ratelimit

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Rates are what a provider allows in a minute. 0 means no limit.
type Rates struct {
	Requests, Tokens int64
}

// Parse reads rates in the form provider=requests/tokens, like openai=500/200000. Each
// provider may occur once.
func Parse(list []string) (map[string]Rates, error) {
	all := map[string]Rates{}
	for _, item := range list {
		name, rest, ok := strings.Cut(strings.TrimSpace(item), "=")
		requests, tokens, two := strings.Cut(rest, "/")
		var r Rates
		var err1, err2 error
		r.Requests, err1 = strconv.ParseInt(requests, 10, 64)
		r.Tokens, err2 = strconv.ParseInt(tokens, 10, 64)
		_, twice := all[name]
		switch {
		case !ok || !two || name == "" || err1 != nil || err2 != nil || r.Requests < 0 || r.Tokens < 0:
			return nil, fmt.Errorf("%q is not provider=requests/tokens a minute, like openai=500/200000; 0 is no limit", item)
		case r.Requests > maxRate || r.Tokens > maxRate:
			return nil, fmt.Errorf("%q: a rate can be at most %d", item, int64(maxRate))
		case twice:
			return nil, fmt.Errorf("%q: the provider has rates already", item)
		}
		all[name] = r
	}
	return all, nil
}

// maxRate is the largest rate. The level of a bucket must not overflow when two minutes
// are added.
const maxRate = 1e9

// Limiter counts the calls to providers. Use [New] to create one. It is safe for
// concurrent use.
type Limiter struct {
	providers map[string]*buckets // not modified
}

type buckets struct {
	mu               sync.Mutex
	requests, tokens bucket
}

// New returns a limiter for these rates, by provider. Other providers have no limit. All
// buckets are full.
func New(rates map[string]Rates) *Limiter {
	l := &Limiter{providers: map[string]*buckets{}}
	for name, r := range rates {
		l.providers[name] = &buckets{requests: newBucket(r.Requests), tokens: newBucket(r.Tokens)}
	}
	return l
}

// Take takes a request and a number of tokens at a time. If the rates do not allow them
// now, it takes nothing and returns how long they do not, more than 0. A call with more
// tokens than the rate of a minute needs a full bucket.
func (l *Limiter) Take(provider string, tokens int64, at time.Time) time.Duration {
	b := l.providers[provider]
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.fill(at)
	b.tokens.fill(at)
	if wait := max(b.requests.wait(1), b.tokens.wait(tokens)); wait > 0 {
		return wait
	}
	b.requests.take(1)
	b.tokens.take(tokens)
	return 0
}

// Correct replaces the tokens that a call took by those that it used.
func (l *Limiter) Correct(provider string, taken, used int64) {
	if b := l.providers[provider]; b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tokens.take(used - taken)
	}
}

// Return gives back what a call took that was not made.
func (l *Limiter) Return(provider string, tokens int64) {
	if b := l.providers[provider]; b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests.take(-1)
		b.tokens.take(-tokens)
	}
}

// bucket holds at most the rate of a minute and is filled evenly.
type bucket struct {
	rate  int64     // a minute; 0: no limit
	level int64     // in parts; negative after a call that used more than it took
	at    time.Time // of the level
}

// parts are those of one request or token. A bucket gains as many parts in a microsecond
// as its rate is, so that filling it is exact.
const parts = int64(time.Minute / time.Microsecond)

func newBucket(rate int64) bucket { return bucket{rate: rate, level: rate * parts} }

// fill adds what the bucket gains until the time. A clock that goes back adds nothing.
func (b *bucket) fill(at time.Time) {
	passed := at.Sub(b.at) / time.Microsecond
	switch {
	case b.rate == 0 || passed <= 0:
	case int64(passed) >= 2*parts: // fills it also from its largest debt
		b.level, b.at = b.rate*parts, at
	default:
		b.level, b.at = min(b.level+b.rate*int64(passed), b.rate*parts), b.at.Add(passed*time.Microsecond)
	}
}

// wait returns how long the bucket holds fewer than n.
func (b *bucket) wait(n int64) time.Duration {
	missing := min(n, b.rate)*parts - b.level
	if b.rate == 0 || missing <= 0 {
		return 0
	}
	return time.Duration((missing+b.rate-1)/b.rate) * time.Microsecond
}

// take takes n, or gives back -n. The bucket owes at most the rate of a minute.
func (b *bucket) take(n int64) {
	n = max(min(n, 2*b.rate), -2*b.rate)
	b.level = min(max(b.level-n*parts, -b.rate*parts), b.rate*parts)
}
