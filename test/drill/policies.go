package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed probe.yaml
var probeYAML string

var probePods = template.Must(template.New("probe").Parse(probeYAML))

// matrix lists which sources may connect to which targets. It states the intent of
// deploy/k8s/base/network, the services' own policies and the component jaeger. It is
// written by hand, so that the test finds policies which differ from it. "open" and
// "reader" are pods with the labels anima.run/http: client and anima.run/metrics: reader
// whose egress the drill opens; "stranger" has no label; "abroad" is in a namespace
// without policies. The last three prove that a target exists which refuses other
// sources.
const matrix = `
                   nats pg jaeger loop router treasury social policy-ops heartbeat-ops api outside
loop               yes  yes yes   no   no     no       no     no         no            no  no
inference-router   yes  yes yes   no   no     no       no     no         no            no  yes
policy             yes  yes yes   no   no     no       no     no         no            no  no
treasury           yes  yes yes   no   no     no       no     no         no            no  no
heartbeat          yes  yes yes   no   no     no       no     no         no            no  no
social             yes  yes yes   no   no     no       no     no         no            no  no
migrate            no   yes no    no   no     no       no     no         no            no  no
load               yes  no  no    no   no     no       no     no         no            no  no
nats               no   no  no    no   no     no       no     no         no            no  no
postgres           no   no  no    no   no     no       no     no         no            no  no
jaeger             no   no  no    no   no     no       no     no         no            no  no
stranger           no   no  no    no   no     no       no     no         no            no  no
open               no   no  no    yes  yes    yes      yes    no         no            yes yes
reader             no   no  no    no   no     no       no     yes        yes           yes yes
abroad             no   no  no    no   no     no       no     no         no            yes yes
`

// expected parses the matrix: by source, then by target.
func expected() (targets []string, want map[string]map[string]bool, err error) {
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	targets, want = strings.Fields(lines[0]), map[string]map[string]bool{}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) != len(targets)+1 {
			return nil, nil, fmt.Errorf("the matrix has %d columns, and this line %d: %s", len(targets), len(f)-1, line)
		}
		row := map[string]bool{}
		for i, t := range targets {
			if f[i+1] != "yes" && f[i+1] != "no" {
				return nil, nil, fmt.Errorf("neither yes nor no: %s", line)
			}
			row[t] = f[i+1] == "yes"
		}
		want[f[0]] = row
	}
	return targets, want, nil
}

// prober is one source.
type prober struct {
	Name, Namespace string
	Node            string // required, because the anti-affinity of NATS also applies to a pod with its labels
	Labels          map[string]string
	Targets         string // "name host port" of each, separated by ;
}

