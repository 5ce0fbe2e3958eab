// Package build builds Jaeger from its Go module.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/anima-run/anima/tools/gobuild"
)

// Release is the version of Jaeger that is built.
const Release = "v2.13.0"

// The pinned Jaeger. Jaeger v1 and v2 share a module, whose v1.76.0 contains v2.13.0.
const (
	module    = "github.com/jaegertracing/jaeger"
	version   = "v1.76.0"
	checksum  = "h1:sWCOOF1dr+NL0PLil7mFo3BqqQL8k4WiM7aguFbc14g=" // of the module, including its go.sum
	mainDir   = "./cmd/jaeger"
	cacheForm = 1 // raise it to rebuild without another change
)

// Path returns the path of the program, whether it exists or not. The path contains a
// hash of everything that the program is built from.
func Path() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, cacheForm, runtime.Version(), runtime.GOOS, runtime.GOARCH, version, checksum)
	return gobuild.Cache("jaeger", fmt.Sprintf("%x", h.Sum(nil)[:8]), "jaeger")
}

// Build builds the program if it does not exist, and returns its path. If link is not
// empty, it becomes a symbolic link to the program.
func Build(ctx context.Context, link string) (string, error) {
	bin, err := Path()
	if err != nil {
		return "", err
	}
	_, err = gobuild.Once(bin, func(file string) error { return compile(ctx, file) })
	if err != nil {
		return "", fmt.Errorf("build Jaeger %s: %w", Release, err)
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

func compile(ctx context.Context, file string) error {
	began := time.Now()
	fmt.Fprintf(os.Stderr, "jaeger: building %s from its module, once on this machine; it takes minutes\n", Release)
	src, err := source(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(src) }() // a remainder is in the temporary folder
	if err := gobuild.Compile(ctx, src, mainDir, file, "-ldflags", "-s -w -X "+module+"/internal/version.latestVersion="+Release); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "jaeger: built in %.0f s\n", time.Since(began).Seconds())
	return nil
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
	c := gobuild.Go(ctx, tmp, "mod", "download", "-json", module+"@"+version)
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
