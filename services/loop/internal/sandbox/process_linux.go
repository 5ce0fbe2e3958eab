package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

func start(ctx context.Context, spec Spec, k kernel) (*Process, error) {
	if err := k.prepare(spec); err != nil {
		return nil, err
	}
	// Run tries the sets of namespaces in turn, by the outcome of the command. A process
	// that keeps running has no outcome, so the namespaces are probed first.
	spaces := k.best(ctx)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrSetup, err), closeAll(inR, inW))
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stderr, held := newOutput(spec.MaxOutput, spec.Wrote), k.caps.with(spaces)
	cmd := again(life, "supervise", spaces)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, stderr
	wait, err := launch(cmd, spec.order(held), func() {})
	_ = closeAll(inR, outW) // the supervisor has copies
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrSetup, err), closeAll(inW, outR))
	}
	p := &Process{Stdin: inW, Stdout: outR, cancel: cancel, done: make(chan struct{})}
	var stopped error
	var watching sync.WaitGroup
	watching.Go(func() { spec.Quota.Watch(life, spec.Dir, spec.Room, func(why error) { stopped = why; cancel() }) })
	go func() { // ends after the command; Stop waits for it
		defer close(p.done)
		rep, err := wait()
		switch {
		case err != nil:
			rep.ExitCode = -1
			p.err = fmt.Errorf("%w: %w", ErrSetup, err)
		case rep.Setup != "":
			p.err = fmt.Errorf("%w: %s", ErrSetup, rep.Setup)
		}
		cancel()
		watching.Wait()
		p.result = Result{Stopped: stopped, ExitCode: rep.ExitCode, Stderr: stderr.String(), Truncated: stderr.dropped() > 0, Held: held}
	}()
	return p, nil
}
