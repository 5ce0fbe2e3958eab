//go:build linux

package sandbox

import (
	"testing"

	"golang.org/x/sys/unix"
)

// answerOf runs the filter on a system call as the kernel would.
func answerOf(t *testing.T, program []unix.SockFilter, arch, call, arg0 uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{dataCall: call, dataArch: arch, dataArg0: arg0}
	var loaded uint32
	for at := 0; at < len(program); at++ {
		step, jump := program[at], false
		switch step.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			v, known := data[step.K]
			if !known {
				t.Fatalf("instruction %d reads offset %d", at, step.K)
			}
			loaded = v
			continue
		case unix.BPF_RET | unix.BPF_K:
			return step.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump = loaded == step.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump = loaded >= step.K
		default:
			t.Fatalf("instruction %d has the code %#x", at, step.Code)
		}
		if jump {
			at += int(step.Jt)
		} else {
			at += int(step.Jf)
		}
	}
	t.Fatal("the filter ended without an answer")
	return 0
}

// TestFilter checks every answer of the filter by itself: in a sandbox Landlock and
// the namespaces deny some of these calls too, and would hide a hole in the filter.
func TestFilter(t *testing.T) {
	t.Parallel()
	denied := func(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }
	const allowed = unix.SECCOMP_RET_ALLOW
	type question struct {
		name       string
		call, arg0 uint32
		with, none uint32 // answers with a network and without
	}
	for _, q := range []question{
		{"ptrace", unix.SYS_PTRACE, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER, denied(unix.EPERM), denied(unix.EPERM)},
		{"setns", unix.SYS_SETNS, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"add_key", unix.SYS_ADD_KEY, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"request_key", unix.SYS_REQUEST_KEY, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"keyctl", unix.SYS_KEYCTL, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"bpf", unix.SYS_BPF, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"userfaultfd", unix.SYS_USERFAULTFD, 0, denied(unix.EPERM), denied(unix.EPERM)},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, 0, denied(unix.ENOSYS), denied(unix.ENOSYS)},
		{"socket inet", unix.SYS_SOCKET, unix.AF_INET, allowed, denied(unix.EACCES)},
		{"socket inet6", unix.SYS_SOCKET, unix.AF_INET6, allowed, denied(unix.EACCES)},
		{"socket netlink", unix.SYS_SOCKET, unix.AF_NETLINK, allowed, denied(unix.EACCES)},
		{"socket unix", unix.SYS_SOCKET, unix.AF_UNIX, denied(unix.EACCES), denied(unix.EACCES)},
		{"socket vsock", unix.SYS_SOCKET, unix.AF_VSOCK, denied(unix.EACCES), denied(unix.EACCES)},
		{"socket packet", unix.SYS_SOCKET, unix.AF_PACKET, denied(unix.EACCES), denied(unix.EACCES)},
		{"socketpair", unix.SYS_SOCKETPAIR, unix.AF_UNIX, allowed, allowed},
		{"read", unix.SYS_READ, 0, allowed, allowed},
		{"execve", unix.SYS_EXECVE, 0, allowed, allowed},
		{"a call of the x32 ABI", x32 | unix.SYS_READ, 0, denied(unix.ENOSYS), denied(unix.ENOSYS)},
	} {
		for network, want := range map[bool]uint32{true: q.with, false: q.none} {
			if got := answerOf(t, filter(network), machine(), q.call, q.arg0); got != want {
				t.Errorf("%s, network %t: got %#x, want %#x", q.name, network, got, want)
			}
		}
	}
	if got := answerOf(t, filter(true), machine()+1, unix.SYS_READ, 0); got != denied(unix.ENOSYS) {
		t.Errorf("a call of another machine: got %#x, want ENOSYS", got)
	}
}
