package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/anima-run/anima/tools/image/pack"
	"github.com/anima-run/anima/tools/image/sbom"
)

// everything is the name of the program that has all services in one process.
const everything = "anima"

// shelled reports whether the service runs commands of agents and needs a shell in its
// image.
func shelled(service string) bool { return service == "loop" || service == everything }

// release describes the images to build.
type release struct {
	root    string // folder of the repository
	version string // semantic version, for the program and the labels
	commit  string // hexadecimal; may be empty
	arch    string
	busybox string // path of a static busybox; empty: findBusybox finds one
	prefix  string // first part of the images' names, such as anima
	tag     string // tag of the images; empty: the version with "+" replaced by "-"
}

// built describes an image that was built.
type built struct {
	Service string     `json:"service"`
	Tag     string     `json:"tag"`
	Digest  string     `json:"digest"`
	Sizes   pack.Sizes `json:"sizes"`
	Archive string     `json:"archive"`
	Layout  string     `json:"layout"`
	SBOM    string     `json:"sbom"`
}

// services returns the services of the repository, and everything.
func services(root string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "services", "*", "go.mod"))
	if err != nil || len(dirs) == 0 {
		return nil, errors.Join(err, fmt.Errorf("there are no services in %s; name the repository with -root", root))
	}
	var names []string
	for _, d := range dirs {
		names = append(names, filepath.Base(filepath.Dir(d)))
	}
	return append(names, everything), nil
}

var (
	semver = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	hexes  = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
)

func (r release) check() error {
	if !semver.MatchString(r.version) {
		return fmt.Errorf("version %q is not semantic; use one such as 1.2.3 or 0.0.0-dev", r.version)
	}
	if r.commit != "" && !hexes.MatchString(r.commit) {
		return fmt.Errorf("commit %q is not a hash; use 7 to 64 hex digits, or nothing", r.commit)
	}
	return nil
}

// name returns the default name of the service's image.
func (r release) name(service string) string {
	tag := r.tag
	if tag == "" {
		tag = strings.ReplaceAll(r.version, "+", "-")
	}
	return r.prefix + "/" + service + ":" + tag
}

// compile builds the program with the settings of deploy/Dockerfile: static, optimized by
// the profile of turns, and without paths and times of this machine.
func (r release) compile(ctx context.Context, service, out string) error {
	dir, pkg := filepath.Join(r.root, "services", service), "./cmd/"+service
	if service == everything {
		dir, pkg = filepath.Join(r.root, "cmd", service), "."
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return fmt.Errorf("there is no service %q: %w", service, err)
	}
	const host = "github.com/anima-run/anima/pkg/host"
	flags := "-s -w -X " + host + ".version=" + r.version + " -X " + host + ".commit=" + r.commit
	profile := filepath.Join(r.root, "deploy", "turn.pgo")
	if _, err := os.Stat(profile); errors.Is(err, fs.ErrNotExist) {
		profile = "off" // the drill builds releases that have none
	}
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-buildvcs=false", "-mod=readonly",
		"-pgo", profile, "-ldflags", flags, "-o", out, pkg)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+r.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GODEBUG=", "GOFIPS140=off")
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", service, err, said.String())
	}
	return nil
}

// image returns the image of a service for a compiled program.
func (r release) image(ctx context.Context, service, program string) (v1.Image, []sbom.Part, error) {
	base, parts, err := baseFiles()
	if err != nil {
		return nil, nil, err
	}
	if shelled(service) {
		files, more, err := shellFiles(ctx, r.busybox)
		if err != nil {
			return nil, nil, err
		}
		base, parts = append(base, files...), append(parts, more...)
	}
	labels := map[string]string{
		"org.opencontainers.image.title": service, "org.opencontainers.image.version": r.version,
		"org.opencontainers.image.source": "https://github.com/anima-run/anima", "org.opencontainers.image.licenses": "MIT",
	}
	if r.commit != "" {
		labels["org.opencontainers.image.revision"] = r.commit
	}
	img, err := pack.Build(pack.Image{
		Layers:     [][]pack.File{base, {{Dst: "/service", Src: program, Mode: 0o755}}},
		Entrypoint: []string{"/service"}, Env: []string{"ANIMA_DATA=/data"}, Ports: []string{"8080/tcp", "9090/tcp"},
		Volumes: []string{"/data"}, Labels: labels, Arch: r.arch,
	})
	return img, parts, err
}

// build compiles the program and writes the image in two forms and its SBOM to dir. name
// is the name of the image; empty means the default name.
func (r release) build(ctx context.Context, service, name, dir string) (built, error) {
	if err := r.check(); err != nil {
		return built{}, err
	}
	if name == "" {
		name = r.name(service)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return built{}, err
	}
	tmp, err := os.MkdirTemp("", "image-")
	if err != nil {
		return built{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a remainder is in the temporary folder
	program := filepath.Join(tmp, "service")
	if err := r.compile(ctx, service, program); err != nil {
		return built{}, err
	}
	if err := static(program); err != nil {
		return built{}, err
	}
	img, parts, err := r.image(ctx, service, program)
	if err != nil {
		return built{}, fmt.Errorf("image of %s: %w", service, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return built{}, err
	}
	b := built{
		Service: service, Tag: name, Digest: digest.String(),
		Archive: filepath.Join(dir, service+".tar"), Layout: filepath.Join(dir, service), SBOM: filepath.Join(dir, service+".spdx.json"),
	}
	if b.Sizes, err = pack.Measure(img); err != nil {
		return b, err
	}
	if err := pack.Layout(b.Layout, name, img); err != nil {
		return b, err
	}
	if err := pack.Archive(b.Archive, name, img); err != nil {
		return b, err
	}
	list, err := sbom.Of(program, sbom.Subject{Name: service, Version: r.version, Digest: b.Digest, Parts: parts})
	if err != nil {
		return b, err
	}
	return b, os.WriteFile(b.SBOM, list, 0o644)
}

// findRoot returns the root of the repository that contains dir.
func findRoot(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for d := abs; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "pkg", "host", "host.go")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is outside of the repository; name it with -root", abs)
		}
	}
}

// architectures returns the architectures that images are built for.
func architectures() []string { return []string{"amd64", "arm64"} }

func defaultArch() string {
	if slices.Contains(architectures(), runtime.GOARCH) {
		return runtime.GOARCH
	}
	return architectures()[0]
}
