package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// denies reports whether the kernel can sandbox a command, and prints a notice if it
// cannot.
func denies(t *testing.T, k kernel) bool {
	t.Helper()
	if !k.caps.Sandboxed() {
		fmt.Fprintf(os.Stderr, "sandbox: NOT TESTED: %s, since the kernel lends only %+v\n", t.Name(), k.caps)
	}
	return k.caps.Sandboxed()
}

func TestEnvironmentDoesNotLeak(t *testing.T) {
	t.Setenv("ANIMA_SECRET", "hunter2")
	t.Setenv("PATH", os.Getenv("PATH")+":/hunter2")
	for name, k := range map[string]kernel{"lent": thisKernel(false), "bare": bare()} {
		dir := t.TempDir()
		res := sh(t, k, Spec{Dir: dir, Command: "env | sort; cat /proc/self/environ /proc/$PPID/environ /proc/1/environ 2>/dev/null; true"})
		want := fmt.Sprintf("GIT_CONFIG_NOSYSTEM=1\nHOME=%[1]s\nLANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=%[1]s\nSHELL=/bin/sh\nTERM=dumb\nTMPDIR=%[1]s/.tmp\n", dir)
		if res.Stdout != want {
			t.Errorf("%s: the command saw\n%s\nwant\n%s", name, res.Stdout, want)
		}
	}
}

func TestOutsideIsDenied(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		if !denies(t, k) {
			return
		}
		outside := t.TempDir()
		secret := filepath.Join(outside, "secret")
		if err := os.WriteFile(secret, []byte("hunter2"), 0o666); err != nil {
			t.Fatal(err)
		}
		// A file that the service inherited open, as from a shell.
		fd, err := syscall.Open(secret, syscall.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(fd) })
		dir := t.TempDir()
		if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		// The commands write only to files of this test, because a broken sandbox would
		// execute them.
		commands := []string{
			"cat " + secret, "cat link/secret", "ls " + outside,
			"echo x >> " + secret, "echo x > " + secret, "truncate -s 0 " + secret, "echo x > link/new", "mkdir " + outside + "/d",
			"rm " + secret, "mv " + secret + " .", "ln " + secret + " mine",
			"unshare -Ur true", "chroot . /bin/true",
			fmt.Sprintf("cat <&%d", fd), fmt.Sprintf("cat /proc/self/fd/%d", fd),
		}
		for _, path := range []string{"/proc/1/environ", "/proc/self/environ", "/proc/cpuinfo", "/etc/shadow", "/etc/hosts"} {
			commands = append(commands, "head -c 1 "+path+" > /dev/null")
		}
		for _, path := range []string{"/", "/root", "/home", "/var", "/run", "/opt", "/srv", "/mnt", "/media", "/boot", "/sys", "/tmp", "/dev", "/proc", "/etc"} {
			commands = append(commands, "ls "+path+" > /dev/null")
		}
		if k.spaces[0] != 0 {
			commands = append(commands, "chmod 777 "+secret, "touch -d 2001-01-01 "+secret)
		}
		for _, command := range commands {
			if res := sh(t, k, Spec{Dir: dir, Command: command}); res.ExitCode <= 0 || strings.Contains(res.Stdout, "hunter2") {
				t.Errorf("%q was not denied: %+v", command, res)
			}
		}
		if got, err := os.ReadFile(secret); string(got) != "hunter2" || err != nil {
			t.Errorf("the file outside has %q, %v; want it untouched", got, err)
		}
		if names, err := filepath.Glob(outside + "/*"); len(names) != 1 {
			t.Errorf("outside there is %v, %v; want the secret alone", names, err)
		}
		res := sh(t, k, Spec{Dir: dir, Command: "cat " + secret, ReadOnly: []string{outside, "/no/such/path"}})
		if res.Stdout != "hunter2" {
			t.Errorf("with the directory readable: %+v, want its content", res)
		}
		if res := sh(t, k, Spec{Dir: dir, Command: "echo x > " + secret, ReadOnly: []string{outside}}); res.ExitCode == 0 {
			t.Errorf("a readable directory was writable: %+v", res)
		}
	})
}

func TestScratchIsNotALink(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		if !denies(t, k) {
			return
		}
		dir, outside := t.TempDir(), t.TempDir()
		if err := os.Symlink(outside, filepath.Join(dir, scratch)); err != nil {
			t.Fatal(err)
		}
		if res := sh(t, k, Spec{Dir: dir, Command: "echo x > $TMPDIR/x"}); res.ExitCode == 0 {
			t.Errorf("got %+v, want it denied", res)
		}
	})
}

