package main

import (
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/anima-run/anima/tools/jaeger/build"
)

func TestEverySettingOfTheConfigurationIsGiven(t *testing.T) {
	t.Parallel()
	var o options
	if err := o.flags("run").Parse([]string{"-dir", "traces", "-sampling"}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := o.print(&out); err != nil {
		t.Fatal(err)
	}
	given := map[string]bool{}
	for _, e := range o.env() {
		k, v, _ := strings.Cut(e, "=")
		given[k] = v != ""
	}
	used := regexp.MustCompile(`\$\{env:(\w+)\}`).FindAllStringSubmatch(out.String(), -1)
	if len(used) < len(given) {
		t.Errorf("%d uses of %d settings", len(used), len(given))
	}
	for _, m := range used {
		if !given[m[1]] {
			t.Errorf("%s is used and not given", m[1])
		}
	}
	for _, want := range []string{"badger", "tail_sampling"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the configuration has no %s", want)
		}
	}
}

func TestLayersAreAskedFor(t *testing.T) {
	t.Parallel()
	var o options
	if err := o.flags("run").Parse(nil); err != nil {
		t.Fatal(err)
	}
	if l := o.layers(); len(l) != 1 || o.host != "127.0.0.1" {
		t.Errorf("%d layers on %s, want one, on loopback", len(l), o.host)
	}
}

func TestPortThatIsTakenIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	o := options{host: "127.0.0.1", ports: ports{query: l.Addr().(*net.TCPAddr).Port}}
	if err := o.free(); err == nil || !strings.Contains(err.Error(), "-query") {
		t.Errorf("%v, want it to name -query", err)
	}
}

func TestBuildIsTakenFromTheCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("ANIMA_CACHE", cache)
	bin, err := build.Path()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(bin, filepath.Join(cache, "jaeger")) {
		t.Errorf("it would be %s, want it in %s", bin, cache)
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, []byte("there"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "bin", "jaeger")
	for range 2 { // the second time the link exists
		if got, err := build.Build(context.Background(), link); err != nil || got != bin {
			t.Fatalf("build: %s, %v, want %s", got, err, bin)
		}
	}
	if data, err := os.ReadFile(link); err != nil || string(data) != "there" {
		t.Errorf("the link leads to %q, %v", data, err)
	}
}

func TestWrongUseIsSaid(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"fly"}, {"run", "now"}} {
		if err := run(t.Context(), args); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("jaeger %q: %v, want an error", args, err)
		}
	}
}
