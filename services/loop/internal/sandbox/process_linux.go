package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

func start(ctx context.Context, spec Spec, k kernel) (*Process, error) {
	if err := k.holds(spec); err != nil {
		return nil, err
	}
	if err := makeScratch(spec.Dir); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	// Run tries the sets of namespaces in turn, by the outcome of the command. A process
	// that keeps running has no outcome, so the namespaces are probed first.
	spaces := k.best(ctx)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	var all []*os.File
	var read, write [4]*os.File // order, report, stdin, stdout
	for i := range read {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrSetup, err), closeAll(all...))
		}
		read[i], write[i] = r, w
		all = append(all, r, w)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stderr := newOutput(spec.MaxOutput, spec.Wrote)
	cmd := again(life, "supervise", spaces)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read[2], write[3], stderr
	cmd.ExtraFiles = []*os.File{read[0], write[1]}
	cmd.Cancel = write[0].Close // closing the pipe makes the supervisor kill all processes; WaitDelay applies if it does not
	cmd.WaitDelay = reach
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrSetup, err), closeAll(all...))
	}
	err := closeAll(read[0], write[1], read[2], write[3])
	held := k.caps.with(spaces)
	err = errors.Join(err, json.NewEncoder(write[0]).Encode(spec.order(held)))
	p := &Process{Stdin: write[2], Stdout: read[3], cancel: cancel, done: make(chan struct{})}
	began := spec.Now()
	var stopped error
	var watching sync.WaitGroup
	watching.Go(func() { spec.Quota.Watch(life, spec.Dir, spec.Room, func(why error) { stopped = why; cancel() }) })
	go func() { // ends after the command; Stop waits for it
		defer close(p.done)
		defer cancel()
		ended := cmd.Wait()
		_ = write[0].Close() // closed already if the command was cancelled
		var rep report
		if err := json.NewDecoder(read[1]).Decode(&rep); err != nil {
			rep = report{ExitCode: -1}
			if errors.Is(err, io.EOF) {
				err = errors.New("the supervisor ended without a report (main must call Init first)")
			}
			p.err = fmt.Errorf("%w: %w", ErrSetup, errors.Join(err, ended))
		} else if rep.Setup != "" {
			p.err = fmt.Errorf("%w: %s", ErrSetup, rep.Setup)
		}
		_ = read[1].Close() // read only
		cancel()
		watching.Wait()
		p.result = Result{
			Stopped:  stopped,
			ExitCode: rep.ExitCode, Stderr: stderr.String(), Truncated: stderr.dropped() > 0,
			Duration: spec.Now().Sub(began), Held: held,
		}
	}()
	if err != nil {
		_, _ = p.Stop(0) // the order was not sent, so no command runs
		return nil, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	return p, nil
}

func closeAll(files ...*os.File) error {
	var err error
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
