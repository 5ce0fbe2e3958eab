package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// deploy deploys everything into an empty cluster by one apply.
func deploy(ctx context.Context, w *world) error {
	manifests, err := w.overlay(ctx, w.Root, "")
	if err != nil {
		return err
	}
	if err := w.forget(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := w.apply(ctx, manifests); err != nil {
		return err
	}
	err = w.settle(ctx, 3*time.Minute)
	took := time.Since(began)
	if err != nil {
		return err
	}
	all, err := w.pods(ctx, "")
	if err != nil {
		return err
	}
	w.check(took < time.Minute, "one apply, ready within 60 s", fmt.Sprintf("%.1f s, %d pods, Jaeger too", took.Seconds(), len(all)))
	n, who := 0, []string{}
	for _, p := range all {
		if p.restarts() > 0 {
			n += p.restarts()
			who = append(who, p.Metadata.Name)
		}
	}
	w.check(n == 0, "no restart", fmt.Sprintf("%d %s", n, strings.Join(who, " ")))
	return nil
}

// forget deletes the namespace with all of its objects.
func (w *world) forget(ctx context.Context) error {
	const path = "/api/v1/namespaces/" + namespace
	if err := w.api.Get(ctx, path, nil); absent(err) {
		return w.freeVolumes(ctx)
	} else if err != nil {
		return err
	}
	// All pods are deleted at once and without a grace period, because their state is not
	// needed.
	if _, err := w.k(ctx, "delete", "deployment,statefulset,job", "--all", "--wait=false"); err != nil {
		return err
	}
	if _, err := w.k(ctx, "delete", "pod", "--all", "--grace-period=1", "--wait=false"); err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, nil, "delete", "namespace", namespace, "--wait=false"); err != nil {
		return err
	}
	err := poll(ctx, 3*time.Minute, 500*time.Millisecond, func(ctx context.Context) error {
		if err := w.api.Get(ctx, path, nil); !absent(err) {
			return errors.Join(err, errors.New("the namespace is still there"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.freeVolumes(ctx)
}

// freeVolumes makes the volumes of deleted claims available again. A cluster with a
// dynamic provisioner does so by itself, and then there is no command.
func (w *world) freeVolumes(ctx context.Context) error {
	if why := w.missing("volumes"); why != "" {
		w.report.note("the volumes are left to the cluster: %s", why)
		return nil
	}
	return w.host(ctx, "volumes", 2*time.Minute, nil)
}

// steady measures the figures with which later steps are compared.
func steady(ctx context.Context, w *world) error {
	l, err := w.load(ctx, loading{Name: "steady"})
	if err != nil {
		return err
	}
	sleep(ctx, 35*time.Second) // metrics are updated every 15 s
	top, err := w.k(ctx, "top", "pod", "--no-headers")
	if err != nil {
		w.report.note("kubectl top: %v", err)
	}
	for line := range strings.Lines(top) {
		w.report.note("top %s", strings.Join(strings.Fields(line), " "))
	}
	s, err := l.end(ctx)
	if err != nil {
		return err
	}
	w.steady = &s
	w.judge("steady", s, bounds{onTime: true})
	if w.Rate > 0 {
		w.check(s.Rate >= w.Rate, fmt.Sprintf("at least %.0f turns a second", w.Rate), fmt.Sprintf("%.1f/s", s.Rate))
	}
	return nil
}

// services restarts each of the six services, and Jaeger, each during a separate load.
func services(ctx context.Context, w *world) error {
	var all []error
	for _, s := range append(slices.Clone(six), "jaeger") {
		b := bounds{compare: true, onTime: true}
		err := w.during(ctx, loading{Name: "roll-" + s}, "rolling update of "+s, b, func(ctx context.Context) error {
			return w.restart(ctx, "deployment/"+s, 2*time.Minute)
		})
		if err != nil {
			all = append(all, fmt.Errorf("%s: %w", s, err))
		}
	}
	return errors.Join(all...)
}

// control restarts loop twice in the same way, the second time without draining: kubelet
// then still waits for two seconds. A model call takes four seconds, so many of them are
// cut off.
func control(ctx context.Context, w *world) error {
	roll := func(name, more string) (Summary, error) {
		manifests, err := w.overlay(ctx, w.Root, more)
		if err != nil {
			return Summary{}, err
		}
		if err := w.apply(ctx, manifests); err != nil {
			return Summary{}, err
		}
		if err := w.settle(ctx, 3*time.Minute); err != nil {
			return Summary{}, err
		}
		l, err := w.load(ctx, loading{Name: name, Text: "long"})
		if err != nil {
			return Summary{}, err
		}
		sleep(ctx, 2*time.Second)
		err = w.restart(ctx, "deployment/loop", 2*time.Minute)
		sleep(ctx, 2*time.Second)
		s, ended := l.end(ctx)
		return s, errors.Join(err, ended)
	}
	with, err := roll("control-on", "")
	if err != nil {
		return err
	}
	w.judge("the rollout with draining", with, bounds{onTime: true})
	without, err := roll("control-off", `patches:
  - target: {kind: Deployment, name: loop}
    patch: |
      - {op: replace, path: /spec/template/spec/terminationGracePeriodSeconds, value: 0}
      - {op: remove, path: /spec/template/spec/containers/0/lifecycle}
`)
	defer func() {
		if err := w.restore(ctx, 3*time.Minute); err != nil {
			w.report.add(Failed, "draining is on again", err.Error())
		}
	}()
	if err != nil {
		return err
	}
	said := 0
	for _, c := range judge("", without, bounds{onTime: true, steady: &with, compare: true}) {
		if c.Outcome == Failed {
			said++
		}
	}
	w.check(said > 0, "the judge says no to the rollout without draining", without.String())
	w.check(without.whole(), "even then nothing is lost or paid twice", "")
	return nil
}

// rollNATS restarts the three servers one by one.
func rollNATS(ctx context.Context, w *world) error {
	min, stop := w.quorum(ctx)
	err := w.during(ctx, loading{Name: "roll-nats"}, "rolling update of NATS", bounds{compare: true, worst: worst}, func(ctx context.Context) error {
		return w.restart(ctx, "statefulset/nats", 4*time.Minute)
	})
	stop()
	w.check(min() >= 2, "two of three servers at any time", fmt.Sprintf("at least %d", min()))
	return err
}

// quorum watches the number of NATS servers that are ready. lowest returns the lowest
// number since the start.
func (w *world) quorum(ctx context.Context) (lowest func() int, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var mu sync.Mutex
	least := 3
	wg.Go(func() {
		for ctx.Err() == nil {
			if pods, err := w.podsOf(ctx, "nats"); err == nil {
				n := 0
				for _, p := range pods {
					if p.ready() {
						n++
					}
				}
				mu.Lock()
				least = min(least, n)
				mu.Unlock()
			}
			sleep(ctx, 500*time.Millisecond)
		}
	})
	return func() int { mu.Lock(); defer mu.Unlock(); return least }, func() { cancel(); wg.Wait() }
}

// away is the maximum duration of a run while Postgres is restarted.
const away = 30 * time.Second

func (w *world) hasPostgres(ctx context.Context, node string) (bool, error) {
	pods, err := w.podsOf(ctx, "postgres")
	return len(pods) == 1 && pods[0].Spec.NodeName == node, err
}

// postgres deletes the only pod of Postgres.
func postgres(ctx context.Context, w *world) error {
	err := w.during(ctx, loading{Name: "postgres"}, "Postgres deleted and back", bounds{worst: away}, func(ctx context.Context) error {
		before, err := w.podsOf(ctx, "postgres")
		if err != nil {
			return err
		}
		if _, err := w.k(ctx, "delete", "pod", "postgres-0", "--wait=false"); err != nil {
			return err
		}
		if err := w.gone(ctx, "postgres", before, 2*time.Minute); err != nil {
			return err
		}
		return w.settle(ctx, 2*time.Minute)
	})
	return err
}

// turn returns the node for the i-th repetition, from 0, and a node that is not affected.
func (w *world) turn(i int) (victim, safe string) {
	return w.nodes[i%len(w.nodes)], w.nodes[(i+1)%len(w.nodes)]
}

// worst is the maximum duration of a run whose owner crashes.
const worst = lease + 2*time.Second

// drain drains one node after the other.
func drain(ctx context.Context, w *world) error {
	for i := range w.Times {
		name, safe := w.turn(i)
		uncordon := func() error {
			_, err := w.kubectl(context.WithoutCancel(ctx), nil, "uncordon", name)
			return err
		}
		base, err := w.hasPostgres(ctx, name)
		if err != nil {
			return err
		}
		if base { // Postgres is on the node: every run waits until it has moved
			w.report.note("%s has Postgres", name)
		}
		lowest, stop := w.quorum(ctx)
		err = w.during(ctx, loading{Name: fmt.Sprintf("drain-%d", i+1), Node: safe}, name+" drained", bounds{worst: worst}, func(ctx context.Context) error {
			_, err := w.kubectl(ctx, nil, "drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
			return err
		})
		stop()
		w.check(lowest() >= 2, name+" drained: NATS keeps its quorum", fmt.Sprintf("at least %d of 3", lowest()))
		if err := errors.Join(err, uncordon()); err != nil {
			return err
		}
		if err := w.settle(ctx, 3*time.Minute); err != nil {
			return fmt.Errorf("after %s was drained: %w", name, err)
		}
	}
	return nil
}

// kill kills all processes of a node at once, as a power failure would.
func kill(ctx context.Context, w *world) error {
	for i := range w.Times {
		if err := w.killOne(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) killOne(ctx context.Context, i int) error {
	name, safe := w.turn(i)
	base, err := w.hasPostgres(ctx, name)
	if err != nil {
		return err
	}
	title, b := name+" killed", bounds{worst: worst}
	if base {
		// The only Postgres waits for its node, so turns may wait for it, too.
		title, b = name+" killed, with Postgres on it, back after 15 s", bounds{worst: time.Minute}
	}
	started := false
	start := func(ctx context.Context) error {
		if started {
			return nil
		}
		started = true
		ctx = context.WithoutCancel(ctx)
		if err := w.host(ctx, "node-start", 5*time.Minute, map[string]string{"node": name}); err != nil {
			return err
		}
		_, err := w.kubectl(ctx, nil, "wait", "--for=condition=Ready", "node/"+name, "--timeout=3m")
		return err
	}
	lowest, stop := w.quorum(ctx)
	err = w.during(ctx, loading{Name: fmt.Sprintf("kill-%d", i+1), Node: safe}, title, b, func(ctx context.Context) error {
		if err := w.host(ctx, "node-stop", time.Minute, map[string]string{"node": name}); err != nil {
			return err
		}
		if base {
			sleep(ctx, 15*time.Second)
			if err := start(ctx); err != nil {
				return err
			}
			return w.settle(ctx, 2*time.Minute)
		}
		// The pods of the node are replaced 30 s after the node was found to be
		// unreachable.
		return poll(ctx, 2*time.Minute, time.Second, func(ctx context.Context) error { return w.replaced(ctx, name) })
	})
	stop()
	if err := errors.Join(err, start(ctx)); err != nil {
		return err
	}
	w.check(lowest() >= 2, name+" killed: NATS keeps its quorum", fmt.Sprintf("at least %d of 3", lowest()))
	return w.settle(ctx, 3*time.Minute)
}

// replaced returns an error that names the services which lack pods outside of the dead
// node.
func (w *world) replaced(ctx context.Context, dead string) error {
	all, err := w.pods(ctx, "app.kubernetes.io/part-of=anima")
	if err != nil {
		return err
	}
	alive := map[string]int{}
	for _, p := range all {
		if p.ready() && p.Spec.NodeName != dead {
			alive[p.Metadata.Labels["app.kubernetes.io/name"]]++
		}
	}
	for _, s := range six {
		if alive[s] < 2 {
			return fmt.Errorf("%s has %d ready pods outside of %s", s, alive[s], dead)
		}
	}
	return nil
}

// runbooks runs the commands of docs/runbooks.
func runbooks(ctx context.Context, w *world) error {
	err := w.host(ctx, "runbooks", 2*time.Hour, nil)
	var no notRun
	if errors.As(err, &no) {
		return no
	}
	w.checkErr("the commands of docs/runbooks", err)
	return nil
}
