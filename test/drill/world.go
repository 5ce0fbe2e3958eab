package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/test/internal/kube"
)

const namespace = "anima"

// six lists the services in alphabetical order.
var six = []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}

// lease is loop's ANIMA_LOOP_LEASE, which is also the AckWait of its queue: a run whose
// owner crashed is resumed after this time.
const lease = 15 * time.Second

// world is the state of one drill.
type world struct {
	*cluster
	Options
	dir    string // temporary folder
	report *Report
	steady *Summary // of the step steady
	loads  int
}

func (w *world) check(ok bool, name, figures string) {
	o := Passed
	if !ok {
		o = Failed
	}
	w.report.add(o, name, figures)
}

// checkErr adds a check that passes if err is nil.
func (w *world) checkErr(name string, err error) {
	figures := ""
	if err != nil {
		figures = err.Error()
	}
	w.check(err == nil, name, figures)
}

func (w *world) notRun(name, why string) { w.report.add(NotRun, name, why) }

func (w *world) judge(what string, s Summary, b bounds) {
	b.steady = w.steady
	for _, c := range judge(what, s, b) {
		w.report.add(c.Outcome, c.Name, c.Figures)
	}
}

// pod holds the fields of a pod that the drill reads.
type pod struct {
	Metadata struct {
		Name, UID         string
		Labels            map[string]string
		DeletionTimestamp *time.Time
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase, PodIP      string
		Conditions        []struct{ Type, Status string }
		ContainerStatuses []struct {
			Name         string
			RestartCount int
			State        struct {
				Waiting *struct{ Reason, Message string }
			}
		}
	}
}

func (p pod) ready() bool {
	return p.Metadata.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
}

