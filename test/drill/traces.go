package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// nap is a message whose run uses all six services in its one turn: the agent reads its
// inbox, sends a peer a message and sleeps.
const nap = "nap {peer}"

// nappers is the number of agents that do so. It is large enough that no agent reaches
// policy's limit of 100 messages per hour, above which its calls would be refused, and
// small enough that on a slow machine no message waits for its session, behind a run by a
// wake, until it expires, and that on a fast one Jaeger keeps all traces, at most 10,000.
// 24 agents made more of them with 10 runs per second.
const nappers = 16

// traces checks traces in Jaeger of turns before, during and after a rollout of three
// services.
func traces(ctx context.Context, w *world) error {
	program := filepath.Join(w.dir, "trace")
	if _, err := call(ctx, filepath.Join(w.Root, "tools", "trace"), []string{"GOWORK=off", "CGO_ENABLED=0"}, "go", "build", "-o", program, "."); err != nil {
		return err
	}
	l, err := w.load(ctx, loading{Name: "traces", Agents: nappers, Text: nap, Late: time.Minute})
	if err != nil {
		return err
	}
	sleep(ctx, 8*time.Second)
	began := time.Now()
	var failed error
	for _, s := range []string{"loop", "inference-router", "treasury"} {
		failed = errors.Join(failed, w.restart(ctx, "deployment/"+s, 2*time.Minute))
	}
	ended := time.Now()
	sleep(ctx, 8*time.Second)
	s, err := l.end(ctx)
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	w.judge("turns to be traced", s, bounds{})
	url, stop, err := w.forward(ctx, "jaeger", 16686)
	if err != nil {
		return err
	}
	defer stop()
	for _, when := range []struct {
		name     string
		from, to time.Time // period of the run's end
	}{{"before", l.Began, began}, {"during", began, ended}, {"after", ended, time.Now()}} {
		name := "a turn " + when.name + " the rollout: one root, no orphan, six services, every link resolves"
		run := pick(s.Samples, when.from, when.to)
		if run == "" {
			w.notRun(name, "no run ended then")
			continue
		}
		w.trace(ctx, program, name, url, "-turn", run+".1", "-services", strings.Join(six, ","))
	}
	w.trace(ctx, program, "all traces of these minutes", url, "-all", "-since", (time.Since(l.Began) + 10*time.Second).Round(time.Second).String(), "-services", "")
	return nil
}

// pick returns the middle one of the runs that ended in a period.
func pick(samples []Sample, from, to time.Time) string {
	var in []string
	for _, s := range samples {
		if s.Turns > 0 && s.Ended > from.UnixMilli() && s.Ended < to.UnixMilli() {
			in = append(in, s.Run)
		}
	}
	if len(in) == 0 {
		return ""
	}
	return in[len(in)/2]
}

// trace runs the trace checker as one check.
func (w *world) trace(ctx context.Context, program, name, url string, args ...string) {
	text, err := call(ctx, w.dir, nil, append([]string{program, "check", "-jaeger", url, "-wait", "30s"}, args...)...)
	if err == nil {
		text, _, _ = strings.Cut(strings.TrimSpace(text), "\n") // the first line has the totals
	} else {
		text = err.Error()
	}
	w.check(err == nil, name, text)
}

// forward forwards a port of a Service to a local one until stop is called.
func (w *world) forward(ctx context.Context, service string, port int) (url string, stop func(), err error) {
	const local = "127.0.0.1:26686"
	_, number, err := net.SplitHostPort(local)
	if err != nil {
		return "", nil, err
	}
	c := exec.CommandContext(ctx, w.program, "-n", namespace, "port-forward", "service/"+service, fmt.Sprintf("%s:%d", number, port))
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = c.Wait()                          // ended by the signal
	}
	err = poll(ctx, 20*time.Second, 200*time.Millisecond, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", local)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("port-forward: %w: %s", err, said.String())
	}
	return "http://" + local, stop, nil
}
