// Package image packs files into a container image archive (docker-archive, one
// layer, nothing below it). The same files give the same bytes. It knows no
// registry and no daemon.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image is what to pack.
type Image struct {
	Tag        string   // NAME:TAG
	Entrypoint []string // the program and its first arguments
	Cmd        []string // arguments that a pod's args replace
	Env        []string // K=V; PATH has a usual value when it is missing
	User       string   // uid:gid; empty is 65532:65532
	Files      []File   // what it holds; /tmp is always there
}

// File is one entry of an image.
type File struct {
	Src  string      // file on this machine; empty for Data, Link and folders
	Dst  string      // absolute path in the image
	Mode fs.FileMode // permissions, with fs.ModeDir for a folder, and fs.ModeSticky; 0 keeps those of Src
	Link string      // target, for a symbolic link
	Data []byte      // content, where there is no Src
}

// Write packs the image to the file out, which is replaced whole.
func Write(out string, im Image) error {
	if !strings.Contains(im.Tag, ":") {
		return fmt.Errorf("image %q has no tag; write NAME:TAG", im.Tag)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	layer, err := os.CreateTemp(filepath.Dir(out), ".layer-*")
	if err != nil {
		return err
	}
	defer func() { _ = layer.Close(); _ = os.Remove(layer.Name()) }()
	sum := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, sum), im.Files); err != nil {
		return fmt.Errorf("image %s: %w", im.Tag, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(out), ".image-*")
	if err != nil {
		return err
	}
	defer func() { _ = tmp.Close(); _ = os.Remove(tmp.Name()) }()
	if err := writeArchive(tmp, im, layer, hex.EncodeToString(sum.Sum(nil))); err != nil {
		return fmt.Errorf("image %s: %w", im.Tag, err)
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), out)
}

// The fields of an image's configuration, as the OCI image specification has them.
type (
	config struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Config       struct {
			User       string
			Env        []string
			Entrypoint []string `json:",omitempty"`
			Cmd        []string `json:",omitempty"`
			WorkingDir string
		} `json:"config"`
		RootFS struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
)

func writeArchive(w io.Writer, im Image, layer *os.File, diff string) error {
	var c config
	c.Created, c.Architecture, c.OS = time.Unix(0, 0).UTC(), runtime.GOARCH, "linux"
	c.Config.User, c.Config.Entrypoint, c.Config.Cmd, c.Config.WorkingDir = im.User, im.Entrypoint, im.Cmd, "/"
	if c.Config.User == "" {
		c.Config.User = "65532:65532"
	}
	c.Config.Env = im.Env
	if !slices.ContainsFunc(im.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		c.Config.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, im.Env...)
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + diff}
	conf, err := json.Marshal(c)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%x.json", sha256.Sum256(conf))
	man, err := json.Marshal([]manifest{{Config: name, RepoTags: []string{im.Tag}, Layers: []string{diff + "/layer.tar"}}})
	if err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for _, p := range []struct {
		name string
		size int64
		r    io.Reader
	}{
		{name, int64(len(conf)), bytes.NewReader(conf)},
		{diff + "/layer.tar", size, layer},
		{"manifest.json", int64(len(man)), bytes.NewReader(man)},
	} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p.name, Mode: 0o644, Size: p.size, ModTime: c.Created}); err != nil {
			return err
		}
		if _, err := io.Copy(tw, p.r); err != nil {
			return err
		}
	}
	return tw.Close()
}

// writeLayer writes the files in the order of their names, with the folders they need.
func writeLayer(w io.Writer, files []File) error {
	all := map[string]File{"tmp": {Mode: fs.ModeDir | fs.ModeSticky | 0o777}}
	for _, f := range files {
		name := strings.Trim(path.Clean(f.Dst), "/")
		if name == "" || name == "." || strings.HasPrefix(name, "..") {
			return fmt.Errorf("%q is no path in an image", f.Dst)
		}
		all[name] = f
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	for _, name := range names {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if _, ok := all[d]; !ok {
				all[d] = File{Mode: fs.ModeDir | 0o755}
			}
		}
	}
	names = names[:0]
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	tw := tar.NewWriter(w)
	for _, name := range names {
		if err := writeFile(tw, name, all[name]); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeFile(tw *tar.Writer, name string, f File) error {
	h := &tar.Header{Name: name, ModTime: time.Unix(0, 0), Format: tar.FormatPAX, Mode: int64(f.Mode.Perm())}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		return tw.WriteHeader(h)
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return tw.WriteHeader(h)
	}
	h.Typeflag = tar.TypeReg
	var r io.Reader = bytes.NewReader(f.Data)
	h.Size = int64(len(f.Data))
	if f.Src != "" {
		src, err := os.Open(f.Src)
		if err != nil {
			return err
		}
		defer func() { _ = src.Close() }()
		st, err := src.Stat()
		if err != nil {
			return err
		}
		r, h.Size = src, st.Size()
		if h.Mode == 0 {
			h.Mode = int64(st.Mode().Perm())
		}
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(tw, r)
	return err
}

// Tree lists everything below the folder src for dst: folders, files and links.
// Files that skip (a path relative to src) says yes to are left out; nil keeps all.
func Tree(src, dst string, skip func(rel string) bool) ([]File, error) {
	var out []File
	err := filepath.WalkDir(src, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil || rel == "." {
			return err
		}
		if skip != nil && skip(rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		f := File{Dst: path.Join(dst, filepath.ToSlash(rel))}
		switch {
		case e.IsDir():
			f.Mode = fs.ModeDir | 0o755
		case e.Type()&fs.ModeSymlink != 0:
			if f.Link, err = os.Readlink(p); err != nil {
				return err
			}
		case e.Type().IsRegular():
			f.Src = p
		default:
			return nil
		}
		out = append(out, f)
		return nil
	})
	return out, err
}