// restarts returns how often containers of the pod were restarted, and 1 more if the pod
// has failed, because a Job starts another pod then.
func (p pod) restarts() int {
	n := 0
	if p.Status.Phase == "Failed" {
		n++
	}
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// pods returns the pods with a label selector; "" selects all.
func (w *world) pods(ctx context.Context, selector string) ([]pod, error) {
	var list struct{ Items []pod }
	err := w.api.Get(ctx, "/api/v1/namespaces/"+namespace+"/pods?labelSelector="+url.QueryEscape(selector), &list)
	return list.Items, err
}

func (w *world) podsOf(ctx context.Context, name string) ([]pod, error) {
	return w.pods(ctx, "app.kubernetes.io/name="+name)
}

func (w *world) log(ctx context.Context, pod string) (string, error) {
	return w.api.Text(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/log")
}

// poll calls f at intervals until it returns nil. When the time is over, it returns f's
// last error.
func poll(ctx context.Context, limit, every time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	Metadata struct {
		Name       string
		Generation int64
	}
	Spec   struct{ Replicas int }
	Status struct {
		ObservedGeneration                       int64
		Replicas, UpdatedReplicas, ReadyReplicas int
		AvailableReplicas                        int
	}
}

func (d workload) whole() bool {
	s, n := d.Status, d.Spec.Replicas
	return s.ObservedGeneration >= d.Metadata.Generation && s.UpdatedReplicas == n && s.AvailableReplicas == n && s.Replicas == n
}

func (d workload) String() string {
	return fmt.Sprintf("%s %d of %d", d.Metadata.Name, min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas), d.Spec.Replicas)
}

// whole returns an error unless every Deployment and StatefulSet has all its replicas
// available in its newest revision.
func (w *world) whole(ctx context.Context) error {
	var missing []string
	found := map[string]bool{}
	for _, kind := range []string{"deployments", "statefulsets"} {
		var list struct{ Items []workload }
		if err := w.api.Get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/"+kind, &list); err != nil {
			return err
		}
		for _, d := range list.Items {
			if found[d.Metadata.Name] = true; !d.whole() {
				missing = append(missing, d.String())
			}
		}
	}
	for _, n := range append([]string{"nats", "postgres"}, six...) {
		if !found[n] {
			missing = append(missing, "no "+n)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New("not whole: " + strings.Join(missing, ", "))
}

// settle waits until whole succeeds.
func (w *world) settle(ctx context.Context, limit time.Duration) error {
	return poll(ctx, limit, 500*time.Millisecond, func(ctx context.Context) error {
		err := w.whole(ctx)
		if err != nil && ctx.Err() == nil {
			if why := w.stuck(ctx); why != "" {
				return fmt.Errorf("%w (%s)", err, why)
			}
		}
		return err
	})
}

// stuck returns the reasons why pods do not start.
func (w *world) stuck(ctx context.Context) string {
	all, err := w.pods(ctx, "")
	if err != nil {
		return ""
	}
	var why []string
	for _, p := range all {
		for _, c := range p.Status.ContainerStatuses {
			if s := c.State.Waiting; s != nil && s.Reason != "ContainerCreating" && s.Reason != "PodInitializing" {
				why = append(why, p.Metadata.Name+": "+s.Reason+" "+s.Message)
			}
		}
	}
	return strings.Join(why, "; ")
}

// gone waits until all pods of before have ended.
func (w *world) gone(ctx context.Context, name string, before []pod, limit time.Duration) error {
	old := map[string]bool{}
	for _, p := range before {
		old[p.Metadata.UID] = true
	}
	return poll(ctx, limit, 500*time.Millisecond, func(ctx context.Context) error {
		now, err := w.podsOf(ctx, name)
		if err != nil {
			return err
		}
		for _, p := range now {
			if old[p.Metadata.UID] && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
				return errors.New(p.Metadata.Name + " is still there")
			}
		}
		return nil
	})
}

// restart restarts a workload and waits until new pods are ready and old ones have ended.
func (w *world) restart(ctx context.Context, what string, limit time.Duration) error {
	_, name, _ := strings.Cut(what, "/")
	before, err := w.podsOf(ctx, name)
	if err != nil {
		return err
	}
	if _, err := w.k(ctx, "rollout", "restart", what); err != nil {
		return err
	}
	if _, err := w.k(ctx, "rollout", "status", what, "--timeout="+limit.String()); err != nil {
		return err
	}
	return w.gone(ctx, name, before, limit)
}

// overlay renders the overlay of a repository. more is appended to a kustomization that
// contains only the overlay; it may be empty.
func (w *world) overlay(ctx context.Context, root, more string) ([]byte, error) {
	plain := filepath.Join(root, w.Overlay)
	if more == "" {
		return w.kubectl(ctx, nil, "kustomize", plain)
	}
	dir, err := os.MkdirTemp(w.dir, "variant-")
	if err != nil {
		return nil, err
	}
	up, err := filepath.Rel(dir, root) // kustomize accepts no absolute paths
	if err != nil {
		return nil, err
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + filepath.Join(up, w.Overlay) + "]\n" +
		strings.ReplaceAll(more, "$K8S", filepath.Join(up, "deploy", "k8s"))
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	return w.kubectl(ctx, nil, "kustomize", dir)
}

// apply applies manifests once, server-side. A field that an earlier apply of the drill
// has set and that these manifests lack is removed.
func (w *world) apply(ctx context.Context, manifests []byte) error {
	_, err := w.kubectl(ctx, manifests, "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// restore applies the unchanged overlay.
func (w *world) restore(ctx context.Context, limit time.Duration) error {
	ctx = context.WithoutCancel(ctx) // also when the drill is stopped
	plain, err := w.overlay(ctx, w.Root, "")
	if err != nil {
		return err
	}
	if err := w.apply(ctx, plain); err != nil {
		return err
	}
	return w.settle(ctx, limit)
}

// call runs a program of this machine in a folder.
func call(ctx context.Context, dir string, env []string, argv ...string) (string, error) {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, tail(string(out), 2500))
	}
	return string(out), nil
}

// absent reports whether an error of the API server means that the object does not
// exist.
func absent(err error) bool {
	var status *kube.StatusError
	return errors.As(err, &status) && status.Code == 404
}
