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
	reach     = 1500 * time.Millisecond // how long the supervisor has to end a command before it is ended itself
	userSpace = syscall.CLONE_NEWUSER
	allSpaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNS
)

// kernel is what run may build on. Tests take things away from it.
type kernel struct {
	caps   Capabilities
	spaces []uintptr // sets of namespaces to try, the best first, 0 for none last
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

// Probe tells what the kernel lends for commands without network. It starts
// a process or two, which end at once.
func Probe(ctx context.Context) Capabilities {
	k := thisKernel(false)
	return k.caps.with(k.best(ctx))
}

// best returns the first namespaces that the kernel lends.
func (k kernel) best(ctx context.Context) uintptr {
	for _, spaces := range k.spaces {
		if again(ctx, "probe", spaces).Run() == nil {
			return spaces
		}
	}
	return 0
}

// with adds the namespaces to c.
func (c Capabilities) with(spaces uintptr) Capabilities {
	c.UserNamespace = spaces&syscall.CLONE_NEWUSER != 0
	c.PIDNamespace = spaces&syscall.CLONE_NEWPID != 0
	c.MountNamespace = spaces&syscall.CLONE_NEWNS != 0
	c.NetNamespace = spaces&syscall.CLONE_NEWNET != 0
	return c
}

// again makes this binary a child in the role and namespaces given.
func again(ctx context.Context, role string, spaces uintptr) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{hiddenName, role}
	cmd.Env = []string{} // Not nil, which would hand on ours with its secrets.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: spaces}
	if spaces&userSpace != 0 {
		uid, gid := os.Geteuid(), os.Getegid()
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		// Power over the new namespaces alone, which only root keeps by itself.
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return cmd
}

// order is what the service asks of the supervisor and, in part, the
// supervisor of the shell to be.
type order struct {
	Dir, Command string
	Env          []string
	ReadOnly     []string
	Proxy        uint16 // port that may be connected to; 0: there is no network
	Open         bool   // the network is open: the operator allows it where the kernel cannot hold a command to a port
	Limits       Limits
	Held         Capabilities
}

// holds is an error when the kernel cannot hold a command and the operator has not
// said that it shall run all the same.
func (k kernel) holds(spec Spec) error {
	switch {
	case spec.AllowUnsandboxed:
		return nil
	case !k.caps.Sandboxed():
		return ErrUnavailable
	case spec.Proxy != "" && !k.caps.Egress():
		return ErrNoEgress
	}
	return nil
}

// order is a spec for the supervisor.
func (s Spec) order(held Capabilities) order {
	return order{
		Dir: s.Dir, Command: s.Command, Env: slices.Concat(Environment(s.Dir), proxyEnvironment(s.Proxy), s.Env), ReadOnly: s.ReadOnly,
		Proxy: proxyPort(s.Proxy), Open: s.Proxy != "" && !held.Egress(), Limits: s.Limits, Held: held,
	}
}

// report is what came of an order.
type report struct {
	ExitCode int
	Killed   bool   // the service asked for the end, or died
	Setup    string // why the command did not start
	Refused  bool   // the namespaces lack the power over themselves; fewer may do
}

func run(ctx context.Context, spec Spec, k kernel) (Result, error) {
	if err := k.holds(spec); err != nil {
		return Result{}, err
	}
	if err := makeScratch(spec.Dir); err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrSetup, err)
	}
	start := spec.Now()
	timed, cancel := context.WithTimeout(ctx, spec.Timeout)
	defer cancel()
	held, end := context.WithCancelCause(timed)
	var watching sync.WaitGroup
	watching.Go(func() { spec.Quota.Watch(held, spec.Dir, spec.Room, func(why error) { end(stop{why}) }) })
	defer watching.Wait()
	defer end(nil)

	var err error
	for _, spaces := range k.spaces {
		res, rep, startErr := attempt(held, spec, k.caps.with(spaces), spaces)
		if err = startErr; refused(err) || rep.Refused {
			continue
		}
		res.Duration = spec.Now().Sub(start)
		switch {
		case err == nil && rep.Setup != "":
			return Result{}, fmt.Errorf("%w: %s", ErrSetup, rep.Setup)
		case err == nil && !rep.Killed:
			res.ExitCode = rep.ExitCode
			return res, nil
		case ctx.Err() != nil:
			return res, context.Cause(ctx)
		case timed.Err() != nil:
			res.TimedOut = true
			return res, nil
		}
		if why, ok := errors.AsType[stop](context.Cause(held)); ok {
			res.Stopped = why.error
			return res, nil
		}
		break
	}
	if err == nil {
		err = errors.New("the supervisor ended without being told to")
	}
	return Result{}, fmt.Errorf("%w: %w", ErrSetup, err)
}

// stop is why a command was ended that no context ended.
type stop struct{ error }

// refused says whether the kernel would not make the namespaces.
func refused(err error) bool {
	return slices.ContainsFunc([]error{syscall.EPERM, syscall.EACCES, syscall.EINVAL, syscall.ENOSPC, syscall.EUSERS, syscall.ENOSYS},
		func(no error) bool { return errors.Is(err, no) })
}

// attempt runs the order in the namespaces given. An error for which refused
// is true means that nothing ran.
func attempt(ctx context.Context, spec Spec, held Capabilities, spaces uintptr) (Result, report, error) {
	stdout, stderr := newOutput(spec.MaxOutput, spec.Wrote), newOutput(spec.MaxOutput, spec.Wrote)
	orderR, orderW, err := os.Pipe()
	if err != nil {
		return Result{}, report{}, err
	}
	defer orderW.Close() // Closing it is the signal; it cannot fail to arrive.
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return Result{}, report{}, errors.Join(err, orderR.Close())
	}
	defer reportR.Close() // It was read to its end.

	cmd := again(ctx, "supervise", spaces)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.ExtraFiles = []*os.File{orderR, reportW}
	cmd.Cancel = orderW.Close // The supervisor then ends everything; see WaitDelay for when it doesn't.
	cmd.WaitDelay = reach
	err = cmd.Start()
	err = errors.Join(err, orderR.Close(), reportW.Close())
	if err != nil {
		return Result{}, report{}, err
	}
	sent := json.NewEncoder(orderW).Encode(spec.order(held))
	ended := cmd.Wait()

	res := Result{
		ExitCode:  -1,
		Stdout:    stdout.String(),
		Stderr:    stderr.String(),
		Truncated: stdout.dropped()+stderr.dropped() > 0,
		Held:      held,
	}
	var rep report
	if err := json.NewDecoder(reportR).Decode(&rep); err != nil {
		// A supervisor that was killed says nothing.
		if errors.Is(err, io.EOF) {
			err = errors.New("the supervisor ended without a report (main must call Init first)")
		}
		return res, report{}, unrefused{errors.Join(err, sent, ended)}
	}
	return res, rep, nil
}

// unrefused keeps the text of an error that came after the start, where
// trying again could run the command twice.
type unrefused struct{ err error }

func (u unrefused) Error() string { return u.err.Error() }

// makeScratch makes the directory for temporary files, without following a
// link that an earlier command may have left in its place.
func makeScratch(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() // Only read from.
	if err := root.Mkdir(scratch, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
