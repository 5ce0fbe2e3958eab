package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/tools/gobuild"
)

// previous is the tag of the images that are upgraded from.
const previous = "lab-prev"

// upgrade deploys the previous commit with its own manifests, upgrades to this commit,
// and downgrades again, all under load.
func upgrade(ctx context.Context, w *world) error {
	old, commit, err := w.previous(ctx)
	if err != nil {
		return err
	}
	before, err := w.overlay(ctx, old, "")
	if err != nil {
		return err
	}
	now, err := w.overlay(ctx, w.Root, "")
	if err != nil {
		return err
	}
	defer func() {
		if err := w.restore(ctx, 5*time.Minute); err != nil {
			w.report.add(Failed, "this release is back", err.Error())
		}
	}()
	w.report.note("from %s", commit)
	// The older release starts first, with an empty database.
	if err := w.forget(ctx); err != nil {
		return err
	}
	if err := w.apply(ctx, before); err != nil {
		return err
	}
	if err := w.settle(ctx, 3*time.Minute); err != nil {
		return fmt.Errorf("the previous release: %w", err)
	}
	err = w.during(ctx, loading{Name: "upgrade"}, "upgrade", bounds{}, func(ctx context.Context) error {
		if err := w.apply(ctx, now); err != nil {
			return err
		}
		return w.settle(ctx, 5*time.Minute)
	})
	if err != nil {
		return err
	}
	w.checkErr("all images are this release's", w.running(ctx, "lab"))
	if err := w.migrateAgain(ctx, now); err != nil {
		return err
	}
	err = w.during(ctx, loading{Name: "rollback"}, "rollback", bounds{}, func(ctx context.Context) error {
		if err := w.apply(ctx, before); err != nil {
			return err
		}
		return w.settle(ctx, 5*time.Minute)
	})
	if err != nil {
		return err
	}
	w.checkErr("all images are the previous release's", w.running(ctx, previous))
	return nil
}

// prepareUpgrade builds the images of the commit that is upgraded from, if the step is
// one of those wanted. The step builds them itself otherwise, which may need a network
// that the cluster's does not have.
func prepareUpgrade(ctx context.Context, o Options) error {
	chosen, err := choose(o.Steps)
	if err != nil || !slices.ContainsFunc(chosen, func(s step) bool { return s.name == "upgrade" }) {
		return err
	}
	dir, err := os.MkdirTemp("", "drill-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a remainder is in the temporary folder
	w := &world{Options: o, dir: dir}
	tree, commit, err := w.checkout(ctx)
	if err != nil {
		return err
	}
	_, err = w.images(ctx, tree, commit)
	return err
}

// checkout returns a copy of the tree of the commit that is upgraded from.
func (w *world) checkout(ctx context.Context) (tree, commit string, err error) {
	commit, err = call(ctx, w.Root, nil, "git", "rev-parse", "--verify", w.From+"^{commit}")
	if err != nil {
		return "", "", err
	}
	commit = strings.TrimSpace(commit)
	tree = filepath.Join(w.dir, "previous")
	if _, err := call(ctx, w.dir, nil, "git", "clone", "--quiet", "--shared", "--no-checkout", w.Root, tree); err != nil {
		return "", "", err
	}
	_, err = call(ctx, tree, nil, "git", "checkout", "--quiet", "--detach", commit)
	return tree, commit, err
}

// images builds the missing images of the services of a tree and returns the archives by
// the names of the images.
func (w *world) images(ctx context.Context, tree, commit string) (map[string]string, error) {
	folder, err := gobuild.Cache("drill", commit)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err != nil {
		return nil, err
	}
	built := filepath.Join(w.dir, "images")
	out := map[string]string{}
	for _, s := range six {
		archive := filepath.Join(folder, s+".tar")
		name := "k8slab.local/anima/" + s + ":" + previous
		out[name] = archive
		if _, err := os.Stat(archive); err == nil {
			continue
		}
		// The tool of this tree is used, because the older tree's may lack these options.
		_, err := call(ctx, filepath.Join(w.Root, "tools", "image"), []string{"GOWORK=off"}, "nice", "-n", "5", "go", "run", ".", "build",
			"-root", tree, "-service", s, "-name", name, "-commit", commit, "-o", built)
		if err != nil {
			return nil, err
		}
		raw, err := os.ReadFile(filepath.Join(built, s+".tar"))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(archive+".new", raw, 0o644); err != nil {
			return nil, err
		}
		if err := os.Rename(archive+".new", archive); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// previous imports the images of the commit that is upgraded from on the nodes, and
// returns a copy of its tree with this overlay's secrets.
func (w *world) previous(ctx context.Context) (tree, commit string, err error) {
	tree, commit, err = w.checkout(ctx)
	if err != nil {
		return "", "", err
	}
	if err := os.CopyFS(filepath.Join(tree, w.Overlay, "secrets"), os.DirFS(filepath.Join(w.Root, w.Overlay, "secrets"))); err != nil {
		return "", "", fmt.Errorf("%w; make the secrets with tools/k8s.sh secrets", err)
	}
	file := filepath.Join(tree, w.Overlay, "kustomization.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	changed := retagged(string(text))
	if changed == string(text) {
		return "", "", errors.New(w.From + " has no overlay whose images are tagged lab")
	}
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		return "", "", err
	}
	archives, err := w.images(ctx, tree, commit)
	if err != nil {
		return "", "", err
	}
	for _, name := range slices.Sorted(maps.Keys(archives)) {
		if err := w.host(ctx, "load", 10*time.Minute, map[string]string{"image": name, "archive": archives[name]}); err != nil {
			return "", "", err
		}
	}
	return tree, commit, nil
}

// retagged replaces the tag of our own images in an overlay.
func retagged(kustomization string) string {
	return strings.ReplaceAll(kustomization, "newTag: lab}", "newTag: "+previous+"}")
}

// running returns an error unless all pods of the services run images with the tag.
func (w *world) running(ctx context.Context, tag string) error {
	out, err := w.k(ctx, "get", "deployment", "-o", `jsonpath={range .items[*]}{.spec.template.spec.containers[0].image}{"\n"}{end}`)
	if err != nil {
		return err
	}
	n := 0
	for image := range strings.FieldsSeq(out) {
		if strings.Contains(image, "/anima/") {
			if n++; !strings.HasSuffix(image, ":"+tag) {
				return fmt.Errorf("%s is not tagged %s", image, tag)
			}
		}
	}
	if n != len(six) {
		return fmt.Errorf("%d services of ours, want %d", n, len(six))
	}
	return nil
}

// migrateAgain applies the migration again after it has completed.
func (w *world) migrateAgain(ctx context.Context, manifests []byte) error {
	if _, err := w.k(ctx, "delete", "job", "-l", "app.kubernetes.io/name=migrate"); err != nil {
		return err
	}
	if err := w.apply(ctx, manifests); err != nil {
		return err
	}
	if _, err := w.k(ctx, "wait", "--for=condition=Complete", "job", "-l", "app.kubernetes.io/name=migrate", "--timeout=90s"); err != nil {
		w.checkErr("the migration runs a second time", err)
		return nil
	}
	pods, err := w.podsOf(ctx, "migrate")
	if err != nil {
		return err
	}
	restarts, said := 0, ""
	for _, p := range pods {
		restarts += p.restarts()
	}
	if len(pods) > 0 {
		if said, err = w.k(ctx, "logs", pods[0].Metadata.Name, "--all-containers", "--tail=3"); err != nil {
			return err
		}
	}
	w.check(restarts == 0, "the migration runs a second time and changes nothing", tail(said, 900))
	return w.settle(ctx, time.Minute)
}
