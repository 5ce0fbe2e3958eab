package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, seccomp(2).
const (
	dataCall = 0
	dataArch = 4
	dataArg0 = 16 // the low half: both architectures below are little-endian
	dataArg1 = 24
	dataArg2 = 32
	dataArg3 = 40

	// On amd64, calls from this number on belong to the x32 ABI. They would bypass a
	// filter by number.
	x32 = 0x40000000
)

// machine returns the audit architecture of this machine's system calls, or 0 if the
// filter does not support it.
func machine() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	}
	return 0
}

func seccompAvailable() bool {
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil && mode >= 0 && machine() != 0
}

// seccomp denies, to the calling thread and the programs that it executes and starts,
// system calls that Landlock and namespaces do not restrict: sockets, of which Landlock
// restricts only some, changes of other processes' limits and scheduling, and kernel
// interfaces that no shell command needs. Container runtimes deny the last by default, too.
// no_new_privs must be set.
func seccomp(network bool) error {
	program := filter(network)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("install filter: %w", err)
	}
	return nil
}

func filter(network bool) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// equal skips yes or no instructions, depending on the comparison.
	equal := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
	}
	deny := func(errno unix.Errno) unix.SockFilter {
		return answer(unix.SECCOMP_RET_ERRNO | uint32(errno))
	}

	f := []unix.SockFilter{
		load(dataArch), equal(machine(), 1, 0), deny(unix.ENOSYS),
		load(dataCall),
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32, Jt: 0, Jf: 1},
		deny(unix.ENOSYS),
	}
	for _, d := range []struct {
		call  uint32
		errno unix.Errno
	}{
		{unix.SYS_IO_URING_SETUP, unix.ENOSYS}, // can create sockets without socket(2)
		{unix.SYS_CLONE3, unix.ENOSYS},         // a filter cannot read its flags; libraries fall back to clone
		{unix.SYS_LISTEN, unix.EACCES},         // takes a free port without bind(2), which Landlock restricts
		{unix.SYS_UNSHARE, unix.EPERM},
		{unix.SYS_SETNS, unix.EPERM},
		{unix.SYS_ADD_KEY, unix.EPERM},
		{unix.SYS_REQUEST_KEY, unix.EPERM},
		{unix.SYS_KEYCTL, unix.EPERM},
		{unix.SYS_BPF, unix.EPERM},
		{unix.SYS_PERF_EVENT_OPEN, unix.EPERM},
		{unix.SYS_USERFAULTFD, unix.EPERM},
		{unix.SYS_PTRACE, unix.EPERM},
		{unix.SYS_PROCESS_VM_READV, unix.EPERM},
		{unix.SYS_PROCESS_VM_WRITEV, unix.EPERM},
	} {
		f = append(f, equal(d.call, 0, 1), deny(d.errno))
	}
	// onCall checks one argument of a call; test skips the denial if the argument is
	// allowed.
	onCall := func(call, arg uint32, errno unix.Errno, test ...unix.SockFilter) {
		steps := append([]unix.SockFilter{load(arg)}, test...)
		f = append(f, load(dataCall), equal(call, 0, uint8(len(steps)+1)))
		f = append(append(f, steps...), deny(errno))
	}
	// none skips the denial if no bit of the mask is set.
	none := func(mask uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: mask, Jt: 0, Jf: 1}
	}
	onCall(unix.SYS_CLONE, dataArg0, unix.EPERM, none(newSpaces))
	// These calls change the limits and the scheduling of every process of the same user.
	// Landlock does not restrict them, and without a PID namespace they reach the service. A
	// process changes its own with the id 0.
	own := equal(0, 1, 0)
	for _, call := range []uint32{unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR} {
		onCall(call, dataArg0, unix.EPERM, own)
	}
	onCall(unix.SYS_SETPRIORITY, dataArg0, unix.EPERM, equal(unix.PRIO_PROCESS, 1, 0))
	onCall(unix.SYS_SETPRIORITY, dataArg1, unix.EPERM, own)
	onCall(unix.SYS_IOPRIO_SET, dataArg0, unix.EPERM, equal(ioprioProcess, 1, 0))
	onCall(unix.SYS_IOPRIO_SET, dataArg1, unix.EPERM, own)
	if !network {
		// socketpair(2) remains allowed.
		return append(f, load(dataCall), equal(unix.SYS_SOCKET, 0, 1), deny(unix.EACCES), answer(unix.SECCOMP_RET_ALLOW))
	}
	// Unix sockets would reach daemons of this machine, and vsock its host. Programs use
	// netlink to list the addresses of the machine.
	onCall(unix.SYS_SOCKET, dataArg0, unix.EACCES, equal(unix.AF_NETLINK, 3, 0), equal(unix.AF_INET, 2, 0), equal(unix.AF_INET6, 1, 0))
	// Landlock restricts only TCP, so UDP, raw sockets and other stream protocols, such
	// as MPTCP and SCTP, are denied. Netlink sockets have another type and are exempt.
	const sockType = 0xf
	f = append(f,
		load(dataCall), equal(unix.SYS_SOCKET, 0, 10),
		load(dataArg0), equal(unix.AF_NETLINK, 8, 0),
		load(dataArg1), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: sockType}, equal(unix.SOCK_STREAM, 1, 0), deny(unix.EACCES),
		load(dataArg2), equal(0, 2, 0), equal(unix.IPPROTO_TCP, 1, 0), deny(unix.EACCES),
	)
	// With MSG_FASTOPEN these calls connect without connect(2), which Landlock restricts.
	onCall(unix.SYS_SENDTO, dataArg3, unix.EACCES, none(unix.MSG_FASTOPEN))
	onCall(unix.SYS_SENDMSG, dataArg2, unix.EACCES, none(unix.MSG_FASTOPEN))
	onCall(unix.SYS_SENDMMSG, dataArg3, unix.EACCES, none(unix.MSG_FASTOPEN))
	return append(f, answer(unix.SECCOMP_RET_ALLOW))
}

// ioprioProcess selects one process in ioprio_set(2).
const ioprioProcess = 1

// newSpaces are the flags of clone(2) that create namespaces, in which a command would
// have capabilities that it lacks outside.
const newSpaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET
