// Command k8scheck renders overlays and checks what comes out: every object
// decodes strictly into its Kubernetes type, and every workload keeps the rules
// of Pod Security "restricted" and the house's own. It talks to no cluster.
//
//	k8scheck FOLDER...
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	faults := 0
	for _, dir := range os.Args[1:] {
		n, err := check(os.Stdout, dir)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", dir, err)
			n++
		}
		faults += n
	}
	if faults > 0 {
		fmt.Fprintf(os.Stderr, "%d faults\n", faults)
		os.Exit(1)
	}
}

// check renders one folder and returns the number of faults that it printed.
func check(w io.Writer, dir string) (int, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return 0, fmt.Errorf("render: %w", err)
	}
	faults := 0
	for _, r := range resources.Resources() {
		data, err := r.AsYAML()
		if err != nil {
			return faults, err
		}
		for _, f := range judge(r.GetKind(), data) {
			fmt.Fprintf(w, "%s: %s %s: %s\n", dir, r.GetKind(), r.GetName(), f)
			faults++
		}
	}
	fmt.Fprintf(w, "%s: %d objects\n", dir, resources.Size())
	return faults, nil
}

func judge(kind string, data []byte) []string {
	types := map[string]any{
		"Namespace": &corev1.Namespace{}, "Service": &corev1.Service{}, "ServiceAccount": &corev1.ServiceAccount{}, "ConfigMap": &corev1.ConfigMap{},
		"Secret": &corev1.Secret{}, "Deployment": &appsv1.Deployment{}, "StatefulSet": &appsv1.StatefulSet{},
		"NetworkPolicy": &networkingv1.NetworkPolicy{}, "PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{},
	}
	v, ok := types[kind]
	if !ok {
		return []string{"a kind that nobody checks: add its type"}
	}
	if err := yaml.UnmarshalStrict(data, v); err != nil {
		return []string{err.Error()}
	}
	switch o := v.(type) {
	case *appsv1.Deployment:
		return pod(o.Spec.Template)
	case *appsv1.StatefulSet:
		return pod(o.Spec.Template)
	case *corev1.Secret:
		for k, val := range o.Data {
			if !bytes.Contains(val, []byte("replace-me")) {
				return []string{"the value of " + k + " is committed: secrets come from the cluster"}
			}
		}
	}
	return nil
}

// pod holds a pod to Pod Security "restricted", no token, probes and limits.
func pod(t corev1.PodTemplateSpec) []string {
	var out []string
	want := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	s := t.Spec
	sc := s.SecurityContext
	want(sc != nil && sc.RunAsNonRoot != nil && *sc.RunAsNonRoot, "runAsNonRoot is not set")
	want(sc != nil && sc.SeccompProfile != nil && sc.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "seccompProfile is not RuntimeDefault")
	want(s.AutomountServiceAccountToken != nil && !*s.AutomountServiceAccountToken, "the service account's token is mounted")
	want(s.EnableServiceLinks != nil && !*s.EnableServiceLinks, "service links put ANIMA_ variables into the environment")
	for _, c := range s.Containers {
		cs := c.SecurityContext
		want(cs != nil && cs.AllowPrivilegeEscalation != nil && !*cs.AllowPrivilegeEscalation, c.Name+": may escalate")
		want(cs != nil && cs.ReadOnlyRootFilesystem != nil && *cs.ReadOnlyRootFilesystem, c.Name+": root file system is writable")
		want(cs != nil && cs.Capabilities != nil && len(cs.Capabilities.Drop) == 1 && cs.Capabilities.Drop[0] == "ALL", c.Name+": capabilities are kept")
		want(c.ReadinessProbe != nil, c.Name+": no readiness probe")
		want(c.LivenessProbe != nil, c.Name+": no liveness probe")
		want(!c.Resources.Requests.Memory().IsZero() && !c.Resources.Requests.Cpu().IsZero(), c.Name+": no requests")
		want(!c.Resources.Limits.Memory().IsZero(), c.Name+": no memory limit")
	}
	return out
}
