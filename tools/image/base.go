package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/anima-run/anima/tools/gobuild"
	"github.com/anima-run/anima/tools/image/pack"
	"github.com/anima-run/anima/tools/image/sbom"
)

// applets lists the commands of the images with a shell, one per line. The Dockerfile
// reads the same file.
//
//go:embed applets.txt
var applets string

const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// baseFiles returns the files of every image that a static program expects of a Linux
// system.
func baseFiles() ([]pack.File, []sbom.Part, error) {
	certs, err := authorities()
	if err != nil {
		return nil, nil, err
	}
	files := []pack.File{
		{Dst: "/etc/ssl/certs/ca-certificates.crt", Data: certs},
		{Dst: "/etc/passwd", Data: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/data:/sbin/nologin\n")},
		{Dst: "/etc/group", Data: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{Dst: "/etc/nsswitch.conf", Data: []byte("hosts: files dns\n")},
		{Dst: "/data", Mode: fs.ModeDir | 0o755, UID: pack.Nobody},
		{Dst: "/tmp", Mode: fs.ModeDir | 0o755, UID: pack.Nobody},
	}
	part := sbom.Part{Name: rootsModule, Version: "unknown", License: "MPL-2.0"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == rootsModule {
				part.Version, part.PURL = m.Version, "pkg:golang/"+m.Path+"@"+m.Version
			}
		}
	}
	sum := sha256.Sum256(certs)
	part.SHA256 = hex.EncodeToString(sum[:])
	return files, []sbom.Part{part}, nil
}

// authorities returns the certificate authorities of Mozilla in PEM, in the version that
// the module pins. It omits those with constraints, which a file of certificates cannot
// express.
func authorities() ([]byte, error) {
	var out bytes.Buffer
	n := 0
	for r := range bundle.Roots() {
		if r.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate}); err != nil {
			return nil, err
		}
		n++
	}
	if n < 50 {
		return nil, fmt.Errorf("only %d certificate authorities were found: check %s", n, rootsModule)
	}
	return out.Bytes(), nil
}

// shellFiles returns the files of the shell for agents' commands: one static program with
// a link for each command.
func shellFiles(ctx context.Context, busybox string) ([]pack.File, []sbom.Part, error) {
	part := sbom.Part{Name: "busybox-static", Version: "unknown", License: "GPL-2.0-only"}
	var err error
	if busybox == "" {
		if busybox, part.Version, err = findBusybox(ctx); err != nil {
			return nil, nil, fmt.Errorf("busybox: %w", err)
		}
		part.PURL = "pkg:deb/debian/busybox-static@" + part.Version
	}
	if err := static(busybox); err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256(data)
	part.SHA256 = hex.EncodeToString(sum[:])
	files := []pack.File{{Dst: "/bin/busybox", Data: data, Mode: 0o755}}
	for _, a := range strings.Fields(applets) {
		files = append(files, pack.File{Dst: "/bin/" + a, Link: "busybox"})
	}
	return files, []sbom.Part{part}, nil
}

// findBusybox returns Debian's static busybox and its version: the installed one, the one
// in the cache, or a downloaded one, which is not installed.
func findBusybox(ctx context.Context) (file, version string, err error) {
	if out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", "busybox-static").Output(); err == nil && len(out) > 0 {
		for _, f := range []string{"/bin/busybox", "/usr/bin/busybox"} {
			if static(f) == nil {
				return f, string(out), nil
			}
		}
	}
	root, err := gobuild.Cache("busybox")
	if err != nil {
		return "", "", err
	}
	kept, err := filepath.Glob(filepath.Join(root, "*", "bin", "busybox"))
	if err != nil {
		return "", "", err
	}
	if len(kept) > 0 {
		file = kept[len(kept)-1]
		return file, filepath.Base(filepath.Dir(filepath.Dir(file))), nil
	}
	tmp, err := os.MkdirTemp("", "busybox-")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a remainder is in the temporary folder
	get := exec.CommandContext(ctx, "apt-get", "download", "-q", "busybox-static")
	get.Dir = tmp
	if out, err := get.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("%w: %s\nDebian's package lists are missing; run apt-get update, or name a static busybox with -busybox", err, bytes.TrimSpace(out))
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", "", errors.Join(err, fmt.Errorf("apt-get downloaded %d packages, want 1", len(debs)))
	}
	out, err := exec.CommandContext(ctx, "dpkg-deb", "-f", debs[0], "Version").Output()
	if err != nil {
		return "", "", err
	}
	version = strings.TrimSpace(string(out))
	dir := filepath.Join(root, version)
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], filepath.Join(tmp, "x")).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("%w: %s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return "", "", err
	}
	for _, at := range []string{"bin/busybox", "usr/bin/busybox"} {
		data, err := os.ReadFile(filepath.Join(tmp, "x", at))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", "", err
		}
		file = filepath.Join(dir, "bin", "busybox")
		if err := os.WriteFile(file+".new", data, 0o755); err != nil {
			return "", "", err
		}
		return file, version, os.Rename(file+".new", file)
	}
	return "", "", errors.New("the package has no busybox")
}

// static returns an error if the program is dynamically linked.
func static(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() // read only: a Close error loses no data
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: it would not start in an image without libraries", file)
		}
	}
	return nil
}
