// Package sandbox runs shell commands of an agent and accesses files of its workspace, so
// that neither reaches the rest of the machine. It restricts commands; whether a command
// may run is the decision of policy, and this package must not make it.
//
// A command runs below two processes that are this same binary started again. A program
// that uses Run must therefore call Init first in main:
//
//	service ── supervisor ── shell ── processes of the command
//	           │             └ rlimits, no_new_privs, Landlock, seccomp, no capabilities
//	           └ namespaces where the kernel allows them; kills every process of the command
//
// The supervisor kills the command when a pipe from the service is closed. A timeout, a
// cancellation or a crash of the service therefore leaves no process running.
//
// Limits of the sandbox: Limits.Processes does not apply to uid 0, which the kernel
// exempts. Limits apply per process, not per command. Names, sizes and owners of files
// outside the workspace are visible, their content is not. Without namespaces, a command
// may change modes and times of files that its user owns. A service should therefore run
// as a user that owns nothing but the workspaces. Without a PID namespace and before
// Landlock ABI 6, a command can send signals to all processes of its user, among them its
// supervisor and the service.
package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Errors of Run. Other errors come from the operating system, or are the cause of ctx.
var (
	// ErrUnavailable reports that the kernel cannot sandbox a command. The operator can
	// change the kernel or set Spec.AllowUnsandboxed.
	ErrUnavailable = errors.New("commands cannot be sandboxed here: this needs Linux 6.2 or newer on amd64 or arm64" +
		" with landlock among its security modules and seccomp; exec stays off unless the operator allows unsandboxed commands")
	// ErrNoEgress reports that the kernel cannot restrict a command to its proxy.
	ErrNoEgress = errors.New("commands cannot be restricted to the egress proxy here: this needs Linux 6.7 or newer (Landlock's TCP rules);" +
		" commands with a network stay off unless the operator allows unsandboxed commands")
	// ErrInvalid wraps the description of an invalid Spec.
	ErrInvalid = errors.New("invalid command")
	// ErrSetup wraps the reason why the sandbox could not be set up. Run returns it
	// before the command has started, or if the supervisor fails.
	ErrSetup = errors.New("the sandbox could not be set up")
)

// StartTimeout is how long Run waits for the sandbox to execute the shell: two processes
// of this binary start before it, which takes seconds on a busy machine. Spec.Timeout
// begins afterwards.
const StartTimeout = 10 * time.Second

// Spec describes a command and its restrictions. The zero value of a field that is not
// required means its default.
type Spec struct {
	Dir      string   // workspace: absolute, existing, writable; required
	Command  string   // run by /bin/sh -c, at most 64 KiB; required
	ReadOnly []string // further absolute paths to read and execute from, such as those of a toolchain; missing paths are ignored
	Env      []string // NAME=value, in addition to [Environment]

	Timeout time.Duration // of the command, from the execution of the shell; default 30 s
	// Proxy is the URL of an HTTP proxy on a loopback address, through which the command
	// reaches the network. The command can connect only to the port of the proxy, over
	// TCP, and finds the URL in HTTP_PROXY and similar variables. The empty string means
	// no network.
	Proxy     string
	Limits    Limits
	MaxOutput int // bytes kept of stdout and of stderr, each; default 64 KiB

	// Quota is the limit of the content of Dir. If Dir exceeds it, the command is not
	// started; a running command that exceeds it is killed with all its processes.
	Quota Quota
	// MayRemove starts the command also if Dir exceeds Quota. It can then only read,
	// execute and remove files of Dir, so that Dir cannot grow. It has no effect on Start,
	// and where the kernel cannot sandbox the command.
	MayRemove bool
	// Room is called continually while the command runs; an error kills the command. It
	// may be nil.
	Room func() error

	// AllowUnsandboxed runs the command where Run would return ErrUnavailable or
	// ErrNoEgress, with the restrictions that are available. Only the operator may set
	// it, never an agent.
	AllowUnsandboxed bool

	// Wrote is called with the command's output as it arrives. It may be nil. It is
	// called concurrently for stdout and stderr, must not retain the slice, and blocks
	// the command while it runs.
	Wrote func([]byte)

	removeOnly bool // see MayRemove
}

// Limits are the limits of each process of a command. Zero means the default.
type Limits struct {
	CPU          time.Duration // rounded up to seconds; default 60 s
	AddressSpace int64         // bytes; default 4 GiB
	FileSize     int64         // bytes of one file; default 256 MiB
	Processes    int           // processes and threads of the command's user; default 256
	OpenFiles    int           // default 1024
}

