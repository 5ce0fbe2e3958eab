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

// apart has the queue of runs led by another NATS server than its durable, and fills
// the processors: a run's message is then delivered before the stream's leader shows
// it, now and then, and a run that is acknowledged for that is lost.
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

// burn keeps n processors busy until release is called, and for limit at most, also if
// the drill ends without a word.
func burn(ctx context.Context, n int, limit time.Duration) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := exec.CommandContext(ctx, "timeout", strconv.Itoa(int(limit.Seconds())+1), "sh", "-c", "while :; do :; done")
			// timeout passes the signal on to the loop, which a kill would leave alone.
			c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
			c.WaitDelay = 2 * time.Second
			_ = c.Run() // it ends by a signal
		})
	}
	return func() { cancel(); all.Wait() }
}
