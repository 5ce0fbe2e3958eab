package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/anima-run/anima/tools/gobuild"
	"github.com/anima-run/anima/tools/image/pack"
	jaeger "github.com/anima-run/anima/tools/jaeger/build"
)

// registry is the prefix of the names of images that are built here. It is not a real
// registry: images are never pulled from it.
const registry = "k8slab.local/"

// Versions that cannot be read from a go.mod of this repository.
const (
	postgresVersion = "15"
	kedaVersion     = "2.21.0"
)

// recipe describes how to pack one image.
type recipe struct {
	name, version string
	group         string
	binary        string // name of the program, see programs
	at            string // its path in the image, and the entrypoint
	env           []string
	user          string
}

func (r recipe) tag() string { return registry + r.name + ":" + r.version }

// recipes returns the images of a group; "" means all groups.
func recipes(group string) []recipe {
	nats, err := natsVersion()
	if err != nil {
		nats = "unknown"
	}
	all := []recipe{
		{name: "pause", version: "1", group: "core", binary: "pause", at: "/pause"},
		{name: "coredns", version: "1.15.0", group: "addons", binary: "coredns", at: "/coredns"},
		{name: "metrics-server", version: "0.9.0", group: "addons", binary: "metrics-server", at: "/metrics-server"},
		{name: "nats", version: nats, group: "nats", binary: "nats-server", at: "/usr/local/bin/nats-server"},
		{
			name: "postgres", version: postgresVersion, group: "postgres", binary: "postgres-entry", at: "/usr/local/bin/docker-entrypoint.sh", user: "70:70",
			env: []string{"PATH=/usr/local/bin:" + pgHome + "/bin:/usr/bin:/bin", "PGDATA=/var/lib/postgresql/data", "LANG=C.UTF-8", "PG_MAJOR=" + postgresVersion},
		},
		{name: "jaeger", version: strings.TrimPrefix(jaeger.Release, "v"), group: "jaeger", at: "/usr/local/bin/jaeger"},
		{name: "keda", version: kedaVersion, group: "keda", binary: "keda", at: "/keda"},
		{name: "keda-metrics-apiserver", version: kedaVersion, group: "keda", binary: "keda-adapter", at: "/keda-adapter"},
		{name: "keda-admission-webhooks", version: kedaVersion, group: "keda", binary: "keda-admission-webhooks", at: "/keda-admission-webhooks"},
	}
	return slices.DeleteFunc(all, func(r recipe) bool { return group != "" && r.group != group })
}

// program returns the path of the image's main program, which may not be built yet.
func (r recipe) program() (string, error) {
	if r.group == "jaeger" {
		return jaeger.Path()
	}
	for _, p := range programs(r.group) {
		if p.name == r.binary {
			return p.path()
		}
	}
	return "", fmt.Errorf("image %s: there is no program %s", r.tag(), r.binary)
}

// archive returns the path of the image, whether it exists or not. The path contains a
// hash of everything that the image is built from.
func (r recipe) archive() (string, error) {
	bin, err := r.program()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, 2, r, bin) // 2 is the version of the images' format; raise it to pack all again
	if r.group == "postgres" {
		st, err := os.Stat(filepath.Join(pgHome, "bin", "postgres"))
		if err == nil {
			fmt.Fprintln(h, st.Size(), st.ModTime().UTC())
		}
	}
	return gobuild.Cache("images", fmt.Sprintf("%s_%s-%x.tar", r.name, r.version, h.Sum(nil)[:6]))
}

// build packs the image unless it exists, and reports whether it did.
func (r recipe) build(ctx context.Context) (bool, error) {
	if r.group == "postgres" {
		if _, err := os.Stat(filepath.Join(pgHome, "bin", "initdb")); err != nil {
			if err := packages(ctx, "postgresql-"+postgresVersion); err != nil {
				return false, err
			}
		}
	}
	bin, err := r.program()
	if err != nil {
		return false, err
	}
	out, err := r.archive()
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(out); err == nil {
		return false, nil
	}
	files := []pack.File{{Src: bin, Dst: r.at}, {Dst: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}}
	im := pack.Image{Entrypoint: []string{r.at}, Env: r.env, User: r.user, Arch: runtime.GOARCH}
	if r.group == "postgres" {
		im.Cmd = []string{"postgres"}
		more, err := postgresFiles(ctx)
		if err != nil {
			return false, err
		}
		files = append(files, more...)
	}
	im.Layers = [][]pack.File{files}
	img, err := pack.Build(im)
	if err != nil {
		return false, fmt.Errorf("image %s: %w", r.tag(), err)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return false, err
	}
	return true, pack.Archive(out, r.tag(), img)
}

// builtImages returns the images that exist, by tag. The images of KEDA are large and
// included only if keda is true.
func builtImages(keda bool) map[string]string {
	out := map[string]string{}
	for _, r := range recipes("") {
		if r.group == "keda" && !keda {
			continue
		}
		if file, err := r.archive(); err == nil {
			if _, err := os.Stat(file); err == nil {
				out[r.tag()] = file
			}
		}
	}
	return out
}

