//go:build linux

package sandbox

import (
	"testing"

	"golang.org/x/sys/unix"
)

// answerOf evaluates the filter for a system call as the kernel would.
func answerOf(t *testing.T, program []unix.SockFilter, arch, call uint32, args [4]uint32) uint32 {
	t.Helper()
	data := map[uint32]uint32{dataCall: call, dataArch: arch, dataArg0: args[0], dataArg1: args[1], dataArg2: args[2], dataArg3: args[3]}
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
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			loaded &= step.K
			continue
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump = loaded&step.K != 0
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

// TestFilter checks the answers of the filter alone. In a sandbox, Landlock and the
// namespaces deny some of these calls, too, and would hide a fault of the filter.
func TestFilter(t *testing.T) {
	t.Parallel()
	denied := func(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }
	const allowed = unix.SECCOMP_RET_ALLOW
	type args = [4]uint32
	const stream, cloexec, fastOpen = unix.SOCK_STREAM, unix.SOCK_CLOEXEC, unix.MSG_FASTOPEN
	type question struct {
		name       string
		call       uint32
		args       args
		with, none uint32 // expected answers with and without a network
	}
	for _, q := range []question{
		{"ptrace", unix.SYS_PTRACE, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"unshare", unix.SYS_UNSHARE, args{unix.CLONE_NEWUSER}, denied(unix.EPERM), denied(unix.EPERM)},
		{"clone of a process", unix.SYS_CLONE, args{uint32(unix.SIGCHLD)}, allowed, allowed},
		{"clone of a thread", unix.SYS_CLONE, args{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD}, allowed, allowed},
		{"clone, user namespace", unix.SYS_CLONE, args{unix.CLONE_NEWUSER | uint32(unix.SIGCHLD)}, denied(unix.EPERM), denied(unix.EPERM)},
		{"clone, network namespace", unix.SYS_CLONE, args{unix.CLONE_NEWNET}, denied(unix.EPERM), denied(unix.EPERM)},
		{"clone, mount namespace", unix.SYS_CLONE, args{unix.CLONE_NEWNS}, denied(unix.EPERM), denied(unix.EPERM)},
		{"clone, pid namespace", unix.SYS_CLONE, args{unix.CLONE_NEWPID}, denied(unix.EPERM), denied(unix.EPERM)},
		{"clone3", unix.SYS_CLONE3, args{}, denied(unix.ENOSYS), denied(unix.ENOSYS)},
		{"setns", unix.SYS_SETNS, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"add_key", unix.SYS_ADD_KEY, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"request_key", unix.SYS_REQUEST_KEY, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"keyctl", unix.SYS_KEYCTL, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"bpf", unix.SYS_BPF, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"userfaultfd", unix.SYS_USERFAULTFD, args{}, denied(unix.EPERM), denied(unix.EPERM)},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, args{}, denied(unix.ENOSYS), denied(unix.ENOSYS)},
		{"own limits", unix.SYS_PRLIMIT64, args{0, unix.RLIMIT_NOFILE}, allowed, allowed},
		{"limits of another process", unix.SYS_PRLIMIT64, args{1, unix.RLIMIT_CPU}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own processors", unix.SYS_SCHED_SETAFFINITY, args{}, allowed, allowed},
		{"processors of another process", unix.SYS_SCHED_SETAFFINITY, args{1}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own scheduler", unix.SYS_SCHED_SETSCHEDULER, args{0, unix.SCHED_BATCH}, allowed, allowed},
		{"scheduler of another process", unix.SYS_SCHED_SETSCHEDULER, args{1, unix.SCHED_IDLE}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own parameters of the scheduler", unix.SYS_SCHED_SETPARAM, args{}, allowed, allowed},
		{"parameters of another process", unix.SYS_SCHED_SETPARAM, args{1}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own attributes of the scheduler", unix.SYS_SCHED_SETATTR, args{}, allowed, allowed},
		{"attributes of another process", unix.SYS_SCHED_SETATTR, args{1}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own priority", unix.SYS_SETPRIORITY, args{unix.PRIO_PROCESS, 0, 10}, allowed, allowed},
		{"priority of another process", unix.SYS_SETPRIORITY, args{unix.PRIO_PROCESS, 1, 19}, denied(unix.EPERM), denied(unix.EPERM)},
		{"priority of the user", unix.SYS_SETPRIORITY, args{unix.PRIO_USER, 0, 19}, denied(unix.EPERM), denied(unix.EPERM)},
		{"own I/O priority", unix.SYS_IOPRIO_SET, args{ioprioProcess}, allowed, allowed},
		{"I/O priority of another process", unix.SYS_IOPRIO_SET, args{ioprioProcess, 1}, denied(unix.EPERM), denied(unix.EPERM)},
		{"I/O priority of the user", unix.SYS_IOPRIO_SET, args{3}, denied(unix.EPERM), denied(unix.EPERM)},
		{"TCP", unix.SYS_SOCKET, args{unix.AF_INET, stream | cloexec}, allowed, denied(unix.EACCES)},
		{"TCP by its number", unix.SYS_SOCKET, args{unix.AF_INET6, stream, unix.IPPROTO_TCP}, allowed, denied(unix.EACCES)},
		{"MPTCP", unix.SYS_SOCKET, args{unix.AF_INET, stream, unix.IPPROTO_MPTCP}, denied(unix.EACCES), denied(unix.EACCES)},
		{"SCTP", unix.SYS_SOCKET, args{unix.AF_INET6, stream, unix.IPPROTO_SCTP}, denied(unix.EACCES), denied(unix.EACCES)},
		{"UDP", unix.SYS_SOCKET, args{unix.AF_INET, unix.SOCK_DGRAM | cloexec}, denied(unix.EACCES), denied(unix.EACCES)},
		{"UDP over IPv6", unix.SYS_SOCKET, args{unix.AF_INET6, unix.SOCK_DGRAM}, denied(unix.EACCES), denied(unix.EACCES)},
		{"raw IP", unix.SYS_SOCKET, args{unix.AF_INET, unix.SOCK_RAW}, denied(unix.EACCES), denied(unix.EACCES)},
		{"netlink", unix.SYS_SOCKET, args{unix.AF_NETLINK, unix.SOCK_RAW}, allowed, denied(unix.EACCES)},
		{"unix", unix.SYS_SOCKET, args{unix.AF_UNIX, stream}, denied(unix.EACCES), denied(unix.EACCES)},
		{"vsock", unix.SYS_SOCKET, args{unix.AF_VSOCK, stream}, denied(unix.EACCES), denied(unix.EACCES)},
		{"packet", unix.SYS_SOCKET, args{unix.AF_PACKET, unix.SOCK_RAW}, denied(unix.EACCES), denied(unix.EACCES)},
		{"socketpair", unix.SYS_SOCKETPAIR, args{unix.AF_UNIX, stream}, allowed, allowed},
		{"sendto", unix.SYS_SENDTO, args{0, 0, 0, unix.MSG_NOSIGNAL}, allowed, allowed},
		{"sendto that connects", unix.SYS_SENDTO, args{0, 0, 0, fastOpen}, denied(unix.EACCES), allowed},
		{"sendmsg", unix.SYS_SENDMSG, args{0, 0, unix.MSG_NOSIGNAL}, allowed, allowed},
		{"sendmsg that connects", unix.SYS_SENDMSG, args{0, 0, fastOpen}, denied(unix.EACCES), allowed},
		{"sendmmsg that connects", unix.SYS_SENDMMSG, args{0, 0, 0, fastOpen}, denied(unix.EACCES), allowed},
		{"listen", unix.SYS_LISTEN, args{}, denied(unix.EACCES), denied(unix.EACCES)},
		{"connect", unix.SYS_CONNECT, args{}, allowed, allowed},
		{"read", unix.SYS_READ, args{}, allowed, allowed},
		{"execve", unix.SYS_EXECVE, args{}, allowed, allowed},
		{"a call of the x32 ABI", x32 | unix.SYS_READ, args{}, denied(unix.ENOSYS), denied(unix.ENOSYS)},
	} {
		for network, want := range map[bool]uint32{true: q.with, false: q.none} {
			if got := answerOf(t, filter(network), machine(), q.call, q.args); got != want {
				t.Errorf("%s, network %t: got %#x, want %#x", q.name, network, got, want)
			}
		}
	}
	if got := answerOf(t, filter(true), machine()+1, unix.SYS_READ, args{}); got != denied(unix.ENOSYS) {
		t.Errorf("a call of another machine: got %#x, want ENOSYS", got)
	}
}
