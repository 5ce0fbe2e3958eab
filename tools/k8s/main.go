// Command k8s renders kustomize overlays and checks the manifests, without a
// cluster: every field against Kubernetes' own types, every pod against its own
// restricted profile, and every name that one object has of another. It asks no
// network and changes nothing.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: k8s CONFIG.md OVERLAY...")
		os.Exit(2)
	}
	settings, err := settingsOf(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	failed := false
	for _, dir := range os.Args[2:] {
		docs, err := render(dir)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", dir, err)
			failed = true
			continue
		}
		faults := check(docs, settings)
		for _, f := range faults {
			fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(dir), f)
		}
		failed = failed || len(faults) > 0
		fmt.Printf("%s: %d objects, %d faults\n", filepath.Base(dir), len(docs), len(faults))
	}
	if failed {
		os.Exit(1)
	}
}

// render returns the overlay's objects as YAML.
func render(dir string) ([][]byte, error) {
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	var docs [][]byte
	for _, r := range all.Resources() {
		doc, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

// settingsOf are the variables that docs/config.md lists.
func settingsOf(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	names := regexp.MustCompile(`ANIMA_[A-Z0-9_]+`).FindAllString(string(data), -1)
	slices.Sort(names)
	return slices.Compact(names), nil
}
