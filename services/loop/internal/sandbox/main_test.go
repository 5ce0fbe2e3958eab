package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Values of argv that make this binary run as a helper process.
const (
	ownerName  = "sandbox-test-owner"
	dialerName = "sandbox-test-dialer"
)

func TestMain(m *testing.M) {
	Init()
	switch filepath.Base(os.Args[0]) {
	case ownerName:
		os.Exit(own())
	case dialerName:
		os.Exit(dial(os.Args[1:]))
	}
	// Within a command, where argv[0] is the path of the binary.
	if len(os.Args) > 1 && os.Args[1] == dialerName {
		os.Exit(dial(os.Args[2:]))
	}
	fmt.Fprintf(os.Stderr, "sandbox: this kernel lends %+v; uid %d\n", Probe(context.Background()), os.Geteuid())
	os.Exit(m.Run())
}

// owned is the input of a helper process that runs a command.
type owned struct {
	Dir, Command string
	Processes    int
	Bare         bool // without namespaces
}

type outcome struct {
	Result Result
	Err    string
}

// own runs one command in a helper process and prints its outcome.
func own() int {
	var o owned
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return 1
	}
	k := thisKernel(false)
	if o.Bare {
		k = bare()
	}
	var out outcome
	spec, err := Spec{Dir: o.Dir, Command: o.Command, Timeout: time.Minute, Limits: Limits{Processes: o.Processes}}.withDefaults()
	if err == nil {
		out.Result, err = run(context.Background(), spec, k)
	}
	if err != nil {
		out.Err = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return 1
	}
	return 0
}

// owner returns the helper process that runs own, optionally as the user nobody if the
// tests run as root.
func owner(t *testing.T, nobody bool) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args = []string{ownerName}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if nobody && os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return cmd
}

// dial connects to an address and sends a byte. Its arguments are the network and the
// address.
func dial(args []string) int {
	conn, err := net.DialTimeout(args[0], args[1], 5*time.Second)
	if err == nil {
		_, err = conn.Write([]byte("x"))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("sent")
	return 0
}

// bare returns this kernel without namespaces, as in a hardened cluster.
func bare() kernel {
	k := thisKernel(false)
	k.spaces = []uintptr{0}
	return k
}

// each runs a test with all features of this kernel, as root also without a user
// namespace, and without namespaces.
func each(t *testing.T, test func(t *testing.T, k kernel)) {
	t.Run("with what the kernel lends", func(t *testing.T) { t.Parallel(); test(t, thisKernel(false)) })
	if os.Geteuid() == 0 {
		k := thisKernel(false)
		k.spaces = k.spaces[1:2] // root can create the other namespaces without a user namespace
		t.Run("without a user namespace", func(t *testing.T) { t.Parallel(); test(t, k) })
	}
	t.Run("without namespaces", func(t *testing.T) { t.Parallel(); test(t, bare()) })
}

// complete returns spec with its defaults and a workspace. The command may run
// unsandboxed if the kernel has no sandbox.
func complete(t *testing.T, k kernel, spec Spec) Spec {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	if !k.caps.Sandboxed() {
		spec.AllowUnsandboxed = true
	}
	spec, err := spec.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// sh runs a command, which must start.
func sh(t *testing.T, k kernel, spec Spec) Result {
	t.Helper()
	res, err := run(t.Context(), complete(t, k, spec), k)
	if err != nil {
		t.Fatalf("run %q: %v", spec.Command, err)
	}
	return res
}
