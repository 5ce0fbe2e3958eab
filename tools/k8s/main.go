// Command k8s renders the kustomizations of deploy/k8s and checks the result without a
// cluster: every field by the types of Kubernetes, every pod by the restricted profile of
// Kubernetes, every name by which one object refers to another, and the rules of this
// repository. It must not use the network, and writes only to the given paths.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const usage = `usage:
  k8s check DOCS OVERLAY...      check overlays as they are; DOCS holds config.md and metrics.md
  k8s render K8S OUT             render every overlay of deploy/k8s to OUT/<overlay>.yaml, with made-up secrets and digests
  k8s pin OVERLAY <LINES         write the overlay's digests; lines of NAME REGISTRY/REPOSITORY[:TAG]@sha256:…
  k8s schemas SWAGGER OUT CRD... write JSON schemas of Kubernetes' kinds and of custom ones`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 3 && args[0] == "check":
		return checkAll(args[1], args[2:])
	case len(args) == 3 && args[0] == "render":
		return renderAll(args[1], args[2])
	case len(args) == 2 && args[0] == "pin":
		return pinImages(args[1], os.Stdin)
	case len(args) >= 3 && args[0] == "schemas":
		return writeSchemas(args[1], args[2], args[3:])
	}
	return errors.New(usage)
}

// checkAll checks overlays with the real files of their generators.
func checkAll(docs string, dirs []string) error {
	words, err := readVocabulary(docs)
	if err != nil {
		return err
	}
	failed := false
	for _, dir := range dirs {
		objects, err := render(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		s := whole
		if _, err := os.Stat(filepath.Join(dir, pinFile)); err == nil {
			s = prod
		}
		faults := check(objects, words, s)
		for _, f := range faults {
			fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(dir), f)
		}
		failed = failed || len(faults) > 0
		fmt.Printf("%s: %d objects, %d faults\n", filepath.Base(dir), len(objects), len(faults))
	}
	if failed {
		return errors.New("the manifests have faults")
	}
	return nil
}

// renderAll writes every rendered overlay to a file, for checkers that read files.
func renderAll(root, out string) error {
	files, err := load(root)
	if err != nil {
		return err
	}
	if err := complete(files); err != nil {
		return err
	}
	names, err := folders(files, "/overlays")
	if err != nil {
		return err
	}
	for _, name := range names {
		docs, err := render(files, filepath.Join("/overlays", name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var all []byte
		for _, doc := range docs {
			all = append(append(all, "---\n"...), doc...)
		}
		if err := os.WriteFile(filepath.Join(out, filepath.Base(name)+".yaml"), all, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pinImages writes an overlay's digests and renders it. An image without a digest in the
// input is an error, because every image of the overlay must have one.
func pinImages(dir string, in io.Reader) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	pins, err := parsePins(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, pinFile), writePins(pins), 0o644); err != nil {
		return err
	}
	docs, err := render(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return fmt.Errorf("the digests are written, but the overlay does not render yet: %w", err)
	}
	var errs []error
	for _, name := range imageNames(docs) {
		if !slices.ContainsFunc(pins, func(p pin) bool { return p.to == name }) {
			errs = append(errs, fmt.Errorf("%s has no digest: add a line for it", name))
		}
	}
	for _, image := range databaseImages(docs) {
		if tagOf(image) == "" {
			errs = append(errs, fmt.Errorf("%s has no tag, from which CloudNativePG reads the version of Postgres: add it to its line, before the digest", nameOf(image)))
		}
	}
	return errors.Join(errs...)
}

// digestForm matches the part of a reference after the @.
var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// vocabulary holds the names in the documentation. Manifests may use no other names.
type vocabulary struct {
	settings, metrics []string
	defaults          map[string]string // of settings
}

var (
	settingRow = regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)`(?: or `([A-Z0-9_]+)`)? \\|[^|]*\\| ?`?([^|`]*)`? ?\\|")
	metricRow  = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\w+)")
)

// readVocabulary reads config.md and metrics.md, which tests generate from the code.
func readVocabulary(docs string) (vocabulary, error) {
	v := vocabulary{defaults: map[string]string{}}
	config, err := os.ReadFile(filepath.Join(docs, "config.md"))
	if err != nil {
		return v, err
	}
	metrics, err := os.ReadFile(filepath.Join(docs, "metrics.md"))
	if err != nil {
		return v, err
	}
	for _, row := range settingRow.FindAllStringSubmatch(string(config), -1) {
		for _, name := range row[1:3] {
			if name != "" && v.defaults[name] == "" { // keep the first default: the later one is of the profile of `anima up`
				v.settings = append(v.settings, name)
				v.defaults[name] = row[3]
			}
		}
	}
	for _, row := range metricRow.FindAllStringSubmatch(string(metrics), -1) {
		v.metrics = append(v.metrics, row[1])
		if row[2] == "histogram" {
			v.metrics = append(v.metrics, row[1]+"_bucket", row[1]+"_sum", row[1]+"_count")
		}
	}
	if len(v.settings) == 0 || len(v.metrics) == 0 {
		return v, fmt.Errorf("%s: config.md and metrics.md have no rows that can be parsed", docs)
	}
	return v, nil
}
