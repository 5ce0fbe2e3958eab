package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"text/template"
	"time"
)

func TestCommandsThatAreWrong(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"no command":      {},
		"unknown command": {"start"},
		"cannot build":    {"build", "core", "linux"},
		"number from 1":   {"node-agent", "10"},
		"is keda":         {"addon", "istio"},
		"not defined":     {"addon", "keda", "-fast"},
		"path NAME":       {"path"},
		"no program":      {"path", "nothing"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", args, err, want)
		}
	}
}

func TestNodeNumber(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]int{"1": 1, "node9": 9, "node0": 0, "10": 0, "node": 0, "worker1": 0} {
		if got, err := nodeNumber([]string{arg}); got != want || (err == nil) != (want > 0) {
			t.Errorf("%s: got %d, %v, want %d", arg, got, err, want)
		}
	}
}

// TestUnbuiltAddon checks that an addon that would have to be built is not run.
func TestUnbuiltAddon(t *testing.T) {
	t.Setenv("ANIMA_CACHE", t.TempDir())
	var no notRun
	if err := run(t.Context(), []string{"addon", "keda", "-built"}); !errors.As(err, &no) {
		t.Errorf("got %v, want notRun", err)
	}
}

func TestServeOutside(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0") // reserves a port
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveOutside(ctx, addr) }()
	err = poll(ctx, time.Millisecond, func() error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("after the end of the context: got %v", err)
	}
}

func TestNotRunIsToldApart(t *testing.T) {
	t.Parallel()
	var no notRun
	if err := error(notRun("no root")); !errors.As(err, &no) || err.Error() != "no root" {
		t.Errorf("got %v", err)
	}
}

func TestAddonsRender(t *testing.T) {
	t.Parallel()
	tpl, err := template.ParseFS(addons, "addons/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{dir: "/state"}
	for nodes, replicas := range map[int]string{1: "replicas: 1", 3: "replicas: 2"} {
		var all bytes.Buffer
		for _, f := range tpl.Templates() {
			if err := f.Execute(&all, addonData{Nodes: nodes, DNS: dnsIP, Volumes: l.volumes()}); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []string{replicas, "clusterIP: " + dnsIP, `path: "/state/volumes/20"`, registry + "coredns:", registry + "metrics-server:"} {
			if !strings.Contains(all.String(), want) {
				t.Errorf("%d nodes: no %q", nodes, want)
			}
		}
	}
}

func TestNodeFiles(t *testing.T) {
	t.Parallel()
	l := &lab{dir: t.TempDir()}
	for range 2 { // a node that restarts writes them again
		files, err := l.nodeFiles(2)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"containerd.toml": `sandbox_image = "k8slab.local/pause:1"`, "kubelet.yaml": "cgroupRoot: /anima-lab/node2",
			"proxy.yaml": "bindAddress: 10.99.0.12", "cni/10-lab.conflist": `"subnet":"10.244.2.0/24"`,
		} {
			raw, err := os.ReadFile(files[name])
			if err != nil || !strings.Contains(string(raw), want) {
				t.Errorf("%s: no %q (%v)", name, want, err)
			}
		}
	}
	raw, err := os.ReadFile(l.path("nodes", "node2", "cni", "10-lab.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var conf struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal(raw, &conf); err != nil {
		t.Fatal(err)
	}
	// The plugin anima-netpol is the last one: it needs the address that the others
	// assign.
	if got := conf.Plugins[len(conf.Plugins)-1].Type; got != "anima-netpol" {
		t.Errorf("the last plugin is %s", got)
	}
	for _, p := range conf.Plugins {
		if _, err := os.Lstat(l.path("nodes", "node2", "cnibin", p.Type)); err != nil {
			t.Error(err)
		}
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	l := &lab{dir: t.TempDir(), conf: conf{Nodes: 2}}
	if err := os.MkdirAll(l.path("conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.certificates(); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(l.path("conf", "*.conf"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, strings.TrimSuffix(filepath.Base(f), ".conf"))
	}
	want := []string{"admin", "kube-controller-manager", "kube-proxy", "kube-scheduler", "node1", "node2"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("kubeconfigs: got %v, want %v", got, want)
	}
}

func TestKedaImages(t *testing.T) {
	t.Parallel()
	in := "image: ghcr.io/kedacore/keda:main\nimage: ghcr.io/kedacore/keda-metrics-apiserver:latest\nimage: example.org/other:1"
	want := "image: k8slab.local/keda:2.21.0\nimage: k8slab.local/keda-metrics-apiserver:2.21.0\nimage: example.org/other:1"
	if got := string(kedaImage.ReplaceAll([]byte(in), []byte("image: "+registry+"$1:"+kedaVersion))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestPinsAgree checks versions that are stated in two places.
func TestPinsAgree(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"pins/kubernetes/go.mod": "k8s.io/kubernetes v" + kubernetes, "pins/keda/go.mod": "kedacore/keda/v2 v" + kedaVersion,
		"pins/coredns/go.mod": "coredns/coredns v1.15.0", "pins/metrics-server/go.mod": "metrics-server v0.9.0",
	} {
		raw, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s does not require %q (%v)", file, want, err)
		}
	}
	for _, r := range recipes("") {
		if r.version == "" || r.version == "unknown" {
			t.Errorf("image %s has no version", r.name)
		}
	}
}

func TestProgramsOfOneModuleShareAFolder(t *testing.T) {
	t.Parallel()
	dirs := map[string]bool{}
	for _, p := range programs("core") {
		if p.module != "pins/kubernetes" {
			continue
		}
		path, err := p.path()
		if err != nil {
			t.Fatal(err)
		}
		dirs[filepath.Dir(path)] = true
	}
	if len(dirs) != 1 {
		t.Errorf("got %v, want one folder: the lab remembers only one", dirs)
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	in := "table inet x {\n\tcounter denied_in {\n\t\tpackets 10 bytes 600\n\t}\n\tcounter unknown {\n\t\tpackets 0 bytes 0\n\t}\n}"
	if got, want := counters(in), "denied_in 10, unknown 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPollTellsTheLastReason(t *testing.T) {
	t.Parallel()
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	n := 0
	err := poll(ctx, 1, func() error {
		if n++; n == 3 {
			cancel(late)
		}
		return errors.New("not yet")
	})
	if !errors.Is(err, late) || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("got %v, want both causes", err)
	}
}

func TestImportedNames(t *testing.T) {
	t.Parallel()
	in := "unpacking k8slab.local/anima/loop:1 (sha256:12)...done\nimporting\nunpacking b@sha256:34 (sha256:34)...done"
	if got, want := importedNames(in), []string{"k8slab.local/anima/loop:1", "b@sha256:34"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