// Result is the outcome of a command.
type Result struct {
	// ExitCode is the exit code of the shell, 128 plus the signal if a signal killed the
	// shell, or -1 if Run killed it.
	ExitCode int
	// Stdout and Stderr are the start and the end of the output, separated by a line with
	// the number of omitted bytes. They are the bytes that the command wrote and may be
	// invalid UTF-8.
	Stdout, Stderr string
	Truncated      bool         // part of the output was omitted
	TimedOut       bool         // Spec.Timeout ended the command
	Stopped        error        // why Spec.Quota or Spec.Room ended the command, or nil
	OverQuota      error        // the ErrQuota because of which the command could only remove files, see Spec.MayRemove, or nil
	Held           Capabilities // restrictions that applied to this command
}

// Capabilities describes the kernel features for sandboxing.
type Capabilities struct {
	LandlockABI    int  // 0 without Landlock
	Seccomp        bool // filters can be installed, and the system calls of this architecture are known
	UserNamespace  bool // the command has its own user namespace
	PIDNamespace   bool // the kernel kills all processes of the command with the first one
	MountNamespace bool // modes, owners and times outside the workspace cannot be changed either
	NetNamespace   bool // without Spec.Proxy the command has no network interface except a loopback that is down
}

// Sandboxed reports whether commands can be restricted as Run documents. Namespaces are
// an additional restriction and not required, because hardened clusters forbid them.
func (c Capabilities) Sandboxed() bool {
	// ABI 3 is the first that restricts truncation.
	return c.LandlockABI >= 3 && c.Seccomp
}

// Egress reports whether a command with a network can be restricted to its proxy.
func (c Capabilities) Egress() bool {
	// ABI 4 is the first that restricts TCP.
	return c.Sandboxed() && c.LandlockABI >= 4
}

const maxCommand = 64 << 10 // below the limit of 128 KiB for one argument of execve

// withDefaults validates a spec and sets the defaults. Errors: [ErrInvalid].
func (s Spec) withDefaults() (Spec, error) {
	switch {
	case s.Command == "" || strings.ContainsRune(s.Command, 0):
		return s, fmt.Errorf("%w: the command is empty or has a NUL byte", ErrInvalid)
	case len(s.Command) > maxCommand:
		return s, fmt.Errorf("%w: the command has %d bytes, at most %d are allowed; put it in a file", ErrInvalid, len(s.Command), maxCommand)
	case !filepath.IsAbs(s.Dir) || filepath.Clean(s.Dir) == "/":
		return s, fmt.Errorf("%w: workspace %q is not an absolute path below /", ErrInvalid, s.Dir)
	case s.Proxy != "" && proxyPort(s.Proxy) == 0:
		return s, fmt.Errorf("%w: the proxy is no http URL with a port on 127.0.0.1", ErrInvalid)
	case s.Timeout < 0 || s.MaxOutput < 0:
		return s, fmt.Errorf("%w: the timeout or the output limit is negative", ErrInvalid)
	}
	if err := checkEnv(s.Dir, s.Proxy, s.Env); err != nil {
		return s, err
	}
	if info, err := os.Stat(s.Dir); err != nil {
		return s, fmt.Errorf("%w: workspace: %w", ErrInvalid, err)
	} else if !info.IsDir() {
		return s, fmt.Errorf("%w: workspace %q is not a directory", ErrInvalid, s.Dir)
	}
	s.Timeout = cmp.Or(s.Timeout, 30*time.Second)
	s.MaxOutput = cmp.Or(s.MaxOutput, 64<<10)
	s.Limits.CPU = cmp.Or(s.Limits.CPU, 60*time.Second)
	s.Limits.AddressSpace = cmp.Or(s.Limits.AddressSpace, 4<<30)
	s.Limits.FileSize = cmp.Or(s.Limits.FileSize, 256<<20)
	if s.Quota.Bytes > 0 {
		s.Limits.FileSize = min(s.Limits.FileSize, s.Quota.Bytes)
	}
	s.Limits.Processes = cmp.Or(s.Limits.Processes, 256)
	s.Limits.OpenFiles = cmp.Or(s.Limits.OpenFiles, 1024)
	return s, nil
}

// Run runs a command and returns after the command and all its processes have ended. A
// command that fails, times out or exceeds its quota returns a Result. An error means
// that the command did not run or that ctx ended it; in the latter case the error is the
// cause of ctx and the Result has the output until then. Run returns within 2 s of the
// end of ctx. It is safe for concurrent use.
func Run(ctx context.Context, spec Spec) (Result, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return Result{}, err
	}
	return run(ctx, spec, thisKernel(spec.Proxy != ""))
}
