package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	reach     = time.Second            // time for the supervisor to kill a command, before the service kills it
	linger    = 500 * time.Millisecond // time for the supervisor to exit afterwards
	userSpace = syscall.CLONE_NEWUSER
	allSpaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNS
)

// kernel describes the kernel features that run may use. Tests remove features.
type kernel struct {
	caps   Capabilities
	spaces []uintptr // sets of namespaces in order of preference; the last is 0 for none
}

func thisKernel(network bool) kernel {
	var net uintptr
	if !network {
		net = syscall.CLONE_NEWNET
	}
	k := kernel{
		caps:   Capabilities{LandlockABI: landlockABI(), Seccomp: seccompAvailable()},
		spaces: []uintptr{userSpace | allSpaces | net},
	}
	if os.Geteuid() == 0 {
		k.spaces = append(k.spaces, allSpaces|net)
	}
	k.spaces = append(k.spaces, 0)
	return k
}

// Probe returns the kernel features for commands without network. It starts up to three
// short-lived processes.
func Probe(ctx context.Context) Capabilities {
	k := thisKernel(false)
	return k.caps.with(k.best(ctx))
}

// best returns the first set of namespaces that the kernel allows.
func (k kernel) best(ctx context.Context) uintptr {
	for _, spaces := range k.spaces {
		if again(ctx, "probe", spaces).Run() == nil {
			return spaces
		}
	}
	return 0
}

// with returns c with the fields for a set of namespaces.
func (c Capabilities) with(spaces uintptr) Capabilities {
	c.UserNamespace = spaces&syscall.CLONE_NEWUSER != 0
	c.PIDNamespace = spaces&syscall.CLONE_NEWPID != 0
	c.MountNamespace = spaces&syscall.CLONE_NEWNS != 0
	c.NetNamespace = spaces&syscall.CLONE_NEWNET != 0
	return c
}

// again returns a command that starts this binary in a role of Init and a set of
// namespaces.
func again(ctx context.Context, role string, spaces uintptr) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{hiddenName, role}
	cmd.Env = []string{} // empty, because nil would pass the environment of the service with its secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: spaces}
	if spaces&userSpace != 0 {
		uid, gid := os.Geteuid(), os.Getegid()
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		// Capabilities over the new namespaces only; without this, a user other than root
		// loses them at exec.
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return cmd
}

// order is the request of the service to the supervisor, and of the supervisor to the
// process that becomes the shell.
type order struct {
	Dir, Command string
	Env          []string
	ReadOnly     []string
	Proxy        uint16 // port that may be connected to; 0 means no network
	Open         bool   // network is not restricted: the kernel cannot restrict a command to a port, and the operator allows that
	RemoveOnly   bool   // files of Dir can be read, executed and removed, and not changed
	Limits       Limits
	Held         Capabilities
}

// prepare returns an error if the command may not start: because the kernel cannot
// sandbox it and the spec does not allow unsandboxed commands, or because Room or Quota
// leaves no space. Errors: [ErrUnavailable], [ErrNoEgress], [ErrQuota], [ErrSetup].
func (k kernel) prepare(spec Spec) error {
	switch {
	case spec.AllowUnsandboxed:
	case !k.caps.Sandboxed():
		return ErrUnavailable
	case spec.Proxy != "" && !k.caps.Egress():
		return ErrNoEgress
	}
	if spec.Room != nil {
		if err := spec.Room(); err != nil {
			return err
		}
	}
	if err := spec.Quota.Check(spec.Dir, 0); err != nil {
		return err
	}
	if err := makeScratch(spec.Dir); err != nil {
		return fmt.Errorf("%w: %w", ErrSetup, err)
	}
	return nil
}

// order returns the order for the supervisor.
func (s Spec) order(held Capabilities) order {
	return order{
		Dir: s.Dir, Command: s.Command, Env: slices.Concat(Environment(s.Dir), proxyEnvironment(s.Proxy), s.Env), ReadOnly: s.ReadOnly,
		Proxy: proxyPort(s.Proxy), Open: s.Proxy != "" && !held.Egress(), RemoveOnly: s.removeOnly, Limits: s.Limits, Held: held,
	}
}

// report is an answer of the supervisor to an order: one when the shell has been
// executed, with Started alone, and one at the end.
type report struct {
	Started  bool
	ExitCode int
	Killed   bool   // the service cancelled the command, or exited
	Setup    string // why the command did not start
	Refused  bool   // no rights within the namespaces; another set may work
}

