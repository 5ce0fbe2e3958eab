package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// Outcome is the outcome of a check.
type Outcome string

// Outcomes. A check that could not be run here is neither passed nor failed.
const (
	Passed Outcome = "PASS"
	Failed Outcome = "FAIL"
	NotRun Outcome = "NOT RUN"
)

// Check is the result of one check.
type Check struct {
	Step    string  `json:"step"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Figures string  `json:"figures,omitempty"` // measured values
	Seconds float64 `json:"seconds"`           // since the previous check, or the beginning of the step
}

// Report holds the results of a drill.
type Report struct {
	Checks []Check            `json:"checks"`
	Loads  map[string]Summary `json:"loads"` // by the name of the load
	Notes  []string           `json:"notes,omitempty"`

	began, stepped, last time.Time
	step                 string
	out                  io.Writer
}

func newReport(out io.Writer) *Report { return &Report{began: time.Now(), out: out} }

func (r *Report) begin(s step) {
	r.step, r.stepped, r.last = s.name, time.Now(), time.Now()
	r.line("== %s: %s", s.name, s.proves)
}

func (r *Report) end() { r.line("   %s took %.0f s", r.step, time.Since(r.stepped).Seconds()) }

func (r *Report) line(format string, a ...any) {
	_, _ = fmt.Fprintf(r.out, "%5.0fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, a...)) // a line that cannot be printed is still in the report
}

func (r *Report) add(o Outcome, name, figures string) {
	now := time.Now()
	r.Checks = append(r.Checks, Check{Step: r.step, Name: name, Outcome: o, Figures: figures, Seconds: now.Sub(r.last).Seconds()})
	r.last = now
	if figures != "" {
		name += " (" + strings.ReplaceAll(strings.TrimSpace(figures), "\n", "\n              ") + ")"
	}
	r.line("%-7s %s", o, name)
}

// note adds a line that is not a check.
func (r *Report) note(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	r.Notes = append(r.Notes, r.step+": "+text)
	r.line("        %s", text)
}

// Count returns the number of checks with an outcome.
func (r *Report) Count(o Outcome) int {
	n := 0
	for _, c := range r.Checks {
		if c.Outcome == o {
			n++
		}
	}
	return n
}

// Summary returns the last line of the report.
func (r *Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d not run", r.Count(Passed), r.Count(Failed), r.Count(NotRun))
}

// JSON writes the report as one object.
func (r *Report) JSON(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string    `xml:"classname,attr"`
	Name    string    `xml:"name,attr"`
	Time    string    `xml:"time,attr"`
	Failure *junitWhy `xml:"failure"`
	Skipped *junitWhy `xml:"skipped"`
	Out     string    `xml:"system-out,omitempty"`
}

type junitWhy struct {
	Message string `xml:"message,attr"`
}

// JUnit writes the report in the format that CI systems read: a test case for each check,
// with its step as the class.
func (r *Report) JUnit(out io.Writer) error {
	s := junitSuite{Name: "drill", Tests: len(r.Checks), Failures: r.Count(Failed), Skipped: r.Count(NotRun), Stamp: r.began.UTC().Format("2006-01-02T15:04:05")}
	total := 0.0
	for _, c := range r.Checks {
		total += c.Seconds
		k := junitCase{Class: "drill." + c.Step, Name: c.Name, Time: fmt.Sprintf("%.3f", c.Seconds)}
		switch c.Outcome {
		case Failed:
			k.Failure = &junitWhy{c.Figures}
		case NotRun:
			k.Skipped = &junitWhy{c.Figures}
		default:
			k.Out = c.Figures
		}
		s.Cases = append(s.Cases, k)
	}
	s.Time = fmt.Sprintf("%.3f", total)
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(out)
	enc.Indent("", "  ")
	if err := enc.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}
