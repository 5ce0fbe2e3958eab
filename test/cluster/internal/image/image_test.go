package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// read returns the archive's files and its layer's headers by name.
func read(t *testing.T, file string) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	walk := func(b []byte, f func(h *tar.Header, body []byte)) {
		for tr := tar.NewReader(bytes.NewReader(b)); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			f(h, body)
		}
	}
	files, layer := map[string][]byte{}, map[string]*tar.Header{}
	walk(raw, func(h *tar.Header, b []byte) { files[h.Name] = b })
	for name, b := range files {
		if filepath.Base(name) == "layer.tar" {
			walk(b, func(h *tar.Header, _ []byte) { layer[h.Name] = h })
		}
	}
	return files, layer
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "prog")
	if err := os.WriteFile(src, []byte("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	im := Image{Tag: "lab/prog:1", Entrypoint: []string{"/bin/prog"}, Files: []File{
		{Src: src, Dst: "/bin/prog", Mode: 0o755},
		{Dst: "/bin/p", Link: "prog"},
		{Dst: "/conf", Data: []byte("hello"), Mode: 0o644},
	}}
	a, b := filepath.Join(dir, "a.tar"), filepath.Join(dir, "b.tar")
	for _, out := range []string{a, b} {
		if err := Write(out, im); err != nil {
			t.Fatal(err)
		}
	}
	rawA, _ := os.ReadFile(a)
	rawB, _ := os.ReadFile(b)
	if !bytes.Equal(rawA, rawB) {
		t.Error("the same files gave different bytes")
	}
	files, layer := read(t, a)
	var m []manifest
	if err := json.Unmarshal(files["manifest.json"], &m); err != nil {
		t.Fatal(err)
	}
	if got, want := m[0].RepoTags, []string{"lab/prog:1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("tags: got %v, want %v", got, want)
	}
	var c config
	if err := json.Unmarshal(files[m[0].Config], &c); err != nil {
		t.Fatal(err)
	}
	if c.Config.User != "65532:65532" || len(c.Config.Env) != 1 {
		t.Errorf("config: got user %q and env %v", c.Config.User, c.Config.Env)
	}
	for name, mode := range map[string]int64{"bin/": 0o755, "bin/prog": 0o755, "bin/p": 0o777, "conf": 0o644, "tmp/": 0o1777} {
		if h := layer[name]; h == nil || h.Mode != mode {
			t.Errorf("%s: got %+v, want mode %o", name, h, mode)
		}
	}
	if h := layer["bin/p"]; h != nil && h.Linkname != "prog" {
		t.Errorf("link: got %q, want prog", h.Linkname)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "x.tar")
	for name, im := range map[string]Image{
		"no tag":       {Tag: "x"},
		"outside":      {Tag: "x:1", Files: []File{{Dst: "../x", Mode: 0o644}}},
		"missing file": {Tag: "x:1", Files: []File{{Src: "/nowhere/at/all", Dst: "/x"}}},
	} {
		if err := Write(out, im); err == nil {
			t.Errorf("%s: got no error", name)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: left a file", name)
		}
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a/skip"), 0o755),
		os.WriteFile(filepath.Join(dir, "a/f"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "a/skip/g"), nil, 0o600),
		os.Symlink("f", filepath.Join(dir, "a/l")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := Tree(dir, "/x", func(rel string) bool { return rel == "a/skip" })
	if err != nil {
		t.Fatal(err)
	}
	want := []File{
		{Dst: "/x/a", Mode: fs.ModeDir | 0o755},
		{Dst: "/x/a/f", Src: filepath.Join(dir, "a/f")},
		{Dst: "/x/a/l", Link: "f"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