func run(ctx context.Context, spec Spec, k kernel) (Result, error) {
	over := k.prepare(spec)
	switch {
	case over == nil:
	case errors.Is(over, ErrQuota) && spec.MayRemove && k.caps.Sandboxed():
		spec.removeOnly, spec.Quota = true, Quota{} // otherwise the first count of the files would end the command
	default:
		return Result{}, over
	}
	held, end := context.WithCancelCause(ctx)
	started := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { end(expire(held, started, spec.Timeout)) })
	watching.Go(func() { spec.Quota.Watch(held, spec.Dir, spec.Room, func(why error) { end(stop{why}) }) })
	defer watching.Wait()
	defer end(nil)

	var err error
	for _, spaces := range k.spaces {
		res, rep, startErr := attempt(held, spec, k.caps.with(spaces), spaces, func() { close(started) })
		res.OverQuota = over
		if err = startErr; refused(err) || rep.Refused {
			continue
		}
		why := context.Cause(held)
		switch {
		case err == nil && rep.Setup != "":
			return Result{}, fmt.Errorf("%w: %s", ErrSetup, rep.Setup)
		case err == nil && !rep.Killed:
			res.ExitCode = rep.ExitCode
			return res, nil
		case ctx.Err() != nil:
			return res, context.Cause(ctx)
		case errors.Is(why, errNotStarted):
			return Result{}, fmt.Errorf("%w: %w", ErrSetup, why)
		case errors.Is(why, errTimedOut):
			res.TimedOut = true
			return res, nil
		}
		if s, ok := errors.AsType[stop](why); ok {
			res.Stopped = s.error
			return res, nil
		}
		break
	}
	if err == nil {
		err = errors.New("the supervisor ended without being told to")
	}
	return Result{}, fmt.Errorf("%w: %w", ErrSetup, err)
}

// Cancellation causes for a command whose time is over.
var (
	errNotStarted = fmt.Errorf("the command did not start within %v", StartTimeout)
	errTimedOut   = errors.New("the command took too long")
)

// expire returns errNotStarted when started is not closed within StartTimeout, and
// errTimedOut when the timeout of the command, which begins then, is over. It returns nil
// when ctx ends before.
func expire(ctx context.Context, started <-chan struct{}, timeout time.Duration) error {
	timer := time.NewTimer(StartTimeout)
	defer timer.Stop()
	select {
	case <-started:
	case <-timer.C:
		return errNotStarted
	case <-ctx.Done():
		return nil
	}
	timer.Reset(timeout)
	select {
	case <-timer.C:
		return errTimedOut
	case <-ctx.Done():
		return nil
	}
}

// stop is the cancellation cause for a command that the quota or the disk's reserve
// stopped.
type stop struct{ error }

// refused reports whether the kernel refused to create the namespaces.
func refused(err error) bool {
	return slices.ContainsFunc([]error{syscall.EPERM, syscall.EACCES, syscall.EINVAL, syscall.ENOSPC, syscall.EUSERS, syscall.ENOSYS},
		func(no error) bool { return errors.Is(err, no) })
}

// attempt runs the order in a set of namespaces. If refused is true for its error, no
// command has run. It calls started as launch does.
func attempt(ctx context.Context, spec Spec, held Capabilities, spaces uintptr, started func()) (Result, report, error) {
	stdout, stderr := newOutput(spec.MaxOutput, spec.Wrote), newOutput(spec.MaxOutput, spec.Wrote)
	cmd := again(ctx, "supervise", spaces)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	wait, err := launch(cmd, spec.order(held), started)
	if err != nil {
		return Result{}, report{}, err
	}
	rep, err := wait()
	if err != nil {
		err = unrefused{err}
	}
	return Result{
		ExitCode:  -1,
		Stdout:    stdout.String(),
		Stderr:    stderr.String(),
		Truncated: stdout.dropped()+stderr.dropped() > 0,
		Held:      held,
	}, rep, err
}

// unrefused hides the type of an error that occurred after the start, so that refused is
// false: another attempt could run the command twice.
type unrefused struct{ err error }

func (u unrefused) Error() string { return u.err.Error() }

// launch starts a supervisor and sends it an order. It calls started from another
// goroutine when the shell has been executed. wait returns the last report, after the
// supervisor and all processes of the command have ended; the caller must call it.
func launch(cmd *exec.Cmd, o order, started func()) (wait func() (report, error), err error) {
	orderR, orderW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, closeAll(orderR, orderW))
	}
	cmd.ExtraFiles = []*os.File{orderR, reportW}
	reported := make(chan struct{})
	cmd.Cancel = func() error {
		closed := orderW.Close() // makes the supervisor kill all processes
		timer := time.NewTimer(reach)
		defer timer.Stop()
		select {
		case <-reported:
		case <-timer.C:
			killBelow(cmd.Process.Pid) // without a PID namespace they would outlast the supervisor
		}
		return closed
	}
	cmd.WaitDelay = linger
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, closeAll(orderR, orderW, reportR, reportW))
	}
	var rep report
	var unread error
	go func() { // ends with the supervisor, which has the other end of the pipe; wait waits for it
		defer close(reported)
		reports := json.NewDecoder(reportR)
		if unread = reports.Decode(&rep); unread == nil && rep.Started {
			started()
			rep = report{}
			unread = reports.Decode(&rep)
		}
	}()
	sent := errors.Join(closeAll(orderR, reportW), json.NewEncoder(orderW).Encode(o))
	if sent != nil {
		_ = orderW.Close() // a supervisor without a complete order exits
	}
	return func() (report, error) {
		ended := cmd.Wait()
		<-reported
		_ = closeAll(orderW, reportR) // orderW may be closed already, reportR is only read
		if unread == nil {
			return rep, nil
		}
		if errors.Is(unread, io.EOF) { // a supervisor that was killed sends no report
			unread = errors.New("the supervisor ended without a report (main must call Init first)")
		}
		return report{}, errors.Join(unread, sent, ended)
	}, nil
}

func closeAll(files ...*os.File) error {
	var err error
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// makeScratch creates the directory for temporary files. It does not follow a symbolic
// link that an earlier command may have created in its place.
func makeScratch(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // read only
	if err := root.Mkdir(scratch, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
