package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Summary is the result of a load, as e2e/load prints it. Its fields are documented
// there.
type Summary struct {
	Name     string   `json:"name"`
	Seconds  float64  `json:"seconds"`
	Sent     int      `json:"sent"`
	Runs     int      `json:"runs"`
	Turns    int      `json:"turns"`
	Failed   int      `json:"failed"`
	Lost     int      `json:"lost"`
	Unheard  int      `json:"unheard"`
	Refused  int      `json:"refused"`
	Doubled  int      `json:"doubled"`
	Unpaid   int      `json:"unpaid"`
	Broken   int      `json:"broken"`
	Late     int      `json:"late"`
	Rate     float64  `json:"turnsPerSecond"`
	P50MS    float64  `json:"p50Ms"`
	P99MS    float64  `json:"p99Ms"`
	MaxMS    float64  `json:"maxMs"`
	GapMS    float64  `json:"gapMs"`
	LedgerOK bool     `json:"ledgerOk"`
	Slowest  string   `json:"slowest,omitempty"`
	Faults   []string `json:"faults,omitempty"`
	Samples  []Sample `json:"samples,omitempty"`
}

// Sample is one run that succeeded.
type Sample struct {
	Run   string `json:"run"`
	Turns int    `json:"turns"`
	Began int64  `json:"beganMs"`
	Ended int64  `json:"endedMs"`
}

// parseSummary finds the summary in the log of a load.
func parseSummary(log string) (Summary, error) {
	var s Summary
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &s); err != nil {
				return s, fmt.Errorf("the load's summary: %w", err)
			}
		}
	}
	if s.Name == "" {
		return s, errors.New("the load printed no summary: " + tail(log, 400))
	}
	return s, nil
}

// whole reports whether all runs succeeded, their ends were announced, each turn was paid
// exactly once, and the ledger verifies.
func (s Summary) whole() bool {
	return s.Failed+s.Lost+s.Unheard+s.Refused+s.Doubled+s.Unpaid == 0 && s.Runs > 0 && s.LedgerOK
}

// String returns the figures of the load on one line.
func (s Summary) String() string {
	text := fmt.Sprintf("%d runs, %d turns, %.0f/s: lost %d, failed %d, refused %d, doubled %d, unpaid %d, late %d; p50 %s, p99 %s, slowest %s, longest gap %s",
		s.Runs, s.Turns, s.Rate, s.Lost, s.Failed, s.Refused, s.Doubled, s.Unpaid, s.Late, ms(s.P50MS), ms(s.P99MS), ms(s.MaxMS), ms(s.GapMS))
	if s.Unheard > 0 {
		text += fmt.Sprintf("; %d ends were not announced", s.Unheard)
	}
	if s.Broken > 0 {
		text += fmt.Sprintf("; %d answers broke off, paid for what had come", s.Broken)
	}
	if s.Late > 0 {
		text += "; slowest was run " + s.Slowest
	}
	if !s.LedgerOK {
		text += "; the ledger is broken"
	}
	if len(s.Faults) > 0 {
		text += "\n" + strings.Join(s.Faults, "\n")
	}
	return text
}

func ms(v float64) string {
	return time.Duration(v * float64(time.Millisecond)).Round(time.Millisecond).String()
}

// bounds are the limits for a load during a step, in addition to those of whole.
type bounds struct {
	steady  *Summary      // nil: durations of runs are not compared
	compare bool          // p99 must be less than twice that of steady
	worst   time.Duration // maximum duration of a run; 0 means no limit
	onTime  bool          // no run may have been resumed
}

// judge returns the checks of a load, one for each bound.
func judge(what string, s Summary, b bounds) []Check {
	say := func(ok bool, name, figures string) Check {
		c := Check{Name: what + ": " + name, Outcome: Passed, Figures: figures}
		if !ok {
			c.Outcome = Failed
		}
		return c
	}
	out := []Check{say(s.whole(), "nothing lost, failed or paid twice", s.String())}
	if b.onTime {
		out = append(out, say(s.Late == 0 && s.Runs > 0, "no run had to be taken up again", fmt.Sprintf("%d late", s.Late)))
	}
	if b.worst > 0 {
		out = append(out, say(s.MaxMS < float64(b.worst.Milliseconds()) && s.Runs > 0, "slowest run below "+b.worst.String(), ms(s.MaxMS)))
	}
	if b.compare {
		const name = "p99 below twice the steady one"
		if b.steady == nil || b.steady.P99MS == 0 {
			out = append(out, Check{Name: what + ": " + name, Outcome: NotRun, Figures: "run the step steady, too"})
		} else {
			out = append(out, say(s.P99MS < 2*b.steady.P99MS && s.Runs > 0, name, ms(s.P99MS)+" against "+ms(b.steady.P99MS)))
		}
	}
	return out
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}
