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
	hiddenName = "anima-sandbox" // argv[0] of the processes that this package starts; no shell command uses it
	orderFD    = 3
	reportFD   = 4
)

// Init must be the first call of main, and of TestMain in packages whose tests use Run.
// In an ordinary process it returns at once. In a process that Run or Start started it
// does the work of that process and exits.
func Init() {
	if len(os.Args) != 2 || os.Args[0] != hiddenName {
		return
	}
	// syscall.Exit, because os.Exit runs the exit hooks of the runtime, which belong to
	// the service.
	role := os.Args[1]
	if role == "probe" {
		if os.Getpid() == 1 && freeze("/") != nil { // the pid is 1 only in a new PID namespace
			syscall.Exit(1)
		}
		syscall.Exit(0)
	}
	syscall.CloseOnExec(orderFD)
	syscall.CloseOnExec(reportFD)
	orders, answers := os.NewFile(orderFD, "order"), os.NewFile(reportFD, "report")
	var o order
	decoder := json.NewDecoder(orders)
	if err := decoder.Decode(&o); err != nil {
		syscall.Exit(1) // the service exited before it sent the order
	}
	switch role {
	case "supervise":
		reports := json.NewEncoder(answers)
		// If the service has exited, the next report fails, too.
		rep := o.supervise(orders, func() { _ = reports.Encode(report{Started: true}) })
		if err := reports.Encode(rep); err != nil {
			syscall.Exit(1)
		}
	case "enter":
		// enter returns only on failure; on success the process becomes the shell.
		fmt.Fprint(answers, o.enter())
	}
	syscall.Exit(0)
}

// supervise starts the shell, calls started when it has been executed, waits for it, and
// kills all processes that it left running. The end of asked means that the command must
// be stopped now.
func (o order) supervise(asked io.Reader, started func()) report {
	// The kernel ties the parent death signal of the shell to the thread that started it.
	runtime.LockOSThread()
	// Orphans are reparented to this process instead of init, so that sweep finds them.
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
	go func() { // ends with the process; a blocked read cannot be cancelled
		_, _ = io.Copy(io.Discard, asked)
		close(killed)
		_ = syscall.Kill(-shell, syscall.SIGKILL)
	}()
	setup, err := io.ReadAll(failure) // ends when the shell was executed, or with a reason for the failure
	if err != nil {
		setup = []byte(err.Error())
	}
	if len(setup) == 0 {
		started()
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

// freeze makes all mounts except the workspace read-only in the mount namespace of this
// process. Landlock cannot restrict changes of modes, owners and times.
func freeze(workspace string) error {
	// This must be the first step, so that the later ones do not propagate to the mounts
	// of the machine.
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

// startShell starts the process that becomes the shell. If the process fails, it writes
// the reason to failure.
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
		Env:   []string{"GODEBUG=asyncpreemptoff=1"}, // of this process, not of the shell: see limitAndExec
		Files: []uintptr{0, 1, 2, orderR.Fd(), failureW.Fd()},
		// A session of its own has no controlling terminal to inject input into, and its
		// process group can be killed as a whole.
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

// await reaps children until pid has ended, and returns its exit code as shells report
// it: 128 plus the number of the signal that killed it.
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

// sweep kills all processes that the command left running, including those in other
// sessions. The children of a killed process are reparented to this one, until none is
// left. In a PID namespace the kernel does this when the first process ends.
func sweep() {
	for os.Getpid() != 1 {
		for pid, parent := range parents() {
			if parent == os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_, err := syscall.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// killBelow kills all descendants of the process root, which must adopt orphans and not
// reap: killed descendants keep their ids. They may start others meanwhile, so it repeats
// this until a pass finds no other, at most 100 times.
func killBelow(root int) {
	killed := map[int]bool{}
	for range 100 {
		before, of := len(killed), parents()
		for pid := range of {
			if below(of, pid, root) {
				killed[pid] = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if len(killed) == before {
			return
		}
	}
}

// below reports whether pid is a descendant of root. Processes that start and end while
// their parents are read can make of cyclic, so the number of steps is limited.
func below(of map[int]int, pid, root int) bool {
	for range of {
		if pid = of[pid]; pid == root || pid == 0 {
			return pid == root
		}
	}
	return false
}

// parents returns the parent of each process.
func parents() map[int]int {
	of := map[int]int{}
	for _, path := range processes("stat") {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// proc_pid_stat(5): the name in parentheses may contain any character; the state
		// and the parent follow.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // the pattern matches numbers, and the kernel writes one
		of[pid], _ = strconv.Atoi(fields[1])
	}
	return of
}

func processes(file string) []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/" + file) // the pattern is valid
	return paths
}

// enter restricts this process and executes the shell in it. It returns only if it fails,
// with the reason; the command has then not run.
func (o order) enter() error {
	// Most restrictions apply to one thread, which must be the one that calls exec.
	runtime.LockOSThread()
	if err := os.Chdir(o.Dir); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	processes := o.processLimit() // reads /proc, which Landlock denies below
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
	// The process may have inherited open files from the one that started the service.
	if err := unix.CloseRange(orderFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	for _, l := range []struct {
		resource int
		value    uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_CPU, uint64((o.Limits.CPU + time.Second - 1) / time.Second)},
		{unix.RLIMIT_FSIZE, uint64(o.Limits.FileSize)},
		{unix.RLIMIT_NOFILE, uint64(o.Limits.OpenFiles)},
	} {
		limit, err := capped(l.resource, l.value)
		if err == nil {
			err = syscall.Setrlimit(l.resource, &limit)
		}
		if err != nil {
			return fmt.Errorf("limit %d to %d: %w", l.resource, l.value, err)
		}
	}
	return o.execute(processes)
}

// dropCapabilities empties the bounding and ambient capability sets, so that the shell
// has no capabilities even as uid 0. A process without the right to drop them has none,
// and no_new_privs prevents it from gaining any.
func dropCapabilities() {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}
