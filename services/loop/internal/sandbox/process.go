package sandbox

import (
	"context"
	"os"
	"time"
)

// Process is a running command, such as a server that communicates over its standard
// input and output. Its methods are safe for concurrent use.
type Process struct {
	Stdin  *os.File // closing it makes most programs exit
	Stdout *os.File // EOF after the command and all its processes have ended

	cancel context.CancelFunc
	done   chan struct{}
	result Result // set when done is closed
	err    error
}

// Start starts a command that runs until it exits, Stop is called or this process exits.
// The command is sandboxed as by Run. Spec.Timeout is not used, Spec.MaxOutput and
// Spec.Wrote apply to stderr only, and Spec.Quota and Spec.Room apply as long as the
// command runs. ctx limits the start, not the command. The caller must call Stop.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return nil, err
	}
	return start(ctx, spec, thisKernel(spec.Proxy != ""))
}

// Done returns a channel that is closed when the command and all its processes have
// ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop closes the standard input of the command and waits up to grace for its end. Then
// it kills the command and all its processes, which takes at most 2 s. It returns the
// result, without Stdout. It may be called more than once.
func (p *Process) Stop(grace time.Duration) (Result, error) {
	_ = p.Stdin.Close() // may be closed already, by an earlier call or by the caller
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.cancel()
		<-p.done
	}
	_ = p.Stdout.Close() // as above
	return p.result, p.err
}
