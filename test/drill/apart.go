package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// pressure is how long the step apart keeps the processors busy.
const pressure = time.Minute

// apart moves the leaders of the stream of queued runs and of its durable to different
// NATS servers, and keeps the processors busy. A run's message is then sometimes
// delivered before the stream's leader returns it; a service that acknowledged the
// message as unknown would lose the run.
func apart(ctx context.Context, w *world) error {
	l, err := w.load(ctx, loading{Name: "apart"})
	if err != nil {
		return err
	}
	leaders, err := w.k(ctx, "exec", l.pod, "--", "/load", "-apart")
	w.check(err == nil, "the leaders of the queue of runs and of its durable are apart", strings.TrimSpace(leaders)+reason(err))
	busy := w.host(ctx, "busy", 2*pressure, map[string]string{"seconds": fmt.Sprint(pressure.Seconds())})
	w.checkErr("the processors were kept busy", busy)
	s, err := l.end(ctx)
	if err != nil {
		return err
	}
	w.judge("leaders apart, processors full", s, bounds{})
	return nil
}
