package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// flags are the flags of every build. They keep paths and times of this machine out of
// the program.
var flags = []string{"-trimpath", "-buildvcs=false", "-mod=readonly"}

// program describes one binary, which is built from a module that only pins its version.
type program struct {
	name    string
	module  string // folder below pins, or a path relative to test/cluster
	pkg     string
	ldflags string
}

const kubernetes = "1.36.3" // same version as in pins/kubernetes/go.mod

// kubeVersion returns linker flags that set the version of the programs: the API server
// checks it for compatibility with clients, and kubectl prints it.
func kubeVersion() string {
	minor := strings.Split(kubernetes, ".")[1]
	var b strings.Builder
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		fmt.Fprintf(&b, " -X %s.gitVersion=v%s -X %s.gitMajor=1 -X %s.gitMinor=%s -X %s.gitTreeState=clean -X %s.buildDate=1970-01-01T00:00:00Z", p, kubernetes, p, p, minor, p, p)
	}
	return b.String()
}

// programs returns the programs of a group in build order: those that take longest first.
func programs(group string) []program {
	kube := func(name string) program {
		return program{name, "pins/kubernetes", "k8s.io/kubernetes/cmd/" + name, kubeVersion()}
	}
	keda := func(name, cmd string) program {
		return program{name, "pins/keda", "github.com/kedacore/keda/v2/cmd/" + cmd, " -X github.com/kedacore/keda/v2/version.Version=" + kedaVersion}
	}
	switch group {
	case "core":
		return []program{
			kube("kube-apiserver"),
			{name: "etcd", module: "pins/kubernetes", pkg: "go.etcd.io/etcd/server/v3"},
			kube("kubectl"), kube("kube-controller-manager"), kube("kube-scheduler"), kube("kubelet"), kube("kube-proxy"),
			{name: "pause", module: ".", pkg: "./pause"},
		}
	case "addons":
		return []program{
			{name: "coredns", module: "pins/coredns", pkg: "."},
			{name: "metrics-server", module: "pins/metrics-server", pkg: "sigs.k8s.io/metrics-server/cmd/metrics-server"},
		}
	case "nats":
		return []program{{name: "nats-server", module: "../../pkg", pkg: "github.com/nats-io/nats-server/v2"}}
	case "postgres":
		return []program{{name: "postgres-entry", module: ".", pkg: "./postgres"}}
	case "keda":
		return []program{keda("keda", "operator"), keda("keda-adapter", "adapter"), keda("keda-admission-webhooks", "webhooks")}
	default:
		return nil
	}
}

var groups = []string{"core", "addons", "nats", "postgres", "jaeger", "keda"}

// build builds the missing programs and images of the groups; without groups, of all that
// up uses.
func build(ctx context.Context, want []string) error {
	if len(want) == 0 {
		want = []string{"core", "addons", "nats", "postgres", "jaeger"}
	}
	for _, g := range want {
		if !slices.Contains(groups, g) {
			return fmt.Errorf("cannot build %q; want some of: %s", g, strings.Join(groups, " "))
		}
	}
	s := newSteps()
	// Usually nothing has to be built, and then no lock is needed.
	if want = slices.DeleteFunc(slices.Clone(want), isBuilt); len(want) == 0 {
		return nil
	}
	unlock, err := lock(filepath.Join(cache(), "lab.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	for _, g := range want {
		for _, p := range programs(g) {
			built, err := p.build(ctx)
			if err != nil {
				return err
			}
			if built {
				s.done("built %s", p.name)
			}
		}
		if g == "jaeger" {
			if err := buildJaeger(ctx); err != nil {
				return err
			}
		}
		for _, r := range recipes(g) {
			built, err := r.build(ctx)
			if err != nil {
				return err
			}
			if built {
				s.done("packed %s", r.tag())
			}
		}
		s.done("%s is there", g)
	}
	return nil
}

// isBuilt reports whether all programs and images of a group exist.
func isBuilt(group string) bool {
	return compiled(group) && !slices.ContainsFunc(recipes(group), func(r recipe) bool { return !exists(r.archive()) })
}

// compiled reports whether all programs of a group exist. Packing their images takes
// seconds.
func compiled(group string) bool {
	return !slices.ContainsFunc(programs(group), func(p program) bool { return !exists(p.path()) })
}

func exists(path string, err error) bool {
	if err == nil {
		_, err = os.Stat(path)
	}
	return err == nil
}

// cache returns the folder for built programs and images, which is outside of the clone.
func cache() string {
	if d := os.Getenv("ANIMA_CACHE"); d != "" {
		return d
	}
	d, err := os.UserHomeDir()
	if err != nil {
		d = "/root"
	}
	return filepath.Join(d, ".cache", "anima")
}

// source returns the folder of this module's source, for any working directory in the
// repository.
func source() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		for _, c := range []string{d, filepath.Join(d, "test", "cluster")} {
			if _, err := os.Stat(filepath.Join(c, "pins", "kubernetes", "go.mod")); err == nil {
				return c, nil
			}
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is outside of the repository; start this in test/cluster", dir)
		}
	}
}

