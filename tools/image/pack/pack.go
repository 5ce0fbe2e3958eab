// Package pack builds container images from files: on an empty base image, with fixed
// times and owners, so that the same files give the same digest on every machine. It must
// not access a registry or a daemon, and pulls no images.
package pack

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Nobody is the default user and group id of images; distroless calls it nonroot.
const Nobody = 65532

// File is one entry of an image. Exactly one of Src, Data, Link and a folder's Mode
// determines its type.
type File struct {
	Dst  string      // absolute path in the image
	Src  string      // path of a regular file of this machine
	Data []byte      // content, if Src is empty
	Link string      // target of a symbolic link
	Mode fs.FileMode // permissions, with fs.ModeDir for a folder and fs.ModeSticky; 0 means 0755 for Src and for parent folders that are added, 0644 for Data
	UID  int         // owner and group; 0 is root
}

// Image describes an image to build. The zero value of a field omits it.
type Image struct {
	Layers     [][]File // each becomes a layer; later ones are above earlier ones
	Entrypoint []string
	Cmd        []string
	Env        []string // K=V; a default PATH is added if there is none
	User       string   // uid:gid; default 65532:65532
	Workdir    string   // default /
	Ports      []string // such as 8080/tcp
	Volumes    []string
	Labels     map[string]string
	Arch       string // default amd64
}

// Build returns the image. Its error names the file that cannot be packed.
func Build(im Image) (v1.Image, error) {
	conf := &v1.ConfigFile{
		Architecture: cmp.Or(im.Arch, "amd64"), OS: "linux", Created: v1.Time{Time: epoch()},
		Config: v1.Config{
			Entrypoint: im.Entrypoint, Cmd: im.Cmd, Env: im.Env, Labels: im.Labels,
			User: cmp.Or(im.User, fmt.Sprintf("%d:%d", Nobody, Nobody)), WorkingDir: cmp.Or(im.Workdir, "/"),
			ExposedPorts: set(im.Ports), Volumes: set(im.Volumes),
		},
	}
	if !slices.ContainsFunc(im.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		conf.Config.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, im.Env...)
	}
	for _, e := range im.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return nil, fmt.Errorf("environment %q: want K=V", e)
		}
	}
	img, err := mutate.ConfigFile(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), conf)
	if err != nil {
		return nil, err
	}
	for _, files := range im.Layers {
		data, err := layerTar(files)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: epoch()}, CreatedBy: "image"}})
		if err != nil {
			return nil, err
		}
	}
	return img, nil
}

// epoch returns the time of all files and fields of an image.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

func set(keys []string) map[string]struct{} {
	if len(keys) == 0 {
		return nil
	}
	m := map[string]struct{}{}
	for _, k := range keys {
		m[k] = struct{}{}
	}
	return m
}

// layerTar returns a tar archive of the files in the order of their names, with their
// parent folders. Two files of the same name are an error unless they are the same
// folder.
func layerTar(files []File) ([]byte, error) {
	all := map[string]File{}
	for _, f := range files {
		name := strings.TrimPrefix(path.Clean("/"+f.Dst), "/")
		if !strings.HasPrefix(f.Dst, "/") || name == "" {
			return nil, fmt.Errorf("%q is not an absolute path below /", f.Dst)
		}
		if old, ok := all[name]; ok && !(old.Mode.IsDir() && f.Mode.IsDir() && old.UID == f.UID) {
			return nil, fmt.Errorf("two files have the destination %s", f.Dst)
		}
		all[name] = f
	}
	for name := range all {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			parent, ok := all[dir]
			if !ok {
				all[dir] = File{Dst: "/" + dir, Mode: fs.ModeDir | 0o755}
			} else if !parent.Mode.IsDir() {
				return nil, fmt.Errorf("/%s is in /%s, which is not a folder", name, dir)
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := writeEntry(w, name, all[name]); err != nil {
			return nil, fmt.Errorf("/%s: %w", name, err)
		}
	}
	return buf.Bytes(), w.Close()
}

func writeEntry(w *tar.Writer, name string, f File) error {
	h := &tar.Header{Name: name, Uid: f.UID, Gid: f.UID, ModTime: epoch(), Format: tar.FormatPAX, Mode: int64(f.Mode.Perm())}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	data := f.Data
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.Src != "":
		st, err := os.Stat(f.Src)
		if err != nil {
			return err
		}
		if !st.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", f.Src)
		}
		if data, err = os.ReadFile(f.Src); err != nil {
			return err
		}
		h.Typeflag = tar.TypeReg
		if h.Mode == 0 {
			h.Mode = 0o755
		}
	default:
		h.Typeflag = tar.TypeReg
		if h.Mode == 0 {
			h.Mode = 0o644
		}
	}
	if h.Typeflag == tar.TypeReg {
		h.Size = int64(len(data))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := w.Write(data)
	return err
}

// Tree returns the entries for src, a file or a folder with all its content, at dst. If
// mode is not 0, it is the mode of files; otherwise modes are those of this machine
// without write permission for others. Symbolic links are kept. Any other type of file is
// an error.
func Tree(src, dst string, mode fs.FileMode, uid int) ([]File, error) {
	if !path.IsAbs(dst) {
		return nil, fmt.Errorf("%q is not an absolute path", dst)
	}
	var files []File
	err := filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if p == src && info.Mode()&fs.ModeSymlink != 0 { // a link that is named itself is followed
			if info, err = os.Stat(p); err != nil {
				return err
			}
			if info.IsDir() {
				return fmt.Errorf("%s is a link to a folder; name the folder", src)
			}
		}
		f := File{Dst: path.Join(dst, filepath.ToSlash(rel)), UID: uid, Mode: info.Mode().Perm() &^ 0o022}
		switch t := info.Mode().Type(); {
		case t == 0:
			f.Src = p
			if mode != 0 {
				f.Mode = mode
			}
		case t.IsDir():
			f.Mode |= fs.ModeDir
			if f.Dst == "/" {
				return nil
			}
		case t == fs.ModeSymlink:
			if f.Link, err = os.Readlink(p); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is neither a file, a folder nor a link", p)
		}
		files = append(files, f)
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("nothing to pack at " + src)
	}
	return files, err
}
