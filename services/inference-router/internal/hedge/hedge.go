// Package hedge estimates after which time without a first token a second attempt of a call
// pays: the 95th percentile of the earlier attempts at the same model.
//
// The package must not make attempts, hold credits or read a clock. Methods of [Estimates]
// are safe for concurrent use.
package hedge

import (
	"math"
	"sync"
	"time"
)

const (
	// MinSamples is the number of attempts from which there is an estimate.
	MinSamples = 32

	// Percentile of the times to the first token.
	Percentile = 0.95

	// MaxRoutes is the most models with an estimate. If there are more, all start again.
	MaxRoutes = 1024

	// Shortest is the shortest estimate: a shorter wait is noise.
	Shortest = 20 * time.Millisecond

	window  = 512 // samples after which the older ones count half
	buckets = 72
	base    = time.Millisecond // upper end of the first bucket
)

// growth is the ratio of the upper ends of two buckets, so the last one is above 3 min.
var growth = math.Pow(2, 0.25)

// Percentiles counts times in buckets of growing width: its estimate is at most growth
// times the exact percentile. Older times lose weight. The zero value is empty.
type Percentiles struct {
	counts [buckets]uint16
	total  uint16
}

// Add adds a time. Negative times count as 0.
func (p *Percentiles) Add(d time.Duration) {
	if p.total >= window {
		p.total = 0
		for i := range p.counts {
			p.counts[i] /= 2
			p.total += p.counts[i]
		}
	}
	i := 0
	if d > base {
		i = min(int(math.Ceil(math.Log(float64(d)/float64(base))/math.Log(growth))), buckets-1)
	}
	p.counts[i]++
	p.total++
}

// At returns the time within which a share of the added times are, rounded up to the end
// of its bucket, and false if fewer than [MinSamples] count.
func (p *Percentiles) At(share float64) (time.Duration, bool) {
	if p.total < MinSamples {
		return 0, false
	}
	need, sum := int(math.Ceil(share*float64(p.total))), 0
	for i, n := range p.counts {
		if sum += int(n); sum >= need {
			return time.Duration(float64(base) * math.Pow(growth, float64(i))), true
		}
	}
	return 0, false // not reached: the sum of all counts is the total
}

// Route is what has an estimate: one model of one provider.
type Route struct{ Provider, Model string }

// Estimates holds the times to the first token by route. The zero value is ready to use.
type Estimates struct {
	mu  sync.Mutex
	all map[Route]*Percentiles
}

// Add adds the time to the first token of an attempt. For an attempt that was canceled
// without a token it is the time that passed, so that slow attempts are not left out.
func (e *Estimates) Add(r Route, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.all[r]
	if p == nil {
		if e.all == nil || len(e.all) >= MaxRoutes {
			e.all = map[Route]*Percentiles{}
		}
		p = &Percentiles{}
		e.all[r] = p
	}
	p.Add(d)
}

// After returns the time without a token after which an attempt is hedged, and false if too
// few attempts are known.
func (e *Estimates) After(r Route) (time.Duration, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.all[r]
	if p == nil {
		return 0, false
	}
	d, ok := p.At(Percentile)
	return max(d, Shortest), ok
}
