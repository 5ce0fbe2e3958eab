package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hiddenName = "anima-sandbox" // the first argument of a process that is ours; no user types it
	orderFD    = 3
	reportFD   = 4
)

// Init must be the first call of every main, and of TestMain in packages
// whose tests use Run. It returns at once in an ordinary process and never
// in one that Run started.
func Init() {
	if len(os.Args) != 2 || os.Args[0] != hiddenName {
		return
	}
	// syscall.Exit: os.Exit would run what the service has for its own end.
	role := os.Args[1]
	if role == "probe" {
		if os.Getpid() == 1 && freeze("/") != nil { // Only in its own namespaces is it the first.
			syscall.Exit(1)
		}
		syscall.Exit(0)
	}
	syscall.CloseOnExec(orderFD)
	syscall.CloseOnExec(reportFD)
	orders, reports := os.NewFile(orderFD, "order"), os.NewFile(reportFD, "report")
	var o order
	decoder := json.NewDecoder(orders)
	if err := decoder.Decode(&o); err != nil {
		syscall.Exit(1) // The service died first.
	}
	switch role {
	case "supervise":
		rep := o.supervise(orders)
		if err := json.NewEncoder(reports).Encode(rep); err != nil {
			syscall.Exit(1)
		}
	case "enter":
		// It only returns when it could not become the shell.
		fmt.Fprint(reports, o.enter())
	}
	syscall.Exit(0)
}

// supervise starts the shell, waits for it, and leaves none of its processes
// behind. The end of asked means that it must stop now.
func (o order) supervise(asked io.Reader) report {
	// The kernel ties the shell's death signal to the thread that started it.
	runtime.LockOSThread()
	// Orphans come to us instead of init, so that sweep finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return report{Setup: fmt.Sprintf("adopt orphans: %v", err)}
	}
	if o.Held.MountNamespace {
		if err := freeze(o.Dir); err != nil {
			return report{Setup: fmt.Sprintf("make the system read-only: %v", err), Refused: true}
		}
	}
	shell, failure, err := o.startShell()
	if err != nil {
		return report{Setup: err.Error()}
	}
	killed := make(chan struct{})
	go func() { // It ends with the process: nothing else can end a read.
		_, _ = io.Copy(io.Discard, asked)
		close(killed)
		_ = syscall.Kill(-shell, syscall.SIGKILL)
	}()
	setup, err := io.ReadAll(failure) // Ends when the shell has taken over, or with a reason.
	if err != nil {
		setup = []byte(err.Error())
	}
	rep := report{ExitCode: await(shell), Setup: string(setup)}
	select {
	case <-killed:
		rep.Killed = true
	default:
	}
	_ = syscall.Kill(-shell, syscall.SIGKILL)
	sweep()
	return rep
}

// freeze makes every mount but the workspace's read-only in this process's
// mount namespace. Landlock knows no right for modes, owners and times.
func freeze(workspace string) error {
	// First of all, so that nothing here happens to the machine's own mounts.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount(workspace, workspace, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		return err
	}
	return unix.MountSetattr(unix.AT_FDCWD, workspace, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
}

// startShell starts the process that becomes the shell. What it writes to
// the reader is why it could not.
func (o order) startShell() (pid int, failure io.Reader, err error) {
	orderR, orderW, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	failureR, failureW, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{hiddenName, "enter"}, &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{0, 1, 2, orderR.Fd(), failureW.Fd()},
		// Its own session: no terminal to push keys into, one group to kill.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	err = errors.Join(err, orderR.Close(), failureW.Close())
	if err != nil {
		return 0, nil, fmt.Errorf("start the shell: %w", err)
	}
	if err := errors.Join(json.NewEncoder(orderW).Encode(o), orderW.Close()); err != nil {
		return 0, nil, fmt.Errorf("tell the shell: %w", err)
	}
	return pid, failureR, nil
}

// await reaps children until pid has ended and returns its exit code as
// shells count: 128 and the signal.
func await(pid int) int {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return -1
		case got == pid && status.Signaled():
			return 128 + int(status.Signal())
		case got == pid:
			return status.ExitStatus()
		}
	}
}

// sweep ends whatever the command left running, also what moved to another
// session. Each child killed hands its own children to us, until none is
// left. The first process of a PID namespace need not: the kernel does it.
func sweep() {
	for os.Getpid() != 1 {
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_, err := syscall.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// children lists the processes whose parent is this one.
func children() []int {
	self := strconv.Itoa(os.Getpid())
	var pids []int
	for _, path := range processes("stat") {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // It has ended.
		}
		// proc_pid_stat(5): the name in parentheses may hold anything, then state and parent.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == self {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func processes(file string) []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/" + file) // The pattern is valid.
	return paths
}

// enter holds this process and makes it the shell. It returns only what
// went wrong, when the command has not run.
func (o order) enter() error {
	// Most of what follows holds one thread, and it is this one that execs.
	runtime.LockOSThread()
	if err := os.Chdir(o.Dir); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	processes := o.processLimit() // It reads /proc, which is about to go.
	if o.Held.LandlockABI > 0 {
		if err := o.landlock(); err != nil {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	dropCapabilities()
	if o.Held.Seccomp {
		if err := seccomp(o.Proxy != 0); err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
	}
	// Whoever started the service may have left it files that are not ours.
	if err := unix.CloseRange(orderFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	// Address space is last: this process has more of it than the shell may.
	for _, l := range []struct {
		resource int
		value    uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_CPU, uint64((o.Limits.CPU + time.Second - 1) / time.Second)},
		{unix.RLIMIT_FSIZE, uint64(o.Limits.FileSize)},
		{unix.RLIMIT_NOFILE, uint64(o.Limits.OpenFiles)},
		{unix.RLIMIT_NPROC, processes},
		{unix.RLIMIT_AS, uint64(o.Limits.AddressSpace)},
	} {
		if err := lower(l.resource, l.value); err != nil {
			return fmt.Errorf("limit %d to %d: %w", l.resource, l.value, err)
		}
	}
	const shell = "/bin/sh"
	err := syscall.Exec(shell, []string{"sh", "-c", o.Command}, o.Env)
	return fmt.Errorf("start %s: %w", shell, err)
}

// lower sets a limit, or leaves the service's own where that is lower.
func lower(resource int, value uint64) error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(resource, &now); err != nil {
		return err
	}
	value = min(value, now.Max)
	return syscall.Setrlimit(resource, &syscall.Rlimit{Cur: value, Max: value})
}

// processLimit returns RLIMIT_NPROC. In a user namespace of its own the
// kernel counts the command alone; elsewhere it counts all that the user
// runs, so that is added.
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
				threads, _ = strconv.ParseUint(fields[1], 10, 32) // The kernel writes numbers.
			}
		}
		if mine {
			limit += threads
		}
	}
	return limit
}

// dropCapabilities leaves uid 0 no power over what it does not own. Without
// the right to drop there is nothing to drop either, thanks to no_new_privs.
func dropCapabilities() {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}
