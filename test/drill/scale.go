package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// slots is the number of concurrent calls or runs of one replica in the steps scale and
// autoscale. It is small, so that it limits a replica before the processors of this
// machine do.
const slots = 8

// scale sends model calls that take one second to the routers only. The concurrency of a
// replica is limited, so the step measures how the calls are distributed.
func scale(ctx context.Context, w *world) error {
	manifests, err := w.overlay(ctx, w.Root, fmt.Sprintf(`patches:
  - target: {kind: Deployment, name: inference-router}
    patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: inference-router}
      spec: {template: {spec: {containers: [{name: service, env: [{name: ANIMA_INFERENCE_ROUTER_WORKERS, value: "%d"}]}]}}}
`, slots))
	if err != nil {
		return err
	}
	defer func() {
		if err := w.restore(ctx, 3*time.Minute); err != nil {
			w.report.add(Failed, "the routers are as before", err.Error())
		}
	}()
	if err := w.apply(ctx, manifests); err != nil {
		return err
	}
	rates := map[int]float64{}
	for _, n := range []int{1, 2, 5} {
		if _, err := w.k(ctx, "scale", "deployment/inference-router", fmt.Sprint("--replicas=", n)); err != nil {
			return err
		}
		if err := w.settle(ctx, 2*time.Minute); err != nil {
			return err
		}
		l, err := w.load(ctx, loading{Name: fmt.Sprintf("scale-%d", n), Mode: "router", Text: "slow", Agents: 2 * slots * n, For: 20 * time.Second})
		if err != nil {
			return err
		}
		s, err := l.wait(ctx)
		if err != nil {
			return err
		}
		rates[n] = s.Rate
		w.judge(fmt.Sprintf("%d routers", n), s, bounds{})
	}
	w.check(rates[5] >= 0.8*5*rates[1] && rates[1] > 0, "five routers do at least 0.8 × 5 times the work of one",
		fmt.Sprintf("%.1f, %.1f, %.1f calls/s with 1, 2, 5: %.2f × linear; at most %d at a time in each", rates[1], rates[2], rates[5], rates[5]/(5*max(rates[1], 0.001)), slots))
	return nil
}

// installKEDA installs KEDA unless its API exists. The error is notRun if that is not
// possible here.
func (w *world) installKEDA(ctx context.Context) error {
	if err := w.api.Get(ctx, "/apis/keda.sh/v1alpha1", nil); !absent(err) {
		return err
	}
	if why := w.missing("keda"); why != "" {
		return notRun("the cluster has no KEDA, and " + why)
	}
	return w.host(ctx, "keda", 30*time.Minute, nil)
}

