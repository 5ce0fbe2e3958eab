// Package sandbox runs an agent's shell commands and touches its workspace
// files so that neither reaches the rest of the machine. It decides how a
// command is held, never whether it may run: that is policy's answer.
//
// A command runs behind two processes that are this same binary started
// again, which is why a program that uses Run calls Init first in main:
//
//	service ── supervisor ── shell ── whatever the command starts
//	           │             └ rlimits, no_new_privs, Landlock, seccomp, no capabilities
//	           └ namespaces where the kernel lends them; ends every process of the command
//
// The supervisor lives as long as a pipe to the service is open, so neither
// a timeout, nor a cancel, nor the death of the service leaves a process.
//
// What it does not hold: Limits.Processes does not bind uid 0, which the
// kernel exempts; limits count per process, not per command; names, sizes
// and owners of files outside can be seen, their content not; and without
// namespaces a command may change modes and times of files that its user
// owns. So a service is best run as a user that owns the workspaces alone.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Errors of Run. Others are the machine's, or the cause of ctx.
var (
	// ErrUnavailable says that the kernel cannot hold a command. The operator
	// can mend the kernel, or set Spec.AllowUnsandboxed.
	ErrUnavailable = errors.New("commands cannot be sandboxed here: this needs Linux 6.2 or newer on amd64 or arm64" +
		" with landlock among its security modules and seccomp; exec stays off unless the operator allows unsandboxed commands")
	// ErrNoEgress says that the kernel cannot hold a command to its proxy.
	ErrNoEgress = errors.New("commands cannot be held to the egress proxy here: this needs Linux 6.7 or newer (Landlock's TCP rules);" +
		" commands with a network stay off unless the operator allows unsandboxed commands")
	// ErrInvalid wraps what is wrong with a Spec.
	ErrInvalid = errors.New("invalid command")
	// ErrSetup wraps why the sandbox could not be built; the command has not run.
	ErrSetup = errors.New("the sandbox could not be set up")
)

// Spec is one command and how it is held. The zero value of a field that is
// not required means its default.
type Spec struct {
	Dir      string   // the workspace: absolute, existing, writable; required
	Command  string   // run by /bin/sh -c, at most 64 KiB; required
	ReadOnly []string // more absolute paths to read and execute from, such as a toolchain's; missing ones are ignored
	Env      []string // NAME=value, more than [Environment] has

	Timeout time.Duration // default 30 s
	// Proxy is the URL of an HTTP proxy on loopback through which the command reaches
	// the network; "" gives it no network. The command can connect to the proxy's port
	// alone, over TCP, and finds the URL in HTTP_PROXY and its like.
	Proxy     string
	Limits    Limits
	MaxOutput int // bytes kept of stdout and of stderr each; default 64 KiB

	// Quota is what Dir may hold. A command is not begun over it, and ended with
	// everything that it started soon after it has passed it.
	Quota Quota
	// Room, which may be nil, is asked all the time: its error ends the command.
	Room func() error

	// AllowUnsandboxed runs the command even where ErrUnavailable would be
	// the answer, with whatever protection there is. It is the operator's to
	// say, never an agent's.
	AllowUnsandboxed bool

	Now func() time.Time // measures Result.Duration; default time.Now

	// Wrote is told what the command writes, as it does; it may be nil. It is called
	// for stdout and stderr at the same time, must not keep what it is given, and
	// holds the command up.
	Wrote func([]byte)
}

// mayBegin is an error when there is no room for what a command may write.
func (s Spec) mayBegin() error {
	if s.Room != nil {
		if err := s.Room(); err != nil {
			return err
		}
	}
	return s.Quota.Check(s.Dir, 0)
}

// Limits bound each process of a command. Zero means the default.
type Limits struct {
	CPU          time.Duration // rounded up to seconds; default 60 s
	AddressSpace int64         // bytes; default 4 GiB
	FileSize     int64         // bytes of one file; default 256 MiB
	Processes    int           // processes and threads of the command's user; default 256
	OpenFiles    int           // default 1024
}

// Result is how a command ended.
type Result struct {
	// ExitCode is the shell's, 128 and the signal when a signal ended the
	// shell, or -1 when Run ended it.
	ExitCode int
	// Stdout and Stderr are the head and the tail of what was written, with
	// a line between them that says how much is missing. They are bytes as
	// the command wrote them, valid UTF-8 or not.
	Stdout, Stderr string
	Truncated      bool          // whether something is missing
	TimedOut       bool          // whether Spec.Timeout ended the command
	Stopped        error         // why Spec.Quota or Spec.Room ended the command; nil when neither did
	Duration       time.Duration // from before the start to after the end
	Held           Capabilities  // what held this very command
}

// Capabilities is what a kernel lends for holding commands.
type Capabilities struct {
	LandlockABI    int  // 0: none
	Seccomp        bool // filters can be installed and the machine's system calls are known
	UserNamespace  bool // the command has a user namespace of its own
	PIDNamespace   bool // the kernel ends every process of the command with its first
	MountNamespace bool // outside the workspace modes, owners and times cannot be changed either
	NetNamespace   bool // without Spec.Proxy the command has no interface but a dead loopback
}

// Sandboxed says whether commands can be held as Run promises. Namespaces
// are a second wall and not asked for: hardened clusters forbid them.
func (c Capabilities) Sandboxed() bool {
	// The third ABI is the first in which truncation is held.
	return c.LandlockABI >= 3 && c.Seccomp
}

// Egress says whether a command with a network can be held to its proxy.
func (c Capabilities) Egress() bool {
	// The fourth ABI is the first that knows TCP.
	return c.Sandboxed() && c.LandlockABI >= 4
}

const (
	maxCommand     = 64 << 10 // one argument of execve holds 128 KiB
	defaultTimeout = 30 * time.Second
	defaultOutput  = 64 << 10
)

// withDefaults checks a spec and fills it in.
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
	s.Timeout = orDefault(s.Timeout, defaultTimeout)
	s.MaxOutput = orDefault(s.MaxOutput, defaultOutput)
	s.Limits.CPU = orDefault(s.Limits.CPU, 60*time.Second)
	s.Limits.AddressSpace = orDefault(s.Limits.AddressSpace, 4<<30)
	s.Limits.FileSize = orDefault(s.Limits.FileSize, 256<<20)
	if s.Quota.Bytes > 0 {
		s.Limits.FileSize = min(s.Limits.FileSize, s.Quota.Bytes)
	}
	s.Limits.Processes = orDefault(s.Limits.Processes, 256)
	s.Limits.OpenFiles = orDefault(s.Limits.OpenFiles, 1024)
	if s.Now == nil {
		s.Now = time.Now
	}
	return s, nil
}

func orDefault[T int | int64 | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Run runs a command to its end and the end of everything that it started.
// A command that fails or times out, or passes its quota, is a Result; an error
// means that it did not run or that ctx ended it, then with the output so far and
// the cause of ctx. It returns within 2 s of the end of ctx. It is safe for
// concurrent use.
func Run(ctx context.Context, spec Spec) (Result, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return Result{}, err
	}
	if err := spec.mayBegin(); err != nil {
		return Result{}, err
	}
	return run(ctx, spec, thisKernel(spec.Proxy != ""))
}
