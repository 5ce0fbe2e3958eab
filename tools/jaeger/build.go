package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The pinned Jaeger. Jaeger v1 and v2 share a module, whose v1.76.0 contains v2.13.0.
const (
	module    = "github.com/jaegertracing/jaeger"
	version   = "v1.76.0"
	checksum  = "h1:sWCOOF1dr+NL0PLil7mFo3BqqQL8k4WiM7aguFbc14g=" // of the module, including its go.sum
	release   = "v2.13.0"
	mainDir   = "./cmd/jaeger"
	cacheForm = 1 // raise it to rebuild without another change
)

// buildFlags returns the flags of the go command. They keep the paths and times of this
// machine out of the program.
func buildFlags() []string {
	return []string{
		"-trimpath", "-buildvcs=false", "-mod=readonly", "-p", parallel(),
		"-ldflags", "-s -w -X " + module + "/internal/version.latestVersion=" + release,
	}
}

// parallel returns the number of packages that are compiled concurrently: 2, or the value
// of P.
func parallel() string {
	if p := os.Getenv("P"); p != "" {
		return p
	}
	return "2"
}

// cache returns the folder for built programs, which is outside of the clone.
func cache() (string, error) {
	if d := os.Getenv("ANIMA_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w; set ANIMA_CACHE to a folder for the build", err)
	}
	return filepath.Join(d, ".cache", "anima"), nil
}

// path returns the path of the program, whether it exists or not. The path contains a
// hash of everything that the program is built from.
func path() (string, error) {
	root, err := cache()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, cacheForm, runtime.Version(), runtime.GOOS, runtime.GOARCH, version, checksum)
	return filepath.Join(root, "jaeger", fmt.Sprintf("%x", h.Sum(nil)[:8]), "jaeger"), nil
}

// build builds the program if it does not exist, and returns its path. Concurrent builds
// exclude each other by a file lock. If link is not empty, it becomes a symbolic link to
// the program.
func build(ctx context.Context, link string) (string, error) {
	bin, err := path()
	if err != nil {
		return "", err
	}
	if err := ensure(ctx, bin); err != nil {
		return "", fmt.Errorf("build Jaeger %s: %w", release, err)
	}
	if link == "" {
		return bin, nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return "", err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return bin, os.Symlink(bin, link)
}

func ensure(ctx context.Context, bin string) error {
	if _, err := os.Stat(bin); err == nil {
		return nil
	}
	dir := filepath.Dir(bin)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(bin); err == nil { // another process has built it meanwhile
		return nil
	}
	began := time.Now()
	fmt.Fprintf(os.Stderr, "jaeger: building %s from its module, once on this machine; it takes minutes\n", release)
	src, err := source(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(src) }() // a remainder is in the temporary folder
	args := append([]string{"build", "-v"}, buildFlags()...)
	c := goTool(ctx, src, append(args, "-o", bin+".new", mainDir)...)
	if err := progress(c); err != nil {
		return err
	}
	if err := os.Rename(bin+".new", bin); err != nil {
		return err
	}
	st, err := os.Stat(bin)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "jaeger: built in %.0f s, %.1f MiB\n", time.Since(began).Seconds(), float64(st.Size())/(1<<20))
	return nil
}

func goTool(ctx context.Context, dir string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	return c
}

// source downloads the module, verifies it against the pinned checksum, and returns a
// copy of it, because the go command refuses to build in its own cache. All dependencies
// are determined by the module's own go.mod and go.sum.
func source(ctx context.Context) (string, error) {
	tmp, err := os.MkdirTemp("", "jaeger-src-")
	if err != nil {
		return "", err
	}
	fail := func(err error) (string, error) { _ = os.RemoveAll(tmp); return "", err }
	c := goTool(ctx, tmp, "mod", "download", "-json", module+"@"+version)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	var m struct{ Dir, Sum, Error string }
	if jerr := json.Unmarshal(out, &m); jerr != nil && err == nil {
		err = jerr
	}
	if err != nil {
		return fail(fmt.Errorf("get %s@%s: %w: %s%s", module, version, err, m.Error, errs.String()))
	}
	if m.Sum != checksum {
		return fail(fmt.Errorf("%s@%s has checksum %s, want %s: it is not the reviewed version", module, version, m.Sum, checksum))
	}
	if err := os.CopyFS(tmp, os.DirFS(m.Dir)); err != nil {
		return fail(err)
	}
	return tmp, nil
}

// progress runs a build that prints a line for each package, and prints the number of
// packages at intervals. Its error contains the end of the output.
func progress(c *exec.Cmd) error {
	w := &counter{}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	began, tick := time.Now(), time.NewTicker(15*time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("%w\n%s", err, w.tail())
			}
			return nil
		case <-tick.C:
			fmt.Fprintf(os.Stderr, "jaeger: %.0f s\n", time.Since(began).Seconds())
		}
	}
}

// counter keeps the end of the written data. Its methods must be called by one goroutine
// until the program has ended.
type counter struct{ end []byte }

func (c *counter) Write(p []byte) (int, error) {
	c.end = append(c.end, p...)
	if extra := len(c.end) - 4096; extra > 0 {
		c.end = c.end[extra:]
	}
	return len(p), nil
}

func (c *counter) tail() string {
	lines := strings.Split(strings.TrimSpace(string(c.end)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

var _ io.Writer = (*counter)(nil)

// lock waits until no other process holds the lock on the file, and acquires it.
func lock(file string) (func(), error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(os.Stderr, "jaeger: another build is running, waiting for it")
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return func() { _ = f.Close() }, nil
}