// pgHome is the folder of Debian's PostgreSQL.
const pgHome = "/usr/lib/postgresql/" + postgresVersion

// postgresFiles returns the files of Debian's PostgreSQL, its shared libraries, and the
// programs that scripts in /docker-entrypoint-initdb.d may use: a shell and common
// commands.
func postgresFiles(ctx context.Context) ([]pack.File, error) {
	var files []pack.File
	for _, from := range []struct{ dir, without string }{
		{pgHome, "lib/bitcode|lib/llvmjit"}, // the just-in-time compiler adds 110 MB and is optional
		{"/usr/share/postgresql/" + postgresVersion, "man"},
		{"/usr/share/zoneinfo", "right|posix"},
		{"/usr/lib/locale/C.utf8", ""},
	} {
		more, err := pack.Tree(from.dir, from.dir, 0, 0)
		if err != nil {
			return nil, fmt.Errorf("postgres needs %s: %w", from.dir, err)
		}
		files = append(files, slices.DeleteFunc(more, func(f pack.File) bool {
			return from.without != "" && slices.ContainsFunc(strings.Split(from.without, "|"), func(w string) bool {
				return strings.HasPrefix(f.Dst, from.dir+"/"+w)
			})
		})...)
	}
	tools := strings.Fields("/bin/bash /bin/sh basename cat chmod cp cut date dirname env false grep head id ls mkdir mktemp mv printf rm sed sleep sort tail test touch tr true wc")
	linked := []string{}
	for _, t := range tools {
		src := t
		if !strings.HasPrefix(t, "/") {
			var err error
			if src, err = exec.LookPath(t); err != nil {
				return nil, err
			}
		}
		real, err := filepath.EvalSymlinks(src)
		if err != nil {
			return nil, err
		}
		dst := "/usr/bin/" + filepath.Base(t)
		files = append(files, pack.File{Src: real, Dst: dst, Mode: 0o755})
		if strings.HasPrefix(t, "/bin/") {
			files = append(files, pack.File{Src: real, Dst: t, Mode: 0o755})
		}
		linked = append(linked, real)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Src, pgHome+"/bin/") || strings.HasSuffix(f.Src, ".so") {
			linked = append(linked, f.Src)
		}
	}
	libs, err := libraries(ctx, linked)
	if err != nil {
		return nil, err
	}
	for _, lib := range libs {
		if slices.ContainsFunc(files, func(f pack.File) bool { return f.Dst == lib }) {
			continue // in PostgreSQL's own folder
		}
		real, err := filepath.EvalSymlinks(lib)
		if err != nil {
			return nil, err
		}
		files = append(files, pack.File{Src: real, Dst: lib, Mode: 0o755})
	}
	// initdb requires a user name for its uid, so every uid that manifests use has one.
	passwd := "root:x:0:0::/root:/bin/sh\npostgres:x:70:70::/var/lib/postgresql:/bin/sh\npostgres999:x:999:999::/var/lib/postgresql:/bin/sh\nnonroot:x:65532:65532::/var/lib/postgresql:/bin/sh\n"
	group := "root:x:0:\npostgres:x:70:\npostgres999:x:999:\nnonroot:x:65532:\n"
	return append(files,
		pack.File{Dst: "/etc/passwd", Data: []byte(passwd), Mode: 0o644},
		pack.File{Dst: "/etc/group", Data: []byte(group), Mode: 0o644},
		pack.File{Dst: "/etc/nsswitch.conf", Data: []byte("hosts: files dns\n"), Mode: 0o644},
		pack.File{Dst: "/docker-entrypoint-initdb.d", Mode: fs.ModeDir | 0o755},
		pack.File{Dst: "/var/lib/postgresql/data", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		pack.File{Dst: "/var/run/postgresql", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	), nil
}

var lddLine = regexp.MustCompile(`(?:=> )?(/\S+) \(0x`)

// libraries returns the shared libraries of programs, as the loader resolves them.
func libraries(ctx context.Context, programs []string) ([]string, error) {
	found := map[string]bool{}
	out, err := exec.CommandContext(ctx, "ldd", programs...).Output()
	// ldd fails if one file is not dynamic; its output for the other files is valid.
	for _, m := range lddLine.FindAllSubmatch(out, -1) {
		found[string(m[1])] = true
	}
	// This library is loaded at run time for lookups of users and groups.
	for _, p := range []string{"/lib/x86_64-linux-gnu/libnss_files.so.2", "/lib/aarch64-linux-gnu/libnss_files.so.2"} {
		if _, err := os.Stat(p); err == nil {
			found[p] = true
		}
	}
	if len(found) < 5 {
		return nil, fmt.Errorf("ldd found no libraries of PostgreSQL: %w", err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}
