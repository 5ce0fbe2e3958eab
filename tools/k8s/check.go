package main

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// workload is something with pods.
type workload struct {
	name     string
	selector *metav1.LabelSelector
	pod      corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim // templates
	service  string                         // of a stateful set
}

// manifests are the objects of one overlay.
type manifests struct {
	settings  []string
	names     map[string]bool // kind/name
	keys      map[string]bool // kind/name/key of secrets and config maps
	namespace []corev1.Namespace
	services  []corev1.Service
	workloads []workload
	faults    []string
}

// check returns everything wrong with the objects.
func check(docs [][]byte, settings []string) []string {
	m := &manifests{settings: settings, names: map[string]bool{}, keys: map[string]bool{}}
	for _, doc := range docs {
		m.read(doc)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return append(m.faults, err.Error())
	}
	if len(m.workloads) == 0 {
		m.fault("there is no workload")
	}
	for _, n := range m.namespace {
		if n.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			m.fault("namespace %s does not enforce the restricted profile", n.Name)
		}
	}
	for _, w := range m.workloads {
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(
			psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &w.pod.ObjectMeta, &w.pod.Spec))
		if !result.Allowed {
			m.fault("%s is not restricted: %s", w.name, result.ForbiddenDetail())
		}
		m.checkPod(w)
	}
	for _, s := range m.services {
		m.checkService(s)
	}
	return m.faults
}

func (m *manifests) fault(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

// read decodes one object strictly: a field that Kubernetes does not know is a
// fault, as is a kind that nothing here checks.
func (m *manifests) read(doc []byte) {
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		m.fault("%v", err)
		return
	}
	id := head.Kind + "/" + head.Name
	if m.names[id] {
		m.fault("%s is there twice", id)
	}
	m.names[id] = true
	var err error
	switch head.APIVersion + "/" + head.Kind {
	case "v1/Namespace":
		var v corev1.Namespace
		err = yaml.UnmarshalStrict(doc, &v)
		m.namespace = append(m.namespace, v)
	case "v1/ServiceAccount":
		err = yaml.UnmarshalStrict(doc, &corev1.ServiceAccount{})
	case "v1/PersistentVolumeClaim":
		err = yaml.UnmarshalStrict(doc, &corev1.PersistentVolumeClaim{})
	case "v1/Secret":
		var v corev1.Secret
		err = yaml.UnmarshalStrict(doc, &v)
		for k := range v.Data {
			m.keys[id+"/"+k] = true
		}
	case "v1/ConfigMap":
		var v corev1.ConfigMap
		err = yaml.UnmarshalStrict(doc, &v)
		for k := range v.Data {
			m.keys[id+"/"+k] = true
		}
	case "v1/Service":
		var v corev1.Service
		err = yaml.UnmarshalStrict(doc, &v)
		m.services = append(m.services, v)
	case "apps/v1/Deployment":
		var v appsv1.Deployment
		err = yaml.UnmarshalStrict(doc, &v)
		m.workloads = append(m.workloads, workload{id, v.Spec.Selector, v.Spec.Template, nil, ""})
	case "apps/v1/StatefulSet":
		var v appsv1.StatefulSet
		err = yaml.UnmarshalStrict(doc, &v)
		m.workloads = append(m.workloads, workload{id, v.Spec.Selector, v.Spec.Template, v.Spec.VolumeClaimTemplates, v.Spec.ServiceName})
	default:
		m.fault("%s %s is of a kind that nothing here checks", head.APIVersion, id)
	}
	if err != nil {
		m.fault("%s: %v", id, err)
	}
}

func (m *manifests) checkPod(w workload) {
	spec := w.pod.Spec
	if s, err := metav1.LabelSelectorAsSelector(w.selector); err != nil || s.Empty() || !s.Matches(labels.Set(w.pod.Labels)) {
		m.fault("%s does not select its own pods (%v)", w.name, err)
	}
	if !m.names["ServiceAccount/"+spec.ServiceAccountName] {
		m.fault("%s runs as %q, which is not there", w.name, spec.ServiceAccountName)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		m.fault("%s mounts a token of Kubernetes that it does not need", w.name)
	}
	if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
		m.fault("%s has service links, whose variables look like settings", w.name)
	}
	if w.service != "" {
		m.mustExist(w.name, "Service/"+w.service)
	}
	volumes := map[string]bool{}
	for _, c := range w.claims {
		volumes[c.Name] = true
	}
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
		switch {
		case v.Secret != nil:
			m.mustExist(w.name, "Secret/"+v.Secret.SecretName)
		case v.ConfigMap != nil:
			m.mustExist(w.name, "ConfigMap/"+v.ConfigMap.Name)
		case v.PersistentVolumeClaim != nil:
			m.mustExist(w.name, "PersistentVolumeClaim/"+v.PersistentVolumeClaim.ClaimName)
		case v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil:
			m.fault("%s: the volume %s has no limit", w.name, v.Name)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		m.checkContainer(w.name+" "+c.Name, c, volumes)
	}
}

func (m *manifests) mustExist(who, id string) {
	if !m.names[id] {
		m.fault("%s needs %s, which is not there", who, id)
	}
}

func (m *manifests) checkContainer(who string, c corev1.Container, volumes map[string]bool) {
	if _, tag, ok := strings.Cut(c.Image, ":"); !ok || tag == "" || tag == "latest" {
		m.fault("%s: the image %s names no version", who, c.Image)
	}
	if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		m.fault("%s: the root file system can be written", who)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
		m.fault("%s: it needs requests of cpu and memory and a limit of memory", who)
	}
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil || !hasPort(c, p.HTTPGet.Port) {
			m.fault("%s: there is no %s probe of a port that it has", who, name)
		}
	}
	for _, v := range c.VolumeMounts {
		if !volumes[v.Name] {
			m.fault("%s mounts %s, which is not there", who, v.Name)
		}
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "ANIMA_") && !slices.Contains(m.settings, e.Name) {
			m.fault("%s: %s is not a setting", who, e.Name)
		}
		if path, ok := strings.CutSuffix(e.Name, "_FILE"); ok && !slices.ContainsFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool { return strings.HasPrefix(e.Value, v.MountPath+"/") }) {
			m.fault("%s: the file of %s is in no volume", who, path)
		}
		if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil && !m.keys["Secret/"+from.SecretKeyRef.Name+"/"+from.SecretKeyRef.Key] {
			m.fault("%s: %s is of a secret that is not there", who, e.Name)
		}
	}
}

func hasPort(c corev1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return p.Name != "" && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal
	})
}

// checkService wants a pod behind the service, and its ports there.
func (m *manifests) checkService(s corev1.Service) {
	found := false
	for _, w := range m.workloads {
		if len(s.Spec.Selector) == 0 || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.pod.Labels)) {
			continue
		}
		found = true
		for _, p := range s.Spec.Ports {
			target := p.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(p.Port)
			}
			if !slices.ContainsFunc(w.pod.Spec.Containers, func(c corev1.Container) bool { return hasPort(c, target) }) {
				m.fault("Service/%s: %s has no port %s", s.Name, w.name, target.String())
			}
		}
	}
	if !found {
		m.fault("Service/%s has no pods", s.Name)
	}
}