// autoscale lets KEDA set the number of replicas: of loop by the length of its queue, of
// the router by its CPU. It reduces the thresholds and periods of the component, so that
// the lab's load exceeds them within seconds.
func autoscale(ctx context.Context, w *world) error {
	if err := w.installKEDA(ctx); err != nil {
		return err
	}
	const most, period = 4, 15 * time.Second
	manifests, err := w.overlay(ctx, w.Root, fmt.Sprintf(`components: [$K8S/components/autoscale-keda]
patches:
  - target: {kind: Deployment, name: loop}
    patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: loop}
      spec: {template: {spec: {containers: [{name: service, env: [{name: ANIMA_LOOP_SLOTS, value: "%d"}]}]}}}
  - target: {kind: ScaledObject, name: loop}
    patch: |
      - {op: replace, path: /spec/triggers/0/metadata/lagThreshold, value: "%d"}
  - target: {kind: ScaledObject, name: inference-router}
    patch: |
      - {op: replace, path: /spec/triggers/0/metadata/value, value: "10"}
  - target: {kind: ScaledObject}
    patch: |
      - {op: replace, path: /spec/maxReplicaCount, value: %d}
      - {op: replace, path: /spec/advanced/horizontalPodAutoscalerConfig/behavior/scaleDown/stabilizationWindowSeconds, value: 10}
      - {op: replace, path: /spec/advanced/horizontalPodAutoscalerConfig/behavior/scaleDown/policies/0/periodSeconds, value: %.0f}
`, slots, slots*3/4, most, period.Seconds()))
	if err != nil {
		return err
	}
	defer func() {
		if _, err := w.k(context.WithoutCancel(ctx), "delete", "scaledobject", "--all", "--ignore-not-found"); err != nil {
			w.report.note("%v", err)
		}
		if err := w.restore(ctx, 3*time.Minute); err != nil {
			w.report.add(Failed, "the number of replicas is the overlay's again", err.Error())
		}
	}()
	if err := w.apply(ctx, manifests); err != nil {
		return err
	}
	// The number of replicas in the overlay is no longer applied, so each Deployment has
	// one replica until KEDA acts.
	if err := w.replicas(ctx, 2*time.Minute, map[string]int{"loop": 2, "inference-router": 2}, nil); err != nil {
		return err
	}
	if err := w.settle(ctx, 2*time.Minute); err != nil {
		return err
	}
	began := time.Now()
	l, err := w.load(ctx, loading{Name: "autoscale", Text: "slow", Agents: 48, Late: time.Minute})
	if err != nil {
		return err
	}
	began, risen := l.Began, map[string]time.Duration{}
	err = w.replicas(ctx, 2*time.Minute, map[string]int{"loop": most, "inference-router": most}, func(name string, _, n int) {
		if _, known := risen[name]; !known && n > 2 {
			risen[name] = time.Since(began)
		}
	})
	up, seen := risen["loop"]
	w.check(seen && up < 30*time.Second, "loop grows by its lag within 30 s", fmt.Sprintf("first after %.1f s", up.Seconds()))
	// metrics-server measures CPU every 15 s, over the last interval.
	up, seen = risen["inference-router"]
	w.check(seen && up < time.Minute, "the router grows by its CPU within 60 s", fmt.Sprintf("first after %.1f s", up.Seconds()))
	w.check(err == nil, fmt.Sprintf("both grow to %d", most), fmt.Sprintf("after %.1f s %s", time.Since(began).Seconds(), reason(err)))
	// The events give the reasons of the controllers.
	events, err := w.k(ctx, "get", "events", "--field-selector=reason=SuccessfulRescale", "--sort-by=.lastTimestamp", "--no-headers", "-o", "custom-columns=T:.lastTimestamp,O:.involvedObject.name,M:.message")
	if err != nil {
		return err
	}
	for line := range strings.Lines(events) {
		w.report.note("%s", strings.Join(strings.Fields(line), " "))
	}
	w.report.note("the load began at %s", began.UTC().Format(time.RFC3339))
	if err := w.settle(ctx, 2*time.Minute); err != nil {
		w.report.note("%v", err)
	}
	// Scaling down, under a small load. Changes are recorded from before the first load
	// ends, so that no step is missed.
	few, err := w.load(ctx, loading{Name: "autoscale-down", Agents: 2})
	if err != nil {
		return err
	}
	var fell []string
	single, last := true, time.Time{}
	shrunk := make(chan error, 1)
	go func() {
		shrunk <- w.replicas(ctx, 4*time.Minute, map[string]int{"loop": 2}, func(name string, was, n int) {
			if name != "loop" || n >= was {
				return
			}
			now := time.Now()
			fell = append(fell, fmt.Sprintf("%d→%d after %.0f s", was, n, now.Sub(few.Began).Seconds()))
			// The controller evaluates every 5 s.
			single = single && was-n == 1 && (last.IsZero() || now.Sub(last) > period-5*time.Second)
			last = now
		})
	}()
	s, err := l.end(ctx)
	err = errors.Join(err, <-shrunk)
	if err != nil {
		return err
	}
	w.judge("while KEDA adds replicas", s, bounds{})
	w.check(single && len(fell) == most-2, fmt.Sprintf("loop shrinks by one pod in %s", period), strings.Join(fell, ", "))
	sleep(ctx, 8*time.Second) // the last replica drains
	s, err = few.end(ctx)
	if err != nil {
		return err
	}
	w.judge("while KEDA takes replicas away", s, bounds{onTime: true})
	return nil
}

// reason returns the text of an error, "" for nil.
func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// replicas waits until the specified numbers of replicas of Deployments are those wanted.
// It calls changed for each change of any Deployment meanwhile.
func (w *world) replicas(ctx context.Context, limit time.Duration, want map[string]int, changed func(name string, was, n int)) error {
	last := map[string]int{}
	return poll(ctx, limit, 500*time.Millisecond, func(ctx context.Context) error {
		var list struct{ Items []workload }
		if err := w.api.Get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/deployments", &list); err != nil {
			return err
		}
		var not []string
		for _, d := range list.Items {
			name, n := d.Metadata.Name, d.Spec.Replicas
			if was, known := last[name]; known && was != n && changed != nil {
				changed(name, was, n)
			}
			last[name] = n
			if m, ok := want[name]; ok && n != m {
				not = append(not, fmt.Sprintf("%s is to have %d, not %d", name, n, m))
			}
		}
		if len(not) == 0 {
			return nil
		}
		return errors.New(strings.Join(not, ", "))
	})
}
