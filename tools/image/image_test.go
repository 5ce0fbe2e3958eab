package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/anima-run/anima/tools/image/sbom"
)

// largest and largestAnima are the maximum compressed sizes of the image of a service and
// of anima in bytes. anima has the programs of all services and a chain for development in
// one; no cluster runs it.
const (
	largest      = 30 << 20
	largestAnima = 45 << 20
)

// repository returns the root of the clone that contains this module.
func repository(t *testing.T) string {
	t.Helper()
	root, err := findRoot(".")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// copyOf copies the sources of a service's image to a temporary folder.
func copyOf(t *testing.T, root, service string) string {
	t.Helper()
	to := t.TempDir()
	for _, dir := range []string{"pkg", "services/" + service, "deploy"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func testRelease(root string) release {
	return release{root: root, version: "1.2.3", commit: "0123456789abcdef", arch: defaultArch(), prefix: "example.org/anima"}
}

func TestSameSourcesGiveTheSameDigest(t *testing.T) {
	t.Parallel()
	root := repository(t)
	var got [2]built
	var errs [2]error
	var archives [2][]byte
	roots := []string{copyOf(t, root, "policy"), copyOf(t, root, "policy")}
	var wg sync.WaitGroup
	for i, r := range roots {
		wg.Go(func() { got[i], errs[i] = testRelease(r).build(t.Context(), "policy", "", t.TempDir()) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		var err error
		if archives[i], err = os.ReadFile(got[i].Archive); err != nil {
			t.Fatal(err)
		}
	}
	if got[0].Digest != got[1].Digest {
		t.Errorf("two builds in different folders: %s and %s, want one digest", got[0].Digest, got[1].Digest)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives of two builds differ")
	}
	other := testRelease(roots[0])
	other.version = "1.2.4"
	changed, err := other.build(t.Context(), "policy", "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if changed.Digest == got[0].Digest {
		t.Error("another version has the same digest: the version is not in the image")
	}
	if err := os.Remove(filepath.Join(roots[1], "deploy", "turn.pgo")); err != nil {
		t.Fatal(err)
	}
	plain, err := testRelease(roots[1]).build(t.Context(), "policy", "", t.TempDir())
	if err != nil || plain.Digest == got[1].Digest {
		t.Errorf("without the compiler's profile: digest %s, %v, want an image of another digest", plain.Digest, err)
	}
}

func TestImagesOfServices(t *testing.T) {
	t.Parallel()
	root := repository(t)
	all, err := services(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 7 {
		t.Fatalf("services: %v, want six and anima", all)
	}
	dir := t.TempDir()
	for _, service := range all {
		t.Run(service, func(t *testing.T) { // sequential, because each build uses all processors
			b, err := testRelease(root).build(t.Context(), service, "", dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %s compressed, %s on a node", service, mib(b.Sizes.Compressed), mib(b.Sizes.Uncompressed))
			most := int64(largest)
			if service == "anima" {
				most = largestAnima
			}
			if b.Sizes.Compressed > most {
				t.Errorf("%s compressed, want at most %s", mib(b.Sizes.Compressed), mib(most))
			}
			if want := "example.org/anima/" + service + ":1.2.3"; b.Tag != want {
				t.Errorf("tag %s, want %s", b.Tag, want)
			}
			img := fromArchive(t, b)
			checkConfig(t, img)
			checkFiles(t, service, files(t, img))
			checkSBOM(t, root, service, b)
		})
	}
}

// fromArchive reads the archive as docker does and the layout as OCI tools do, and checks
// that they are the same image.
func fromArchive(t *testing.T, b built) v1.Image {
	t.Helper()
	img, err := tarball.ImageFromPath(b.Archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(b.Layout)
	if err != nil {
		t.Fatal(err)
	}
	man, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(man.Manifests) != 1 || man.Manifests[0].Digest.String() != b.Digest || man.Manifests[0].Annotations["io.containerd.image.name"] != b.Tag {
		t.Errorf("the layout holds %+v, want one image %s of digest %s", man.Manifests, b.Tag, b.Digest)
	}
	got, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	same, err := index.Image(man.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := same.ConfigName(); err != nil || got != want {
		t.Errorf("the archive holds configuration %s, the layout %s, %v", got, want, err)
	}
	return img
}

func checkConfig(t *testing.T, img v1.Image) {
	t.Helper()
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := conf.Config
	if !slices.Equal(c.Entrypoint, []string{"/service"}) || c.User != "65532:65532" || !slices.Contains(c.Env, "ANIMA_DATA=/data") {
		t.Errorf("entrypoint %v, user %q, environment %v; want /service, 65532:65532 and ANIMA_DATA=/data", c.Entrypoint, c.User, c.Env)
	}
	if c.Labels["org.opencontainers.image.version"] != "1.2.3" || c.Labels["org.opencontainers.image.revision"] != "0123456789abcdef" {
		t.Errorf("labels %v, want the version and the commit", c.Labels)
	}
	if !conf.Created.Time.Equal(epochOf(t)) {
		t.Errorf("made at %v, want a fixed time", conf.Created)
	}
}

// epochOf returns the fixed time of all files in images, decoded from JSON.
func epochOf(t *testing.T) (at time.Time) {
	t.Helper()
	if err := json.Unmarshal([]byte(`"1970-01-01T00:00:00Z"`), &at); err != nil {
		t.Fatal(err)
	}
	return at
}

type entry struct {
	tar.Header
	data []byte
}

// files returns the entries of all layers.
func files(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]entry{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			all["/"+strings.TrimSuffix(h.Name, "/")] = entry{*h, data}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func checkFiles(t *testing.T, service string, all map[string]entry) {
	t.Helper()
	for _, dir := range []string{"/data", "/tmp"} {
		if f := all[dir]; f.Typeflag != tar.TypeDir || f.Uid != 65532 || f.Gid != 65532 || f.Mode&0o700 != 0o700 {
			t.Errorf("%s: type %c, owner %d:%d, mode %o; want a folder of 65532", dir, f.Typeflag, f.Uid, f.Gid, f.Mode)
		}
	}
	program := all["/service"]
	if program.Mode != 0o755 || program.Uid != 0 {
		t.Errorf("/service: mode %o, owner %d; want 755 and root, so that it cannot change itself", program.Mode, program.Uid)
	}
	file := filepath.Join(t.TempDir(), "service")
	if err := os.WriteFile(file, program.data, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-version"}
	if service == everything {
		args = []string{"version"}
	}
	out, err := exec.CommandContext(t.Context(), file, args...).Output()
	if err != nil || !strings.HasPrefix(string(out), service+" 1.2.3") {
		t.Errorf("%s %v says %q, %v; want the version 1.2.3", service, args, out, err)
	}
	if !bytes.Contains(all["/etc/passwd"].data, []byte("nonroot:x:65532:65532:")) || len(all["/etc/nsswitch.conf"].data) == 0 {
		t.Error("/etc/passwd has no nonroot, or there is no /etc/nsswitch.conf")
	}
	n := 0
	for rest := all["/etc/ssl/certs/ca-certificates.crt"].data; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
	}
	if n < 50 {
		t.Errorf("%d certificate authorities, want Mozilla's", n)
	}
	if _, ok := all["/bin/sh"]; ok != shelled(service) {
		t.Errorf("/bin/sh is there: %v, want %v", ok, shelled(service))
	}
	if shelled(service) {
		checkShell(t, all)
	}
}

// checkShell runs the shell of the image in an otherwise empty folder.
func checkShell(t *testing.T, all map[string]entry) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "busybox"), all["/bin/busybox"].data, 0o755); err != nil {
		t.Fatal(err)
	}
	has, err := exec.CommandContext(t.Context(), filepath.Join(bin, "busybox"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Fields(string(has))
	for name, f := range all {
		base, ok := strings.CutPrefix(name, "/bin/")
		if !ok || base == "busybox" {
			continue
		}
		if f.Linkname != "busybox" || !slices.Contains(known, base) {
			t.Errorf("%s leads to %q; want busybox, and busybox to know it", name, f.Linkname)
		}
		if err := os.Symlink("busybox", filepath.Join(bin, base)); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), filepath.Join(bin, "sh"), "-c", `printf 'b\na\na\n' | sort | uniq | tr a-z A-Z | wc -l; find . -name x | xargs ls; [ 1 = 1 ] && test -d / && env | grep -c PATH`)
	c.Env, c.Dir = []string{"PATH=" + bin}, t.TempDir()
	out, err := c.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "2\n") {
		t.Errorf("the shell says %q, %v; want 2", out, err)
	}
}

// checkSBOM compares the SBOM with the modules that the program depends on.
func checkSBOM(t *testing.T, root, service string, b built) {
	t.Helper()
	raw, err := os.ReadFile(b.SBOM)
	if err != nil {
		t.Fatal(err)
	}
	var doc sbom.Document
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || !strings.HasSuffix(doc.DocumentNamespace, b.Digest) {
		t.Errorf("%s of %s, want SPDX-2.3 of the image %s", doc.SPDXVersion, doc.DocumentNamespace, b.Digest)
	}
	listed := map[string]sbom.Package{}
	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range doc.Packages {
		if ids[p.SPDXID] {
			t.Errorf("two packages are %s", p.SPDXID)
		}
		ids[p.SPDXID] = true
		listed[p.Name] = p
	}
	for _, r := range doc.Relationships {
		if !ids[r.SPDXElementID] || !ids[r.RelatedSPDXElement] {
			t.Errorf("relationship %+v names something that is not listed", r)
		}
	}
	dir, pkg := filepath.Join(root, "services", service), "./cmd/"+service
	if service == everything {
		dir, pkg = filepath.Join(root, "cmd", service), "."
	}
	c := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{if .Replace}}of-the-repository{{else}}{{.Version}}{{end}}{{end}}{{end}}", pkg)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+defaultArch())
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) != 2 {
			continue
		}
		n++
		p, ok := listed[f[0]]
		switch {
		case !ok:
			t.Errorf("%s is linked and not listed", f[0])
		case f[1] == "of-the-repository":
		case p.VersionInfo != f[1] || len(p.Checksums) != 1 || len(p.Checksums[0].ChecksumValue) != 64:
			t.Errorf("%s is listed as %s with %v, want %s with a checksum", f[0], p.VersionInfo, p.Checksums, f[1])
		}
	}
	if n < 10 {
		t.Errorf("%d packages of other modules, want more: nothing was compared", n)
	}
	if _, ok := listed["busybox-static"]; ok != shelled(service) {
		t.Errorf("busybox is listed: %v, want %v", ok, shelled(service))
	}
	if p := listed["stdlib"]; p.VersionInfo == "" {
		t.Error("the standard library is not listed")
	}
}

// TestDockerfileHasTheSameApplets checks that the Dockerfile uses the same list of
// commands as this program.
func TestDockerfileHasTheSameApplets(t *testing.T) {
	t.Parallel()
	root := repository(t)
	for _, f := range []string{"deploy/Dockerfile", "deploy/Dockerfile.dockerignore"} {
		data, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(data, []byte("tools/image/applets.txt")) {
			t.Errorf("%s does not name tools/image/applets.txt", f)
		}
	}
}

// TestReleaseHasEveryProgram checks that .ko.yaml has every service, because a release
// has only those, and builds them as deploy/Dockerfile does.
func TestReleaseHasEveryProgram(t *testing.T) {
	t.Parallel()
	root := repository(t)
	data, err := os.ReadFile(filepath.Join(root, ".ko.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := services(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		dir, pkg := "services/"+s, "./cmd/"+s
		if s == everything {
			dir, pkg = "cmd/"+s, "."
		}
		if !bytes.Contains(data, []byte("dir: "+dir+", main: "+pkg)) && !bytes.Contains(data, []byte("dir: "+dir+"\n    main: "+pkg)) {
			t.Errorf(".ko.yaml builds no %s of %s", pkg, dir)
		}
	}
	for _, flag := range []string{"-trimpath", "-tags=grpcnotrace", "-pgo=../../deploy/turn.pgo"} {
		if !bytes.Contains(data, []byte(flag)) {
			t.Errorf(".ko.yaml builds without %s", flag)
		}
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "etc/conf": 0o600} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("tool", filepath.Join(tree, "bin", "other")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out", "x.tar")
	var said bytes.Buffer
	err := run(t.Context(), []string{
		"pack", "-t", "example.org/x:1", "-entrypoint", "/opt/bin/tool", "-entrypoint", "-v", "-env", "A=b", "-user", "70:70", "-workdir", "/opt",
		"-uid", "70", "-dir", "/var/lib/x:1777", "-ca", "-o", out, tree + ":/opt", filepath.Join(tree, "etc", "conf") + ":/etc/x.conf:0644",
	}, &said)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := conf.Config; !slices.Equal(c.Entrypoint, []string{"/opt/bin/tool", "-v"}) || c.User != "70:70" || c.WorkingDir != "/opt" || !slices.Contains(c.Env, "A=b") {
		t.Errorf("configuration %+v", c)
	}
	all := files(t, img)
	if f := all["/opt/bin/tool"]; string(f.data) != "bin/tool" || f.Mode != 0o755 || f.Uid != 70 {
		t.Errorf("/opt/bin/tool: %q, mode %o, owner %d", f.data, f.Mode, f.Uid)
	}
	if f := all["/opt/bin/other"]; f.Linkname != "tool" {
		t.Errorf("/opt/bin/other leads to %q, want tool", f.Linkname)
	}
	if f := all["/etc/x.conf"]; string(f.data) != "etc/conf" || f.Mode != 0o644 {
		t.Errorf("/etc/x.conf: %q, mode %o", f.data, f.Mode)
	}
	if f := all["/var/lib/x"]; f.Mode != 0o1777 || f.Typeflag != tar.TypeDir {
		t.Errorf("/var/lib/x: mode %o, want a folder of 1777", f.Mode)
	}
	if !strings.Contains(said.String(), "example.org/x:1 sha256:") {
		t.Errorf("it says %q, want the name and the digest", said.String())
	}
}

func TestWrongUseIsSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "x.tar")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no command"},
		{[]string{"build", "-o", dir}, "no service is named: give -service"},
		{[]string{"build", "-service", "loop"}, "-o DIR"},
		{[]string{"build", "-service", "nobody", "-o", dir}, `no service "nobody"`},
		{[]string{"build", "-service", "loop", "-o", dir, "-version", "latest"}, "not semantic"},
		{[]string{"build", "-service", "loop", "-o", dir, "-commit", "HEAD"}, "hex digits"},
		{[]string{"build", "-service", "loop", "-o", dir, "-arch", "sparc"}, "amd64"},
		{[]string{"all", "-o", dir, "-root", dir}, "no services"},
		{[]string{"pack", "-o", out, "-t", "x:1"}, "SRC:DST"},
		{[]string{"pack", "-o", out, "-t", "x:1", file}, "SRC:DST"},
		{[]string{"pack", "-o", out, "-t", "x:1", file + ":f"}, "absolute"},
		{[]string{"pack", "-o", out, "-t", "x:1", file + ":/f:9"}, "octal"},
		{[]string{"pack", "-o", out, "-t", "x:1", file + ":/f", file + ":/f"}, "two files"},
		{[]string{"pack", "-o", out, "-t", "x:1", file + ":/f", file + ":/f/g"}, "not a folder"},
		{[]string{"pack", "-o", out, "-t", "x", file + ":/f"}, "no tag"},
		{[]string{"pack", "-o", out, "-t", "x:1", "-env", "A", file + ":/f"}, "K=V"},
		{[]string{"pack", "-o", out, "-t", "x:1", filepath.Join(dir, "none") + ":/f"}, "none"},
	} {
		err := run(t.Context(), c.args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("image %q: %v, want it to say %q", c.args, err, c.want)
		}
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive was written in spite of errors: %v", err)
	}
}
