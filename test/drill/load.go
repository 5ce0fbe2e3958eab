package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"text/template"
	"time"
)

//go:embed load.yaml
var loadYAML string

var loadJob = template.Must(template.New("load").Parse(loadYAML))

// loading holds the settings of a load. The zero value of each field is its default.
type loading struct {
	Name     string        // name of the load, in the report and in its agents' names
	Node     string        // default: the first
	Agents   int           // default: that of the drill
	Text     string        // default "one tool", a run of two turns
	Mode     string        // default "turns"
	For      time.Duration // default 10 min: the load is stopped by a command
	Late     time.Duration // default 10 s, less than the lease
	Patience time.Duration // default 90 s
}

// load is a Job that sends messages.
type load struct {
	w         *world
	what, job string
	pod       string
	ears      *ears
	Began     time.Time
}

// load starts a load and returns when it has begun to send.
func (w *world) load(ctx context.Context, o loading) (*load, error) {
	w.loads++
	l := &load{w: w, what: o.Name, job: fmt.Sprintf("%s-%s-%d", o.Name, when(w.report.began), w.loads)}
	o.Name = l.job
	o.Node = cmp.Or(o.Node, w.nodes[0])
	o.Agents = cmp.Or(o.Agents, w.Agents)
	o.Text = cmp.Or(o.Text, "one tool")
	o.Mode = cmp.Or(o.Mode, "turns")
	o.For = cmp.Or(o.For, 10*time.Minute)
	o.Late = cmp.Or(o.Late, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 90*time.Second)
	var text bytes.Buffer
	if err := loadJob.Execute(&text, o); err != nil {
		return nil, err
	}
	if err := w.apply(ctx, text.Bytes()); err != nil {
		return nil, err
	}
	err := poll(ctx, 90*time.Second, 300*time.Millisecond, func(ctx context.Context) error {
		pods, err := w.pods(ctx, "job-name="+l.job)
		if err != nil || len(pods) == 0 {
			return errors.Join(err, errors.New("the load has no pod"))
		}
		l.pod = pods[0].Metadata.Name
		log, err := w.log(ctx, l.pod)
		if err == nil && !strings.Contains(log, "msg=sending") {
			err = fmt.Errorf("the load has not begun: %s: %s", pods[0].Status.Phase, tail(log, 300))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	l.Began, l.ears = time.Now(), w.listen(ctx)
	return l, nil
}

// when returns a short text for a time, for names.
func when(t time.Time) string { return fmt.Sprintf("%x", t.Unix()%(1<<20)) }

// end stops the load, waits for its audit and returns its summary. It deletes the Job.
func (l *load) end(ctx context.Context) (Summary, error) {
	w := l.w
	if _, err := w.k(ctx, "exec", l.pod, "--", "/load", "-stop"); err != nil && ctx.Err() == nil {
		w.report.note("%s could not be told to stop, perhaps it has: %v", l.job, err)
	}
	return l.wait(ctx)
}

func (l *load) wait(ctx context.Context) (Summary, error) {
	w := l.w
	heard := sync.OnceValue(l.ears.close)
	defer heard()
	err := poll(ctx, 12*time.Minute, 300*time.Millisecond, func(ctx context.Context) error {
		pods, err := w.pods(ctx, "job-name="+l.job)
		if err != nil || len(pods) == 0 {
			return errors.Join(err, errors.New("the load's pod is gone"))
		}
		if p := pods[0].Status.Phase; p != "Succeeded" && p != "Failed" {
			return errors.New("the load is " + p)
		}
		return nil
	})
	if err != nil {
		return Summary{}, err
	}
	log, err := w.log(ctx, l.pod)
	if err != nil {
		return Summary{}, err
	}
	s, err := parseSummary(log)
	if err != nil {
		return s, err
	}
	if w.report.Loads == nil {
		w.report.Loads = map[string]Summary{}
	}
	w.report.Loads[l.what] = s
	if said := heard(); !s.whole() {
		for i, line := range said {
			if i == 8 {
				w.report.note("and %d more errors", len(said)-i)
				break
			}
			w.report.note("%s", tail(line, 900))
		}
	}
	_, err = w.k(ctx, "delete", "job", l.job, "--wait=false")
	return s, err
}

// during calls what during a load, and judges the load. The result of what is a separate
// check.
func (w *world) during(ctx context.Context, o loading, title string, b bounds, what func(context.Context) error) error {
	l, err := w.load(ctx, o)
	if err != nil {
		return err
	}
	sleep(ctx, 2*time.Second)
	w.checkErr(title+" goes through", what(ctx))
	sleep(ctx, 2*time.Second)
	s, err := l.end(ctx)
	if err != nil {
		return err
	}
	w.judge(title, s, b)
	return nil
}
