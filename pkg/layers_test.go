// Package pkg_test checks which packages of this module a package imports.
package pkg_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestLayers checks that a package imports only packages of lower layers and, for some
// packages, earlier ones of its own layer.
func TestLayers(t *testing.T) {
	t.Parallel()
	order := []string{
		"api", "spelling", "wait", "safehttp", // 0: the contracts, similar words, pauses, and requests to the internet
		"config", "disk", "telemetry", "failpoint", "sqldb", "embednats", // 1: one technology each
		"bus", "outbox", "cursor", "lease", // 2: messaging
		"host", "executor", // 3: execution of services and of tools
		"apptest", // 4: test support for services
	}
	layer := map[string]int{"api": 0, "spelling": 0, "wait": 0, "safehttp": 0, "config": 1, "disk": 1, "telemetry": 1, "sqldb": 1, "embednats": 1, "failpoint": 1, "bus": 2, "outbox": 2, "cursor": 2, "lease": 2, "host": 3, "executor": 3, "apptest": 4}
	place := map[string]int{}
	for i, name := range order {
		place[name] = i
	}
	const module = "github.com/anima-run/anima/pkg/"
	found := 0
	for _, name := range order {
		files, err := filepath.Glob(filepath.Join(name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				path, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				other, ok := strings.CutPrefix(path, module)
				if !ok {
					continue
				}
				found++
				other, _, _ = strings.Cut(other, "/")
				allowed := other == name || layer[other] < layer[name] || layer[other] == layer[name] && place[other] < place[name] && (name == "outbox" || name == "cursor" || name == "lease" || name == "sqldb" || name == "embednats")
				if !allowed {
					t.Errorf("%s imports %s: layer %d may not know layer %d", file, other, layer[name], layer[other])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no import was looked at")
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, known := layer[e.Name()]; e.IsDir() && !known {
			t.Errorf("package %s has no layer: add it to the map and to the house of the architecture page", e.Name())
		}
	}
}
