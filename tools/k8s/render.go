package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// render returns the objects of a kustomization as YAML.
func render(files filesys.FileSystem, dir string) ([][]byte, error) {
	return renderAs(files, dir, (*resource.Resource).AsYAML)
}

// renderAs returns the objects in another encoding, such as JSON, which is decoded much
// faster than YAML.
func renderAs(files filesys.FileSystem, dir string, encode func(*resource.Resource) ([]byte, error)) ([][]byte, error) {
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if err != nil {
		return nil, err
	}
	var docs [][]byte
	for _, r := range all.Resources() {
		doc, err := encode(r)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

// load copies a folder into memory, where [complete] may add files. It omits hidden
// folders and the folders of secrets that git ignores.
func load(root string) (filesys.FileSystem, error) {
	files := filesys.MakeFsInMemory()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "secrets" {
				return fs.SkipDir
			}
			return nil
		}
		if rel == filepath.Join("overlays", "prod", pinFile) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return files.WriteFile("/"+filepath.ToSlash(rel), data)
	})
	return files, err
}

// complete writes placeholders for the files that a clone does not have: the inputs of
// generators that git ignores, and the digests of an overlay that needs them. The
// rendered objects must be used for checks only.
func complete(files filesys.FileSystem) error {
	var paths []string
	err := files.Walk("/", func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && filepath.Base(path) == "kustomization.yaml" {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range paths {
		data, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		var k types.Kustomization
		if err := yaml.Unmarshal(data, &k); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		var sources []string
		for _, g := range k.SecretGenerator {
			sources = append(sources, slices.Concat(g.FileSources, g.EnvSources)...)
		}
		for _, g := range k.ConfigMapGenerator {
			sources = append(sources, slices.Concat(g.FileSources, g.EnvSources)...)
		}
		for _, s := range sources {
			if _, file, ok := strings.Cut(s, "="); ok {
				s = file
			}
			if s = filepath.Join(filepath.Dir(path), s); !files.Exists(s) {
				if err := files.WriteFile(s, []byte("made=up\n")); err != nil {
					return err
				}
			}
		}
		if slices.Contains(k.Transformers, pinFile) {
			if err := pinAnything(files, filepath.Dir(path)); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

// pinAnything gives every image of an overlay a placeholder digest.
func pinAnything(files filesys.FileSystem, dir string) error {
	if err := files.WriteFile(filepath.Join(dir, pinFile), nil); err != nil {
		return err
	}
	docs, err := render(files, dir)
	if err != nil {
		return err
	}
	var pins []pin
	for _, name := range imageNames(docs) {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name)))
		to := "docker.io/" + name
		if own, ok := strings.CutPrefix(name, "anima/"); ok {
			to = "ghcr.io/anima-run/" + own
		} else if !strings.Contains(name, "/") {
			to = "docker.io/library/" + name
		} else if strings.Contains(strings.Split(name, "/")[0], ".") {
			to = name
		}
		pins = append(pins, pin{name, to, "1.0", digest})
	}
	return files.WriteFile(filepath.Join(dir, pinFile), writePins(pins))
}

// pinFile is the name of the file with an overlay's digests.
const pinFile = "images.yaml"

// pin holds the repository, the tag, which may be empty, and the digest of an image.
type pin struct{ name, to, tag, digest string }

// parsePins parses lines with a name in the manifests and a reference with a digest. The
// tag of a reference has no effect beside the digest, but CloudNativePG reads the version of
// Postgres from it.
func parsePins(text string) ([]pin, error) {
	var pins []pin
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, ref, _ := strings.Cut(line, " ")
		to, digest, ok := strings.Cut(strings.TrimSpace(ref), "@")
		if !ok || !digestForm.MatchString(digest) || name == "" || to == "" {
			return nil, fmt.Errorf("line %d is %q: want NAME REGISTRY/REPOSITORY@sha256:<64 hex digits>", i+1, line)
		}
		pins = append(pins, pin{name, nameOf(to), tagOf(to), digest})
	}
	if len(pins) == 0 {
		return nil, errors.New("no image is named: want lines of NAME REGISTRY/REPOSITORY@sha256:<64 hex digits>")
	}
	return pins, nil
}

// writePins returns kustomize transformers, one for each image. They change the images of
// containers and the one field of a custom object that names an image. The last
// transformer names the migration Job by a hash of our images: a Job is immutable, so
// each release has its own.
func writePins(pins []pin) []byte {
	var b strings.Builder
	release := sha256.New()
	b.WriteString("# Written by `tools/k8s.sh pin`.\n")
	for _, p := range pins {
		fmt.Fprintf(&b, `---
apiVersion: builtin
kind: ImageTagTransformer
metadata: {name: %q}
imageTag: {name: %q, newName: %q, newTag: %q, digest: %q}
fieldSpecs: [{path: spec/imageName, kind: Cluster}]
`, strings.ReplaceAll(p.name, "/", "-"), p.name, p.to, p.tag, p.digest)
		if strings.HasPrefix(p.name, "anima/") {
			fmt.Fprintln(release, p.digest)
		}
	}
	fmt.Fprintf(&b, `---
apiVersion: builtin
kind: PatchTransformer
metadata: {name: migrate}
target: {kind: Job, name: migrate.*}
patch: '[{"op": "replace", "path": "/metadata/name", "value": "migrate-%x"}]'
`, release.Sum(nil)[:5])
	return []byte(b.String())
}

// imageNames returns the names of the images in the objects, without tags and digests,
// sorted.
func imageNames(docs [][]byte) []string {
	var names []string
	for _, doc := range docs {
		var v map[string]any
		if yaml.Unmarshal(doc, &v) == nil && v["kind"] != "ConfigMap" {
			eachImage(v["spec"], func(image string) { names = append(names, nameOf(image)) })
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// eachImage calls f with every image in a decoded YAML value.
func eachImage(v any, f func(string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if image, ok := value.(string); ok && (key == "image" || key == "imageName") {
				f(image)
			}
			eachImage(value, f)
		}
	case []any:
		for _, value := range v {
			eachImage(value, f)
		}
	}
}

// databaseImages returns the images of the Clusters of CloudNativePG in the objects.
func databaseImages(docs [][]byte) (images []string) {
	for _, doc := range docs {
		var v struct {
			Kind string
			Spec struct{ ImageName string }
		}
		if yaml.Unmarshal(doc, &v) == nil && v.Kind == "Cluster" {
			images = append(images, v.Spec.ImageName)
		}
	}
	return images
}

// tagOf returns an image's tag, "" if it has none.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	return strings.TrimPrefix(strings.TrimPrefix(image, nameOf(image)), ":")
}

// nameOf returns an image's name without tag and digest.
func nameOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return name
}

// folders returns the paths of the kustomizations below a folder, relative to it, sorted.
func folders(files filesys.FileSystem, dir string) ([]string, error) {
	var found []string
	err := files.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && filepath.Base(path) == "kustomization.yaml" {
			rel, err := filepath.Rel(dir, filepath.Dir(path))
			if err != nil {
				return err
			}
			found = append(found, rel)
		}
		return err
	})
	slices.Sort(found)
	return found, err
}
