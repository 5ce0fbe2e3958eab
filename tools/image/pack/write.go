package pack

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Sizes are the sizes of an image in bytes.
type Sizes struct {
	Compressed   int64 `json:"compressed"`   // size that is transferred
	Uncompressed int64 `json:"uncompressed"` // size on the disk of a node
}

// Measure returns the sums of the sizes of the layers.
func Measure(img v1.Image) (Sizes, error) {
	var s Sizes
	layers, err := img.Layers()
	if err != nil {
		return s, err
	}
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			return s, err
		}
		s.Compressed += n
		r, err := l.Uncompressed()
		if err != nil {
			return s, err
		}
		n, err = io.Copy(io.Discard, r)
		if err != nil {
			return s, err
		}
		if err := r.Close(); err != nil {
			return s, err
		}
		s.Uncompressed += n
	}
	return s, nil
}

// Layout writes the image as an OCI layout into dir, replacing the folder.
func Layout(dir, tag string, img v1.Image) error {
	short, full, err := names(tag)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// OCI tools use the first annotation, containerd the second.
	return at.AppendImage(img, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": short, "io.containerd.image.name": full,
	}))
}

// names returns the tag alone, and the full name in the form of containerd.
func names(tag string) (short, full string, err error) {
	ref, err := name.NewTag(tag, name.WeakValidation)
	if err != nil {
		return "", "", fmt.Errorf("image name: %w; write NAME:TAG", err)
	}
	if !strings.HasSuffix(tag, ":"+ref.TagStr()) {
		return "", "", fmt.Errorf("image %q has no tag; write NAME:TAG", tag)
	}
	registry := ref.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return ref.TagStr(), registry + "/" + ref.RepositoryStr() + ":" + ref.TagStr(), nil
}

// Archive writes the image into one tar file that is both an OCI layout and an archive in
// the form of docker save. containerd and docker can import it; with containerd the
// digest is preserved. The file is replaced atomically.
func Archive(file, tag string, img v1.Image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it was read into the archive
	if err := Layout(filepath.Join(dir, "oci"), tag, img); err != nil {
		return err
	}
	man, err := dockerManifest(tag, img)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci", "manifest.json"), man, 0o644); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // renamed if there was no error
	if err := tarFolder(tmp, filepath.Join(dir, "oci")); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// dockerManifest returns the manifest.json that docker load reads.
func dockerManifest(tag string, img v1.Image) ([]byte, error) {
	conf, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	entry := struct {
		Config   string   `json:"Config"`
		RepoTags []string `json:"RepoTags"`
		Layers   []string `json:"Layers"`
	}{Config: "blobs/sha256/" + conf.Hex, RepoTags: []string{tag}}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			return nil, err
		}
		entry.Layers = append(entry.Layers, "blobs/sha256/"+d.Hex)
	}
	return json.Marshal([]any{entry})
}

// tarFolder writes the files of a folder as tar, each folder in the order of the names.
func tarFolder(out io.Writer, dir string) error {
	root := os.DirFS(dir)
	w := tar.NewWriter(out)
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: int64(len(data)), ModTime: epoch(), Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close())
}
