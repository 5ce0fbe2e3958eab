package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// summary is the result of a load.
type summary struct {
	Name     string   `json:"name"`
	Seconds  float64  `json:"seconds"`
	Sent     int      `json:"sent"`           // accepted messages
	Runs     int      `json:"runs"`           // of them, runs that succeeded
	Turns    int      `json:"turns"`          // in those runs
	Failed   int      `json:"failed"`         // runs that failed
	Lost     int      `json:"lost"`           // not ended, or unknown, when requested after their timeout
	Unheard  int      `json:"unheard"`        // ended, but the end event was not received in time
	Refused  int      `json:"refused"`        // not accepted within the timeout
	Doubled  int      `json:"doubled"`        // holds that were settled more than once
	Unpaid   int      `json:"unpaid"`         // turns without exactly one settled hold for a complete answer
	Broken   int      `json:"broken"`         // completions that broke off and were paid in part
	Late     int      `json:"late"`           // runs that took longer than -late, because another owner resumed them
	Rate     float64  `json:"turnsPerSecond"` // of the runs that ended while messages were sent
	P50MS    float64  `json:"p50Ms"`          // duration of a run for its sender, in milliseconds
	P99MS    float64  `json:"p99Ms"`
	MaxMS    float64  `json:"maxMs"`
	GapMS    float64  `json:"gapMs"` // longest time without the end of a run, in milliseconds
	LedgerOK bool     `json:"ledgerOk"`
	Slowest  string   `json:"slowest,omitempty"` // id of the run
	Faults   []string `json:"faults,omitempty"`  // the first faults
	Samples  []sample `json:"samples,omitempty"`
}

// sample is a run that succeeded, whose trace can be checked.
type sample struct {
	Run   string `json:"run"`
	Turns int    `json:"turns"`
	Began int64  `json:"beganMs"` // Unix milliseconds
	Ended int64  `json:"endedMs"`
}

const (
	maxFaults  = 10
	maxSamples = 12
)

func (s summary) ok() bool {
	return s.Failed+s.Lost+s.Unheard+s.Refused+s.Doubled+s.Unpaid == 0 && s.Runs > 0 && s.LedgerOK
}

func (s *summary) fault(text string) {
	if len(s.Faults) < maxFaults {
		s.Faults = append(s.Faults, text)
	}
}

// measure computes rate and durations of the runs that succeeded. Messages were sent
// between began and stopped. Runs that ended later do not count for the rate, because no
// new runs replaced the ended ones then.
func (s *summary) measure(began, stopped time.Time, done []ended, late time.Duration) {
	if len(done) == 0 {
		return
	}
	turns := 0
	for _, e := range done {
		if !e.ended.After(stopped) {
			turns += e.turns
		}
	}
	if d := stopped.Sub(began).Seconds(); d > 0 {
		s.Rate = float64(turns) / d
	}
	took := make([]time.Duration, len(done))
	for i, e := range done {
		if took[i] = e.ended.Sub(e.began); took[i] > late {
			s.Late++
		}
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	k := len(took)
	s.P50MS, s.P99MS, s.MaxMS = ms(took[k/2]), ms(took[k*99/100]), ms(took[k-1])

	done = slices.Clone(done)
	slices.SortFunc(done, func(a, b ended) int { return a.ended.Compare(b.ended) })
	last, gap := began, time.Duration(0)
	for _, e := range done {
		gap, last = max(gap, e.ended.Sub(last)), e.ended
	}
	s.GapMS = ms(gap)
	// The samples are the first, the last and the slowest run, and some others.
	slowest := slices.MaxFunc(done, func(a, b ended) int { return cmp.Compare(a.ended.Sub(a.began), b.ended.Sub(b.began)) })
	s.Slowest = slowest.run
	add := func(e ended) {
		s.Samples = append(s.Samples, sample{e.run, e.turns, e.began.UnixMilli(), e.ended.UnixMilli()})
	}
	n := min(len(done), maxSamples-1)
	for i := range n {
		add(done[i*(len(done)-1)/max(n-1, 1)])
	}
	if !slices.ContainsFunc(s.Samples, func(x sample) bool { return x.Run == slowest.run }) {
		add(slowest)
	}
}

// audit compares the ledger's entries with the runs that succeeded and their number of
// turns: each turn must have exactly one settled hold, and no hold may be settled twice.
func (s *summary) audit(entries []api.Posted, runs map[string]int) {
	settled, turns := map[string]int{}, map[string]int{}
	for _, p := range entries {
		if p.Kind == "settle" {
			settled[p.ID]++
			if p.Memo == api.MemoBroken {
				s.Broken++
				continue
			}
			turns[p.Turn]++
		}
	}
	for id, n := range settled {
		if n > 1 {
			s.Doubled++
			s.fault(fmt.Sprintf("hold %s was settled %d times", id, n))
		}
	}
	for run, n := range runs {
		for i := range n {
			turn := turnID(run, i+1)
			if paid := turns[turn]; paid != 1 {
				s.Unpaid++
				s.fault(fmt.Sprintf("turn %s was paid %d times", turn, paid))
			}
		}
	}
}