// path returns the path of the program, whether it exists or not. The path contains a
// hash of everything that the program is built from.
func (p program) path() (string, error) {
	src, err := source()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	// The programs of one module share a folder. 1 is the version of ldflags; raise it to
	// rebuild all programs.
	fmt.Fprintln(h, 1, runtime.Version(), runtime.GOARCH, flags)
	kind := filepath.Base(p.module)
	switch p.module {
	case "../../pkg":
		// Only the version of the server in that module matters, not its source.
		kind = p.name
		v, err := natsVersion()
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, v)
	case ".":
		kind = p.name
		err = hashTree(h, filepath.Join(src, p.pkg))
	default:
		err = hashTree(h, filepath.Join(src, p.module))
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(cache(), kind, fmt.Sprintf("%x", h.Sum(nil))[:16], p.name), nil
}

func hashTree(h io.Writer, dir string) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasSuffix(p, "_test.go") {
			return nil
		}
		raw, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %x\n", d.Name(), sha256.Sum256(raw))
		return nil
	})
}

// build builds the program unless it exists, and reports whether it did.
func (p program) build(ctx context.Context) (bool, error) {
	out, err := p.path()
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(out); err == nil {
		return false, nil
	}
	src, err := source()
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return false, err
	}
	tmp := out + ".new"
	args := append([]string{"build", "-v", "-p", parallel()}, flags...)
	args = append(args, "-ldflags", "-s -w"+p.ldflags, "-o", tmp, p.pkg)
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = filepath.Join(src, p.module)
	c.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=")
	if err := progress(c, p.name); err != nil {
		return false, fmt.Errorf("build %s: %w", p.name, err)
	}
	return true, os.Rename(tmp, out)
}

func parallel() string {
	if p := os.Getenv("P"); p != "" {
		return p
	}
	return "2"
}

// progress runs c, which prints a line for each package, and prints the number of
// packages at intervals. Its error contains the end of the output.
func progress(c *exec.Cmd, name string) error {
	r, w := io.Pipe()
	c.Stdout, c.Stderr = w, w
	lines := make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(r); sc.Scan(); {
			lines <- sc.Text()
		}
		_, _ = io.Copy(io.Discard, r) // a line that is too long for the scanner must not block the program
	}()
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait(); _ = w.Close() }()
	start, tick := time.Now(), time.NewTicker(10*time.Second)
	defer tick.Stop()
	var tail []string
	n := 0
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				if err := <-ended; err != nil {
					return fmt.Errorf("%w\n%s", err, strings.Join(tail, "\n"))
				}
				return nil
			}
			if !strings.HasPrefix(line, "go: downloading") {
				n++
			}
			if tail = append(tail, line); len(tail) > 15 {
				tail = tail[1:]
			}
		case <-tick.C:
			last := ""
			if len(tail) > 0 {
				last = tail[len(tail)-1]
			}
			fmt.Printf("         %s: %d packages, %.0f s, now %s\n", name, n, time.Since(start).Seconds(), last)
		}
	}
}

// natsVersion returns the version of the server that the services are tested with.
func natsVersion() (string, error) {
	src, err := source()
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(src, "..", "..", "pkg", "go.mod"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`github\.com/nats-io/nats-server/v2 v(\S+)`).FindSubmatch(raw)
	if m == nil {
		return "", errors.New("pkg/go.mod does not require nats-server")
	}
	return string(m[1]), nil
}

// moduleDir returns the folder of the source of a module that a pin requires. It
// downloads the module if necessary, because the programs may come from the cache.
func moduleDir(ctx context.Context, pin, module string) (string, error) {
	src, err := source()
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	c.Dir = filepath.Join(src, "pins", pin)
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("get module %s: %w", module, err)
	}
	var m struct {
		Dir string `json:"Dir"`
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return "", fmt.Errorf("get module %s: %w", module, err)
	}
	return m.Dir, nil
}

// printPath prints the path of one built program.
func printPath(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("say what: path NAME")
	}
	for _, g := range groups {
		for _, p := range programs(g) {
			if p.name != args[0] {
				continue
			}
			path, err := p.path()
			if err != nil {
				return err
			}
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("%s is not built; run build %s", p.name, g)
			}
			fmt.Println(path)
			return ctx.Err()
		}
	}
	return fmt.Errorf("there is no program %q", args[0])
}

// lock acquires an exclusive file lock, so that concurrent builds wait for each other.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Println("         waiting for another build")
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return func() { _ = f.Close() }, nil
}
