package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// execute sets the limits of processes and of address space and executes the shell. This
// process already exceeds both limits, so from then on the runtime can start no thread.
func (o order) execute(processes uint64) error {
	const shell = "/bin/sh"
	path, err := syscall.BytePtrFromString(shell)
	if err != nil {
		return err
	}
	argv, err := syscall.SlicePtrFromStrings([]string{"sh", "-c", o.Command})
	if err != nil {
		return fmt.Errorf("the command: %w", err)
	}
	envv, err := syscall.SlicePtrFromStrings(o.Env)
	if err != nil {
		return fmt.Errorf("the environment: %w", err)
	}
	count, err := capped(unix.RLIMIT_NPROC, processes)
	if err != nil {
		return fmt.Errorf("limit the processes to %d: %w", processes, err)
	}
	space, err := capped(unix.RLIMIT_AS, uint64(o.Limits.AddressSpace))
	if err != nil {
		return fmt.Errorf("limit the address space to %d: %w", o.Limits.AddressSpace, err)
	}
	if errno := limitAndExec(&count, &space, path, &argv[0], &envv[0]); errno != 0 {
		return fmt.Errorf("limit and start %s: %w", shell, errno)
	}
	return nil // not reached: the process has become the shell
}

// limitAndExec allocates nothing and cannot be preempted: it is nosplit, its system calls
// are raw, and the supervisor turned off asynchronous preemption. A goroutine that is
// locked to its thread and preempted needs a second thread to continue, and under the
// limits the start of that thread ends the process.
//
//go:nosplit
//go:norace
func limitAndExec(processes, space *syscall.Rlimit, path *byte, argv, envv **byte) syscall.Errno {
	if _, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(processes)), 0, 0, 0); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_AS, uintptr(unsafe.Pointer(space)), 0, 0, 0); errno != 0 {
		return errno
	}
	_, _, errno := syscall.RawSyscall6(unix.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(argv)), uintptr(unsafe.Pointer(envv)), 0, 0, 0)
	return errno
}

// capped returns a limit of value, or of the current hard limit if that is lower.
func capped(resource int, value uint64) (syscall.Rlimit, error) {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(resource, &now); err != nil {
		return now, err
	}
	value = min(value, now.Max)
	return syscall.Rlimit{Cur: value, Max: value}, nil
}

// processLimit returns the value of RLIMIT_NPROC. In a user namespace of its own, the
// kernel counts only the processes of the command. Otherwise it counts all threads of the
// user, so their current number is added.
func (o order) processLimit() uint64 {
	limit := uint64(o.Limits.Processes)
	if o.Held.UserNamespace || os.Geteuid() == 0 {
		return limit
	}
	uid := strconv.Itoa(os.Geteuid())
	for _, path := range processes("status") {
		status, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		mine, threads := false, uint64(0)
		for line := range strings.Lines(string(status)) {
			switch fields := strings.Fields(line); {
			case len(fields) > 1 && fields[0] == "Uid:":
				mine = fields[1] == uid
			case len(fields) > 1 && fields[0] == "Threads:":
				threads, _ = strconv.ParseUint(fields[1], 10, 32) // the kernel writes a number
			}
		}
		if mine {
			limit += threads
		}
	}
	return limit
}
