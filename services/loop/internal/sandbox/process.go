package sandbox

import (
	"context"
	"os"
	"time"
)

// Process is a command that goes on, such as a server that is spoken to over
// its standard input and output. Its methods may be called by many goroutines.
type Process struct {
	Stdin  *os.File // closing it tells most programs to end
	Stdout *os.File // ends with the command and all that it started

	cancel context.CancelFunc
	done   chan struct{}
	result Result // set when done is closed
	err    error
}

// Start starts a command that goes on until it ends by itself, Stop is called or
// this process dies. It is held as Run holds one; Spec.Timeout is not used and
// Spec.MaxOutput and Spec.Wrote are about stderr alone; Spec.Quota and Spec.Room
// hold for as long as it goes on. ctx bounds the start, not
// the command. The caller of Start calls Stop.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := spec.mayBegin(); err != nil {
		return nil, err
	}
	return start(ctx, spec, thisKernel(spec.Proxy != ""))
}

// Done is closed when the command and everything that it started have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop closes the command's input, gives it grace to end, and then ends it with
// everything that it started, at most 2 s later. It returns how the command
// ended; Stdout is not part of that. It may be called more than once.
func (p *Process) Stop(grace time.Duration) (Result, error) {
	_ = p.Stdin.Close() // Closed already by an earlier call, or by its user.
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.cancel()
		<-p.done
	}
	_ = p.Stdout.Close() // As above.
	return p.result, p.err
}
