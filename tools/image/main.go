// Command image builds container images without a registry, a daemon or root: those of
// the services, with the settings of deploy/Dockerfile, and images of arbitrary files.
// The same sources and the same version of Go give the same digest. It must not push
// images; releases are built with ko or docker (.ko.yaml, deploy/Dockerfile).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/anima-run/anima/tools/image/pack"
)

const usage = `usage: image build -service NAME [flags] -o DIR    one service: NAME.tar, the OCI layout NAME/ and NAME.spdx.json
       image all [flags] -o DIR                    every service and anima, with a table
       image pack -t NAME:TAG -entrypoint /x [flags] -o FILE.tar SRC:DST[:MODE]...
                                                   any other files or trees

The tar is for ctr images import and docker load. Flags of each: image COMMAND -h.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		args = []string{""}
	}
	switch args[0] {
	case "build":
		return runBuild(ctx, args[1:], out)
	case "all":
		return runAll(ctx, args[1:], out)
	case "pack":
		return runPack(args[1:], out)
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("there is no command %q", args[0])
	}
}

// target holds the flags that the commands build and all share.
type target struct {
	release
	dir, output string
}

func (t *target) flags(f *flag.FlagSet) {
	f.StringVar(&t.root, "root", "", "the repository; default is the one around this folder")
	f.StringVar(&t.version, "version", "0.0.0-dev", "`version` that the programs print")
	f.StringVar(&t.commit, "commit", "", "commit `hash` of the programs")
	f.StringVar(&t.arch, "arch", defaultArch(), strings.Join(architectures(), " or "))
	f.StringVar(&t.busybox, "busybox", "", "a static busybox `file` for loop and anima; default is Debian's")
	f.StringVar(&t.dir, "o", "", "folder to write to")
	f.StringVar(&t.output, "output", "text", "text or json")
}

func (t *target) parse(f *flag.FlagSet, args []string) (err error) {
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected %q", f.Args())
	case t.dir == "":
		return errors.New("no output folder: give -o DIR")
	case t.output != "text" && t.output != "json":
		return fmt.Errorf("output %q: want text or json", t.output)
	case t.arch != "amd64" && t.arch != "arm64":
		return fmt.Errorf("arch %q: want one of %v", t.arch, architectures())
	}
	if t.root == "" {
		t.root, err = findRoot(".")
	}
	return err
}

func runBuild(ctx context.Context, args []string, out io.Writer) error {
	var t target
	var service, name string
	f := flag.NewFlagSet("build", flag.ContinueOnError)
	t.flags(f)
	f.StringVar(&service, "service", "", "service to build; anima is all of them in one")
	f.StringVar(&name, "name", "", "NAME:TAG of the image; default anima/SERVICE:VERSION")
	t.prefix = everything
	if err := t.parse(f, args); err != nil {
		return err
	}
	if service == "" {
		all, err := services(t.root)
		return errors.Join(err, fmt.Errorf("no service is named: give -service, one of %v", all))
	}
	b, err := t.build(ctx, service, name, t.dir)
	if err != nil {
		return err
	}
	return show(out, t.output, []built{b})
}

func runAll(ctx context.Context, args []string, out io.Writer) error {
	var t target
	f := flag.NewFlagSet("all", flag.ContinueOnError)
	t.flags(f)
	f.StringVar(&t.prefix, "prefix", everything, "first `part` of the images' names")
	f.StringVar(&t.tag, "tag", "", "tag of the images; default is the version")
	if err := t.parse(f, args); err != nil {
		return err
	}
	names, err := services(t.root)
	if err != nil {
		return err
	}
	var all []built
	for _, s := range names {
		b, err := t.build(ctx, s, "", t.dir)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	return show(out, t.output, all)
}

func show(out io.Writer, how string, all []built) error {
	if how == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(all)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tCOMPRESSED\tON A NODE\tIMAGE\tDIGEST")
	for _, b := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", b.Service, mib(b.Sizes.Compressed), mib(b.Sizes.Uncompressed), b.Tag, b.Digest)
	}
	return w.Flush()
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func runPack(args []string, out io.Writer) error {
	f := flag.NewFlagSet("pack", flag.ContinueOnError)
	var im pack.Image
	var env, entry, cmd, dirs list
	tag := f.String("t", "", "`NAME:TAG` of the image")
	file := f.String("o", "", "`file` to write, a tar")
	oci := f.String("oci", "", "also write an OCI layout to this `folder`")
	uid := f.Int("uid", 0, "owner of the files")
	ca := f.Bool("ca", false, "add the certificate authorities")
	f.Var(&entry, "entrypoint", "the program, and again for each argument")
	f.Var(&cmd, "cmd", "default argument, which the user of the image may replace; again for each")
	f.Var(&env, "env", "`K=V`; may be given again")
	f.Var(&dirs, "dir", "`DST[:MODE[:UID]]` of an empty folder; may be given again")
	f.StringVar(&im.User, "user", "", "uid:gid to run as; default 65532:65532")
	f.StringVar(&im.Workdir, "workdir", "", "folder to run in; default /")
	f.StringVar(&im.Arch, "arch", defaultArch(), "architecture of the files")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *tag == "" || *file == "" || f.NArg() == 0 {
		return errors.New("give -t NAME:TAG, -o FILE.tar and the files to pack: SRC:DST[:MODE]")
	}
	var files []pack.File
	for _, a := range f.Args() {
		more, err := parseSource(a, *uid)
		if err != nil {
			return err
		}
		files = append(files, more...)
	}
	for _, a := range dirs {
		d, err := parseDir(a)
		if err != nil {
			return err
		}
		files = append(files, d)
	}
	if *ca {
		certs, err := authorities()
		if err != nil {
			return err
		}
		files = append(files, pack.File{Dst: "/etc/ssl/certs/ca-certificates.crt", Data: certs})
	}
	im.Layers, im.Entrypoint, im.Cmd, im.Env = [][]pack.File{files}, entry, cmd, env
	img, err := pack.Build(im)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*file), 0o755); err != nil {
		return err
	}
	if err := pack.Archive(*file, *tag, img); err != nil {
		return err
	}
	if *oci != "" {
		if err := pack.Layout(*oci, *tag, img); err != nil {
			return err
		}
	}
	d, err := img.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s %s\n", *tag, d)
	return err
}

// parseSource parses SRC:DST[:MODE], where SRC is a file or a folder.
func parseSource(arg string, uid int) ([]pack.File, error) {
	p := strings.Split(arg, ":")
	if len(p) < 2 || len(p) > 3 || p[0] == "" {
		return nil, fmt.Errorf("%q: want SRC:DST or SRC:DST:MODE", arg)
	}
	var mode fs.FileMode
	if len(p) == 3 {
		m, err := parseMode(p[2])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		mode = m
	}
	return pack.Tree(p[0], p[1], mode, uid)
}

// parseDir parses DST[:MODE[:UID]].
func parseDir(arg string) (pack.File, error) {
	p := strings.Split(arg, ":")
	f := pack.File{Dst: p[0], Mode: fs.ModeDir | 0o755}
	if len(p) > 3 {
		return f, fmt.Errorf("%q: want DST[:MODE[:UID]]", arg)
	}
	if len(p) > 1 {
		m, err := parseMode(p[1])
		if err != nil {
			return f, fmt.Errorf("%q: %w", arg, err)
		}
		f.Mode = fs.ModeDir | m
	}
	if len(p) > 2 {
		uid, err := strconv.Atoi(p[2])
		if err != nil || uid < 0 {
			return f, fmt.Errorf("%q: the owner is not a number", arg)
		}
		f.UID = uid
	}
	return f, nil
}

func parseMode(s string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(s, 8, 16)
	if err != nil || n > 0o1777 {
		return 0, fmt.Errorf("mode %q: want octal digits, such as 0755", s)
	}
	m := fs.FileMode(n & 0o777)
	if n&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m, nil
}
