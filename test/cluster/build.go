package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/anima-run/anima/tools/gobuild"
	jaeger "github.com/anima-run/anima/tools/jaeger/build"
)

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
	want = slices.DeleteFunc(slices.Clone(want), isBuilt)
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
			if _, err := jaeger.Build(ctx, ""); err != nil {
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
	fmt.Fprintln(h, 1, runtime.Version(), runtime.GOARCH, gobuild.Flags())
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
	return gobuild.Cache(kind, fmt.Sprintf("%x", h.Sum(nil))[:16], p.name)
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
	src, err := source()
	if err != nil {
		return false, err
	}
	built, err := gobuild.Once(out, func(file string) error {
		return gobuild.Compile(ctx, filepath.Join(src, p.module), p.pkg, file, "-ldflags", "-s -w"+p.ldflags)
	})
	if err != nil {
		return false, fmt.Errorf("build %s: %w", p.name, err)
	}
	return built, nil
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
	out, err := gobuild.Go(ctx, filepath.Join(src, "pins", pin), "mod", "download", "-json", module).Output()
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