func TestOtherProcessesAreOutOfReach(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		if !denies(t, k) {
			return
		}
		other := exec.CommandContext(t.Context(), "sleep", "1000")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		var before, after unix.Rlimit
		if err := unix.Prlimit(other.Process.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
			t.Fatal(err)
		}
		sh(t, k, Spec{Command: fmt.Sprintf("prlimit --pid %d --nofile=7:7", other.Process.Pid)}) // not every machine has it
		if err := unix.Prlimit(other.Process.Pid, unix.RLIMIT_NOFILE, nil, &after); err != nil || after != before {
			t.Errorf("the other process has the limit %+v, %v, want %+v", after, err, before)
		}
		if k.spaces[0] == 0 && k.caps.LandlockABI < 6 {
			fmt.Fprintf(os.Stderr, "sandbox: NOT TESTED: signals of %s, since Landlock %d does not hold them\n", t.Name(), k.caps.LandlockABI)
			_ = other.Process.Kill()
			_ = other.Wait()
			return
		}
		res := sh(t, k, Spec{Command: fmt.Sprintf("kill -9 %d || kill -9 $PPID", other.Process.Pid)})
		if res.ExitCode == 0 && k.spaces[0] == 0 {
			t.Errorf("got %+v, want the signals refused", res)
		}
		if err := other.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = other.Wait()
		if got := other.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGTERM {
			t.Errorf("the other process ended by %v, want the test's own SIGTERM", got)
		}
	})
}

// dialing returns a command that connects to an address, and the paths that the command
// needs.
func dialing(t *testing.T, network, address, proxy string) Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{
		Command:  strings.Join([]string{exe, dialerName, network, address}, " "),
		ReadOnly: []string{exe},
		Proxy:    proxy,
		Limits:   Limits{AddressSpace: 1 << 62}, // the race detector reserves terabytes of address space
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		if !denies(t, k) {
			return
		}
		var lc net.ListenConfig
		tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		short, err := os.MkdirTemp("", "s") // the path of a socket has at most 107 bytes
		if err != nil {
			t.Fatal(err)
		}
		named, err := lc.Listen(t.Context(), "unix", filepath.Join(short, "s"))
		if err != nil {
			t.Fatal(err)
		}
		abstract, err := lc.Listen(t.Context(), "unix", "@anima-sandbox-test-"+filepath.Base(short))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, c := range []interface{ Close() error }{tcp, udp, named, abstract} {
				_ = c.Close()
			}
			_ = os.RemoveAll(short)
		})
		proxy, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = proxy.Close() })
		open := k
		if k.spaces[0] != 0 {
			open = thisKernel(true)
		}
		if !open.caps.Egress() {
			fmt.Fprintf(os.Stderr, "sandbox: NOT TESTED: %s with a network, since the kernel lends only %+v\n", t.Name(), k.caps)
			return
		}
		for _, l := range []struct {
			network, address string
			open             bool // allowed for a command with a proxy
		}{
			{"tcp", proxy.Addr().String(), true},
			{"tcp", tcp.Addr().String(), false},
			{"udp", udp.LocalAddr().String(), false},
			{"unix", named.Addr().String(), false},
			{"unix", abstract.Addr().String(), false},
		} {
			if res := sh(t, k, dialing(t, l.network, l.address, "")); res.ExitCode != 1 || !strings.Contains(res.Stdout, "permission denied") {
				t.Errorf("%s without network: %+v, want permission denied", l.network, res)
			}
			res := sh(t, open, dialing(t, l.network, l.address, "http://u:p@"+proxy.Addr().String()))
			if got := res.Stdout == "sent\n"; got != l.open {
				t.Errorf("%s to %s with network: sent is %v, want %v: %+v", l.network, l.address, got, l.open, res)
			}
		}
	})
}

