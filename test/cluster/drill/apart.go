package drill

import (
	"context"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	w.check(err == nil, "the leaders of the queue of runs and of its durable are apart", strings.TrimSpace(leaders)+text(err))
	release := burn(ctx, 2*runtime.NumCPU(), pressure)
	sleep(ctx, pressure)
	release()
	s, err := l.end(ctx)
	if err != nil {
		return err
	}
	w.judge("leaders apart, processors full", s, bounds{})
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// burn keeps n processors busy until release is called, but for limit at most, also if
// the drill is killed.
func burn(ctx context.Context, n int, limit time.Duration) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := exec.CommandContext(ctx, "timeout", strconv.Itoa(int(limit.Seconds())+1), "sh", "-c", "while :; do :; done")
			// timeout forwards SIGTERM to the loop; SIGKILL would leave the loop running.
			c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
			c.WaitDelay = 2 * time.Second
			_ = c.Run() // ended by a signal
		})
	}
	return func() { cancel(); all.Wait() }
}
