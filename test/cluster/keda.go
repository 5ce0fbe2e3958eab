package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"time"
)

var kedaImage = regexp.MustCompile(`image: \S*/(keda[a-z-]*):\S+`)

// addon installs an addon. With -built it does not build, which takes minutes, but
// returns notRun.
func (l *lab) addon(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "keda" {
		return errors.New("the addon that can be added is keda: addon keda")
	}
	fs := flag.NewFlagSet("addon keda", flag.ContinueOnError)
	built := fs.Bool("built", false, "do not build it")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if *built && !compiled("keda") {
		return notRun("KEDA is not built; run build keda")
	}
	return l.keda(ctx)
}

// keda installs KEDA with the manifests of its own module and images that are built here.
func (l *lab) keda(ctx context.Context) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	if l.Nodes == 0 {
		return errors.New("KEDA needs a lab with nodes; run up first")
	}
	if err := build(ctx, []string{"keda"}); err != nil {
		return err
	}
	s := newSteps()
	l.Images = builtImages(true)
	if err := l.save(); err != nil {
		return err
	}
	if err := l.importEverywhere(ctx); err != nil {
		return err
	}
	s.done("images on every node")
	dir, err := moduleDir(ctx, "keda", "github.com/kedacore/keda/v2")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	// kustomize only reads the module's folder and needs no network.
	manifests, err := l.kubectl(ctx, nil, "kustomize", filepath.Join(dir, "config", "default"))
	if err != nil {
		return err
	}
	manifests = kedaImage.ReplaceAll(manifests, []byte("image: "+registry+"$1:"+kedaVersion))
	manifests = bytes.ReplaceAll(manifests, []byte("imagePullPolicy: Always"), []byte("imagePullPolicy: IfNotPresent"))
	if _, err := l.kubectl(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return err
	}
	s.done("applied")
	for _, d := range []string{"keda-operator", "keda-metrics-apiserver", "keda-admission"} {
		if _, err := l.kubectl(ctx, nil, "-n", "keda", "rollout", "status", "deployment/"+d, "--timeout=240s"); err != nil {
			return fmt.Errorf("KEDA %s: %w", kedaVersion, err)
		}
	}
	s.done("KEDA %s ready", kedaVersion)
	return nil
}