// TestEachWall tests each restriction with the others disabled, so that the others cannot
// hide a failure.
func TestEachWall(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lent := Probe(t.Context())
	for name, k := range map[string]kernel{
		"landlock":  {caps: Capabilities{LandlockABI: lent.LandlockABI}, spaces: []uintptr{0}},
		"seccomp":   {caps: Capabilities{Seccomp: lent.Seccomp}, spaces: []uintptr{0}},
		"namespace": {spaces: thisKernel(false).spaces},
		"none":      {spaces: []uintptr{0}},
	} {
		if name == "landlock" && lent.LandlockABI < 4 || name == "seccomp" && !lent.Seccomp || name == "namespace" && !lent.NetNamespace {
			fmt.Fprintf(os.Stderr, "sandbox: NOT TESTED: %s of %s, since the kernel lends only %+v\n", t.Name(), name, lent)
			continue
		}
		spec := dialing(t, "tcp", l.Addr().String(), "")
		spec.AllowUnsandboxed = true
		res := sh(t, k, spec)
		if got, want := res.Stdout == "sent\n", name == "none"; got != want {
			t.Errorf("held by %s alone: sent is %v, want %v: %+v", name, got, want, res)
		}
	}
	// These restrictions need no optional kernel feature and apply to unsandboxed
	// commands, too.
	res := sh(t, kernel{spaces: []uintptr{0}}, Spec{
		Command:          "grep -E 'CapEff|CapBnd|CapAmb|NoNewPrivs' /proc/self/status; cat /proc/$PPID/environ 2>/dev/null | wc -c",
		AllowUnsandboxed: true,
	})
	want := "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n0\n"
	if os.Geteuid() != 0 { // only root may lower the bounding set, which has no effect without privileges to gain
		_, bound, _ := strings.Cut(res.Stdout, "CapBnd:")
		bound, _, _ = strings.Cut(bound, "\n")
		want = strings.Replace(want, "CapBnd:\t0000000000000000", "CapBnd:"+bound, 1)
	}
	if res.Stdout != want {
		t.Errorf("an unsandboxed command has\n%s\nwant\n%s%+v", res.Stdout, want, res)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		limits := Limits{CPU: time.Second, AddressSpace: 256 << 20, FileSize: 1 << 20, OpenFiles: 32}
		for command, want := range map[string]string{
			"ulimit -t; ulimit -v; ulimit -n; ulimit -c":                          "1\n262144\n32\n0\n",
			"ulimit -n 64 2>/dev/null || echo not raised":                         "not raised\n",
			"head -c 2000000 /dev/zero > big; wc -c < big":                        "1048576\n",
			"head -c 400000000 /dev/zero | tail -c 300000000 | wc -c":             "0\n",
			"exec 3<. 4<.; for i in $(seq 40); do eval \"exec $((i+4))<.\"; done": "",
		} {
			res := sh(t, k, Spec{Command: command, Limits: limits})
			if res.Stdout != want || (want == "") == (res.ExitCode == 0) || res.TimedOut {
				t.Errorf("%q: %+v, want %q", command, res, want)
			}
		}
		if res := sh(t, k, Spec{Command: "dd if=/dev/zero of=/dev/null bs=300M count=1"}); res.ExitCode != 0 {
			t.Errorf("dd with the default limits: %+v, want exit code 0", res)
		}
		if res := sh(t, k, Spec{Command: "while :; do :; done", Limits: limits}); res.ExitCode != 128+int(syscall.SIGKILL) {
			t.Errorf("endless loop: %+v, want it killed after a second of CPU", res)
		}
	})
}

// TestProcessLimit runs as the user nobody if the tests run as root, because the kernel
// exempts root from the limit.
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{false, true} {
		// Not parallel: without namespaces the other processes of the user nobody count,
		// too.
		t.Run("bare "+strconv.FormatBool(bare), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "sandbox")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if os.Geteuid() == 0 {
				if err := os.Chown(dir, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			order, err := json.Marshal(owned{
				Dir: dir, Bare: bare, Processes: 16,
				Command: "for i in $(seq 200); do sleep 1000 </dev/null >/dev/null 2>&1 & echo $i > n; done",
			})
			if err != nil {
				t.Fatal(err)
			}
			cmd := owner(t, true)
			cmd.Stdin = bytes.NewReader(order)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var got outcome
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			t.Logf("held by %+v", got.Result.Held)
			counted, err := os.ReadFile(filepath.Join(dir, "n"))
			if err != nil {
				t.Fatalf("%v: %+v", err, got)
			}
			n, err := strconv.Atoi(strings.TrimSpace(string(counted)))
			// The count is lower by the threads of the sandbox, and higher by processes
			// that have ended meanwhile.
			if got.Err != "" || err != nil || n < 3 || n > 60 {
				t.Errorf("started %d processes, want about 16: %+v", n, got)
			}
			if !strings.Contains(got.Result.Stderr, "fork") {
				t.Errorf("stderr %q, want it to say that it cannot fork", got.Result.Stderr)
			}
		})
	}
}
