package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"
)

func good() Summary {
	return Summary{Name: "x", Runs: 10, Turns: 20, LedgerOK: true, P50MS: 100, P99MS: 400, MaxMS: 500}
}

func failures(all []Check) (out []string) {
	for _, c := range all {
		if c.Outcome == Failed {
			out = append(out, c.Name)
		}
	}
	return out
}

// TestRestarts checks that a failed pod of a Job counts as a restart.
func TestRestarts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"phase": "Running", "containerStatuses": [{"restartCount": 2}, {"restartCount": 1}]}`: 3,
		`{"phase": "Failed", "containerStatuses": [{"restartCount": 0}]}`:                       1,
		`{"phase": "Succeeded", "containerStatuses": [{"restartCount": 0}]}`:                    0,
	} {
		var p pod
		if err := json.Unmarshal([]byte(text), &p.Status); err != nil {
			t.Fatal(err)
		}
		if got := p.restarts(); got != want {
			t.Errorf("%s: got %d restarts, want %d", text, got, want)
		}
	}
}

// TestJudgeSaysNo checks that the judge detects each kind of failure.
func TestJudgeSaysNo(t *testing.T) {
	t.Parallel()
	base := good()
	all := bounds{steady: &base, compare: true, worst: worst, onTime: true}
	if got := failures(judge("x", good(), all)); got != nil {
		t.Errorf("a good load: got %v", got)
	}
	for name, spoil := range map[string]func(*Summary){
		"lost": func(s *Summary) { s.Lost = 1 }, "unheard": func(s *Summary) { s.Unheard = 1 }, "failed": func(s *Summary) { s.Failed = 1 }, "refused": func(s *Summary) { s.Refused = 1 },
		"doubled": func(s *Summary) { s.Doubled = 1 }, "unpaid": func(s *Summary) { s.Unpaid = 1 },
		"a broken ledger": func(s *Summary) { s.LedgerOK = false }, "nothing done": func(s *Summary) { s.Runs = 0 },
		"late": func(s *Summary) { s.Late = 1 }, "slow": func(s *Summary) { s.P99MS = 800 }, "one very slow": func(s *Summary) { s.MaxMS = 17000 },
	} {
		s := good()
		if spoil(&s); failures(judge("x", s, all)) == nil {
			t.Errorf("%s: the judge says nothing", name)
		}
	}
	// Without a steady load the comparison is not possible, and is reported as not run.
	none := judge("x", good(), bounds{compare: true})
	if len(none) != 2 || none[1].Outcome != NotRun {
		t.Errorf("without a steady load: got %+v", none)
	}
}

func TestParseSummary(t *testing.T) {
	t.Parallel()
	s, err := parseSummary("time=x level=INFO msg=sending\n" + `{"name":"a","runs":3,"late":1,"ledgerOk":true,"p99Ms":1.5,"samples":[{"run":"r","turns":4,"beganMs":1,"endedMs":2}]}` + "\nload: bad\n")
	if err != nil || s.Runs != 3 || s.Late != 1 || !s.LedgerOK || s.P99MS != 1.5 || s.Samples[0].Run != "r" {
		t.Errorf("got %+v, %v", s, err)
	}
	for _, log := range []string{"", "load: cannot connect\n", "{broken\n"} {
		if _, err := parseSummary(log); err == nil {
			t.Errorf("%q: no error", log)
		}
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	r := &Report{began: time.Now(), out: &lines}
	r.begin(step{name: "one", proves: "it"})
	r.add(Passed, "good <&>", "1 of 1")
	r.add(Failed, "bad", "why \"not\"\nmore")
	r.add(NotRun, "away", "no KEDA")
	r.end()
	if got, want := r.Summary(), "1 passed, 1 failed, 1 not run"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, want := range []string{"PASS    good <&> (1 of 1)", "FAIL    bad", "NOT RUN away (no KEDA)"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no %q in:\n%s", want, lines.String())
		}
	}
	var out bytes.Buffer
	if err := r.JUnit(&out); err != nil {
		t.Fatal(err)
	}
	var s junitSuite
	if err := xml.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if s.Tests != 3 || s.Failures != 1 || s.Skipped != 1 || len(s.Cases) != 3 || s.Cases[0].Name != "good <&>" || s.Cases[0].Class != "drill.one" {
		t.Errorf("got %+v", s)
	}
	if s.Cases[1].Failure == nil || !strings.HasPrefix(s.Cases[1].Failure.Message, `why "not"`) || s.Cases[2].Skipped == nil || s.Cases[0].Failure != nil {
		t.Errorf("got %+v", s.Cases)
	}
	out.Reset()
	if err := r.JSON(&out); err != nil || !strings.Contains(out.String(), `"outcome": "NOT RUN"`) {
		t.Errorf("JSON: %v, %s", err, out.String())
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	got, err := choose([]string{"nats", "deploy"})
	if err != nil || len(got) != 2 || got[0].name != "deploy" { // in the order of the table
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := choose([]string{"depoly"}); err == nil || !strings.Contains(err.Error(), "deploy") {
		t.Errorf("got %v, want the names that there are", err)
	}
	if all, err := choose(nil); err != nil || len(all) != len(names()) {
		t.Errorf("all: got %d steps, %v", len(all), err)
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	targets, want, err := expected()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(slices.Clone(six), "load", "stranger") {
		if want[s] == nil {
			t.Errorf("%s is not in the matrix", s)
		}
	}
	// A refused connection proves a policy only if another source can connect.
	for _, target := range targets {
		yes, no := false, false
		for _, row := range want {
			yes, no = yes || row[target], no || !row[target]
		}
		if !yes || !no {
			t.Errorf("%s: allowed to one service %t, refused to another %t; want both", target, yes, no)
		}
	}
	if !want["inference-router"]["outside"] || want["loop"]["outside"] || want["stranger"]["nats"] {
		t.Error("the router alone goes outside, and strangers nowhere")
	}
	if got := parseProbe("nats yes\npg no\nsh: noise here\nx maybe\n"); len(got) != 2 || !got["nats"] || got["pg"] {
		t.Errorf("a probe's log: got %v", got)
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	render := func(tpl *template.Template, v any) string {
		var b bytes.Buffer
		if err := tpl.Execute(&b, v); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	l := render(loadJob, loading{Name: "n", Node: "node2", Agents: 3, Text: "tour {peer}", Mode: "turns", For: time.Minute, Late: 10 * time.Second})
	for _, want := range []string{"nodeName: node2", `"-agents=3"`, `"-text=tour {peer}"`, `"-for=1m0s"`, `"-late=10s"`} {
		if !strings.Contains(l, want) {
			t.Errorf("no %s in %s", want, l)
		}
	}
	p := render(probePods, []prober{{Name: "probe-a", Namespace: "default", Labels: map[string]string{"x/y": "z"}, Targets: "a b 1;c d 2"}})
	for _, want := range []string{"name: probe-a\n  namespace: default\n", `    x/y: "z"`, `value: "a b 1;c d 2"`} {
		if !strings.Contains(p, want) {
			t.Errorf("no %q in %s", want, p)
		}
	}
}

func TestPick(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli
	all := []Sample{{"a", 4, 0, 10}, {"b", 0, 0, 15}, {"c", 4, 0, 20}, {"d", 5, 0, 30}}
	for want, in := range map[string][2]int64{"a": {0, 12}, "c": {12, 25}, "d": {25, 40}, "": {40, 50}} {
		if got := pick(all, at(in[0]), at(in[1])); got != want {
			t.Errorf("%v: got %q, want %q", in, got, want)
		}
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	w := &world{cluster: &cluster{nodes: []string{"a", "b", "c"}}}
	seen := map[string]bool{}
	for i := range 3 {
		victim, safe := w.turn(i)
		if seen[victim] = true; victim == safe {
			t.Errorf("time %d: the load is on the node that goes", i)
		}
	}
	if len(seen) != 3 {
		t.Errorf("nodes: got %v, want each once", seen)
	}
}

// TestRetagged checks that the previous release is deployed from the same overlay with
// another tag.
func TestRetagged(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.FromSlash("../../deploy/k8s/overlays/lab/kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := retagged(string(raw))
	if n := strings.Count(got, "newTag: "+previous+"}"); n != len(six) || strings.Contains(got, "newTag: lab}") {
		t.Errorf("%d images have the tag, want %d", n, len(six))
	}
}

func TestPollTellsTheLastReason(t *testing.T) {
	t.Parallel()
	n := 0
	err := poll(t.Context(), time.Minute, time.Nanosecond, func(ctx context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("got %v after %d", err, n)
	}
	err = poll(t.Context(), time.Nanosecond, time.Hour, func(context.Context) error { return errors.New("no server") })
	if err == nil || !strings.Contains(err.Error(), "no server") || !strings.Contains(err.Error(), "not within") {
		t.Errorf("got %v", err)
	}
}