// labels returns the labels of a source; for a service those of its pods.
func (w *world) labels(ctx context.Context, source string) (map[string]string, error) {
	const nats, pg = "anima.run/nats", "anima.run/postgres"
	part := map[string]string{"app.kubernetes.io/part-of": "anima"}
	switch source {
	case "migrate":
		return merged(part, map[string]string{"app.kubernetes.io/name": "migrate", pg: "client"}), nil
	case "load":
		return map[string]string{"app.kubernetes.io/name": "load", nats: "client"}, nil
	case "stranger", "abroad":
		return map[string]string{"app.kubernetes.io/name": source}, nil
	case "open":
		return map[string]string{"anima.run/http": "client", "anima.run/drill": "open"}, nil
	case "reader":
		return map[string]string{"anima.run/metrics": "reader", "anima.run/drill": "open"}, nil
	}
	pods, err := w.podsOf(ctx, source)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("there is no pod of %s", source)
	}
	out := map[string]string{}
	for k, v := range pods[0].Metadata.Labels {
		// Labels of controllers are omitted, because the controllers would adopt the
		// probe.
		if strings.HasPrefix(k, "app.kubernetes.io/") || strings.HasPrefix(k, "anima.run/") {
			out[k] = v
		}
	}
	return out, nil
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// policies starts a pod for each source, and each tries to connect to every target, all
// concurrently.
func policies(ctx context.Context, w *world) error {
	targets, want, err := expected()
	if err != nil {
		return err
	}
	outside, port, err := net.SplitHostPort(w.Outside)
	if w.Outside == "" {
		targets = slices.DeleteFunc(targets, func(t string) bool { return t == "outside" })
		w.notRun("connections to an address outside of the cluster", "-outside is not set, an IP:PORT that accepts connections")
	} else if err != nil {
		return fmt.Errorf("-outside: %w", err)
	}
	addr := map[string]string{
		"nats": "nats.anima 4222", "pg": "postgres.anima 5432", "jaeger": "jaeger.anima 4317",
		"loop": "loop.anima 8080", "router": "inference-router.anima 8080", "treasury": "treasury.anima 8080", "social": "social.anima 8080",
		"api": "kubernetes.default 443", "outside": outside + " " + port,
	}
	// These two have no Service, because only metrics are read from them.
	for _, s := range []string{"policy", "heartbeat"} {
		pods, err := w.podsOf(ctx, s)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return fmt.Errorf("there is no pod of %s", s)
		}
		addr[s+"-ops"] = pods[0].Status.PodIP + " 9090"
	}
	var list []string
	for _, t := range targets {
		if addr[t] == "" {
			return fmt.Errorf("the target %s has no address", t)
		}
		list = append(list, t+" "+addr[t])
	}
	var probes []prober
	for _, s := range slices.Sorted(maps.Keys(want)) {
		l, err := w.labels(ctx, s)
		if err != nil {
			return err
		}
		p := prober{Name: "probe-" + s, Namespace: namespace, Node: w.nodes[len(probes)%len(w.nodes)], Labels: l, Targets: strings.Join(list, ";")}
		if s == "abroad" {
			p.Namespace = "default"
		}
		probes = append(probes, p)
	}
	var text bytes.Buffer
	if err := probePods.Execute(&text, probes); err != nil {
		return err
	}
	clean := func() {
		if _, err := w.kubectl(context.WithoutCancel(ctx), text.Bytes(), "delete", "--ignore-not-found", "--grace-period=0", "--force", "-f", "-"); err != nil {
			w.report.note("%v", err)
		}
	}
	clean() // remainder of a drill that was stopped
	defer clean()
	if err := w.apply(ctx, text.Bytes()); err != nil {
		return err
	}
	var wrong []string
	yes, no := 0, 0
	for _, p := range probes {
		seen, err := w.probed(ctx, p)
		if err != nil {
			return err
		}
		source := strings.TrimPrefix(p.Name, "probe-")
		var row []string
		for _, t := range targets {
			got, tried := seen[t]
			switch {
			case !tried:
				wrong = append(wrong, source+" did not try "+t)
			case got != want[source][t]:
				wrong = append(wrong, fmt.Sprintf("%s → %s: got %s, want %s", source, t, allowed(got), allowed(want[source][t])))
			case got:
				yes++
			default:
				no++
			}
			if got {
				row = append(row, t)
			}
		}
		w.report.note("%s reaches: %s", source, strings.Join(row, " "))
	}
	w.check(len(wrong) == 0, "every source reaches what it may, and nothing else", strings.Join(append([]string{fmt.Sprintf("%d sources × %d targets: %d allowed, %d refused, as they should be", len(probes), len(targets), yes, no)}, wrong...), "\n"))
	return nil
}

func allowed(ok bool) string {
	if ok {
		return "allowed"
	}
	return "refused"
}

// probed waits for the end of a probe and parses its output: a target and yes or no on
// each line.
func (w *world) probed(ctx context.Context, p prober) (map[string]bool, error) {
	path := "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name
	err := poll(ctx, 90*time.Second, 300*time.Millisecond, func(ctx context.Context) error {
		var got pod
		if err := w.api.Get(ctx, path, &got); err != nil {
			return err
		}
		if got.Status.Phase != "Succeeded" {
			return errors.New(p.Name + " is " + got.Status.Phase)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	log, err := w.api.Text(ctx, path+"/log")
	if err != nil {
		return nil, err
	}
	return parseProbe(log), nil
}

func parseProbe(log string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(log) {
		if f := strings.Fields(line); len(f) == 2 && (f[1] == "yes" || f[1] == "no") {
			out[f[0]] = f[1] == "yes"
		}
	}
	return out
}
