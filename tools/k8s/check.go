package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// scope describes how complete the objects of a deployment are.
type scope struct {
	secrets bool // Secrets, or objects that create them, must exist
	digests bool // every image must have a digest
}

var (
	whole = scope{secrets: true}
	prod  = scope{secrets: true, digests: true}
	part  = scope{} // base, and base with components
)

// workload is an object that creates pods.
type workload struct {
	id       string // kind/name
	selector *metav1.LabelSelector
	pod      corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim // templates
	service  string                         // of a stateful set
	replicas *int32
	history  *int32
	rolling  *appsv1.RollingUpdateDeployment // of a deployment with rolling updates
	job      bool
}

// manifests holds the objects of one overlay.
type manifests struct {
	words     vocabulary
	scope     scope
	ids       map[string]bool     // kind/name
	keys      map[string][]string // of Secrets and ConfigMaps, by kind/name
	config    map[string]string   // contents of ConfigMaps, by name/key
	open      map[string]bool     // Secrets whose keys come from an external store and are unknown here, by kind/name
	spaces    []corev1.Namespace
	services  []corev1.Service
	workloads []workload
	budgets   []policyv1.PodDisruptionBudget
	policies  []networkingv1.NetworkPolicy
	scalers   []autoscalingv2.HorizontalPodAutoscaler
	claims    []corev1.PersistentVolumeClaim // without those of workloads
	quotas    []corev1.ResourceQuota
	custom    []unstructured.Unstructured
	faults    []string
}

// check returns all faults of the objects.
func check(docs [][]byte, words vocabulary, s scope) []string {
	m := &manifests{words: words, scope: s, ids: map[string]bool{}, keys: map[string][]string{}, config: map[string]string{}, open: map[string]bool{}}
	for _, doc := range docs {
		m.read(doc)
	}
	if len(m.workloads) == 0 {
		m.fault("there is no workload")
	}
	for _, n := range m.spaces {
		for _, mode := range []string{"enforce", "warn", "audit"} {
			if n.Labels["pod-security.kubernetes.io/"+mode] != "restricted" {
				m.fault("Namespace/%s does not %s the restricted profile", n.Name, mode)
			}
		}
	}
	for _, w := range m.workloads {
		m.checkRestricted(w)
		m.checkPod(w)
		m.checkWorkload(w)
		if strings.HasPrefix(w.id, "StatefulSet/") {
			m.checkStore(w.id, w.pod.Spec.PriorityClassName)
		}
	}
	for _, b := range m.budgets {
		m.checkBudget(b)
	}
	for _, p := range m.policies {
		m.checkPolicy(p)
	}
	for _, v := range m.services {
		m.checkService(v)
	}
	m.checkScaling()
	for _, q := range m.quotas {
		m.checkQuota(q)
	}
	for _, c := range m.custom {
		m.checkCustom(c)
	}
	m.checkFiles()
	slices.Sort(m.faults)
	return slices.Compact(m.faults)
}

func (m *manifests) fault(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

// unmarshal decodes YAML, or JSON if the document begins with a brace.
func unmarshal(doc []byte, v any) error {
	if bytes.HasPrefix(doc, []byte("{")) {
		return json.UnmarshalCaseSensitivePreserveInts(doc, v)
	}
	return yaml.Unmarshal(doc, v)
}

// decode decodes an object strictly: an unknown field is an error, and so is an invalid
// quantity.
func decode[T any](doc []byte) (T, error) {
	var v T
	if !bytes.HasPrefix(doc, []byte("{")) {
		err := yaml.UnmarshalStrict(doc, &v)
		return v, err
	}
	strict, err := json.UnmarshalStrict(doc, &v)
	return v, errors.Join(append(strict, err)...)
}

// clusterWide lists the kinds without a namespace.
var clusterWide = []string{"Namespace", "PriorityClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PersistentVolume", "StorageClass"}

// customKinds lists the custom kinds that components use. Their fields are checked
// against their schemas elsewhere.
var customKinds = []string{
	"cert-manager.io/v1/Certificate", "cert-manager.io/v1/Issuer",
	"external-secrets.io/v1/ExternalSecret",
	"gateway.networking.k8s.io/v1/Gateway", "gateway.networking.k8s.io/v1/HTTPRoute",
	"keda.sh/v1alpha1/ScaledObject",
	"monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule",
	"postgresql.cnpg.io/v1/Cluster", "postgresql.cnpg.io/v1/Database", "postgresql.cnpg.io/v1/Pooler",
}

// read decodes one object. An object of a kind without a check is a fault.
func (m *manifests) read(doc []byte) {
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := unmarshal(doc, &head); err != nil {
		m.fault("%v", err)
		return
	}
	id := head.Kind + "/" + head.Name
	if m.ids[id] {
		m.fault("%s is defined twice", id)
	}
	m.ids[id] = true
	if want := map[bool]string{false: "anima"}[slices.Contains(clusterWide, head.Kind)]; head.Namespace != want {
		m.fault("%s is in the namespace %q, not in %q", id, head.Namespace, want)
	}
	if (head.Annotations["kube-score/ignore"] == "") != (head.Annotations["anima.run/ignored-because"] == "") {
		m.fault("%s has one of kube-score/ignore and anima.run/ignored-because without the other", id)
	}
	if err := m.keep(doc, id, head.APIVersion+"/"+head.Kind); err != nil {
		m.fault("%s: %v", id, err)
	}
}

func (m *manifests) keep(doc []byte, id, kind string) (err error) {
	switch kind {
	case "v1/Namespace":
		err = add(doc, &m.spaces)
	case "v1/Service":
		err = add(doc, &m.services)
	case "policy/v1/PodDisruptionBudget":
		err = add(doc, &m.budgets)
	case "networking.k8s.io/v1/NetworkPolicy":
		err = add(doc, &m.policies)
	case "autoscaling/v2/HorizontalPodAutoscaler":
		err = add(doc, &m.scalers)
	case "v1/ServiceAccount":
		var v corev1.ServiceAccount
		if v, err = decode[corev1.ServiceAccount](doc); err == nil && (v.AutomountServiceAccountToken == nil || *v.AutomountServiceAccountToken) {
			m.fault("%s mounts a token of Kubernetes, which no pod needs", id)
		}
	case "v1/PersistentVolumeClaim":
		err = add(doc, &m.claims)
	case "v1/PersistentVolume":
		_, err = decode[corev1.PersistentVolume](doc)
	case "v1/ResourceQuota":
		err = add(doc, &m.quotas)
	case "v1/LimitRange":
		_, err = decode[corev1.LimitRange](doc)
	case "scheduling.k8s.io/v1/PriorityClass":
		_, err = decode[schedulingv1.PriorityClass](doc)
	case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":
		_, err = decode[admissionv1.ValidatingAdmissionPolicy](doc)
	case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding":
		_, err = decode[admissionv1.ValidatingAdmissionPolicyBinding](doc)
	case "v1/Secret":
		var v corev1.Secret
		v, err = decode[corev1.Secret](doc)
		for k := range v.Data {
			m.keys[id] = append(m.keys[id], k)
		}
	case "v1/ConfigMap":
		var v corev1.ConfigMap
		v, err = decode[corev1.ConfigMap](doc)
		for k, text := range v.Data {
			m.keys[id] = append(m.keys[id], k)
			m.config[v.Name+"/"+k] = text
		}
	case "apps/v1/Deployment":
		var v appsv1.Deployment
		v, err = decode[appsv1.Deployment](doc)
		w := workload{id: id, selector: v.Spec.Selector, pod: v.Spec.Template, replicas: v.Spec.Replicas, history: v.Spec.RevisionHistoryLimit}
		if v.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			w.rolling = v.Spec.Strategy.RollingUpdate
			if w.rolling == nil {
				w.rolling = &appsv1.RollingUpdateDeployment{}
			}
		}
		m.workloads = append(m.workloads, w)
	case "apps/v1/StatefulSet":
		var v appsv1.StatefulSet
		v, err = decode[appsv1.StatefulSet](doc)
		m.workloads = append(m.workloads, workload{id: id, selector: v.Spec.Selector, pod: v.Spec.Template, claims: v.Spec.VolumeClaimTemplates, service: v.Spec.ServiceName, replicas: v.Spec.Replicas, history: v.Spec.RevisionHistoryLimit})
	case "batch/v1/Job":
		var v batchv1.Job
		v, err = decode[batchv1.Job](doc)
		m.workloads = append(m.workloads, workload{id: id, pod: v.Spec.Template, job: true})
		if v.Spec.TTLSecondsAfterFinished == nil || v.Spec.BackoffLimit == nil {
			m.fault("%s does not set both backoffLimit and ttlSecondsAfterFinished", id)
		}
		if v.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
			m.fault("%s counts the restarts of all its containers together, and deletes its pod and the log when it fails: want restartPolicy Never", id)
		}
	default:
		if !slices.Contains(customKinds, kind) {
			m.fault("%s %s has a kind for which there is no check", kind, id)
			return nil
		}
		var v unstructured.Unstructured
		err = unmarshal(doc, &v.Object)
		m.custom = append(m.custom, v)
		m.promise(v)
	}
	return err
}

func add[T any](doc []byte, to *[]T) error {
	v, err := decode[T](doc)
	*to = append(*to, v)
	return err
}

// promise records the Secrets that a custom object creates.
func (m *manifests) promise(v unstructured.Unstructured) {
	switch v.GetKind() {
	case "Certificate":
		name := text(v.Object, "spec", "secretName")
		m.ids["Secret/"+name] = true
		m.keys["Secret/"+name] = []string{"ca.crt", "tls.crt", "tls.key"}
	case "ExternalSecret":
		id := "Secret/" + text(v.Object, "spec", "target", "name")
		m.ids[id], m.open[id] = true, len(list(v.Object, "spec", "dataFrom")) > 0
		for _, d := range list(v.Object, "spec", "data") {
			m.keys[id] = append(m.keys[id], fmt.Sprint(d["secretKey"]))
		}
	}
}

// replicasOf returns the minimum number of pods, which an autoscaler may set.
func (m *manifests) replicasOf(w workload) int64 {
	for _, s := range m.scalers {
		if s.Spec.ScaleTargetRef.Kind+"/"+s.Spec.ScaleTargetRef.Name == w.id && s.Spec.MinReplicas != nil {
			return int64(*s.Spec.MinReplicas)
		}
	}
	for _, c := range m.custom {
		if kind, name := scaleTarget(c); kind+"/"+name == w.id {
			return number(c, "spec", "minReplicaCount")
		}
	}
	switch {
	case w.replicas == nil && !m.scope.secrets:
		return 2 // an overlay or an autoscaler sets it, possibly to more than one
	case w.replicas == nil:
		return 1
	}
	return int64(*w.replicas)
}

// number returns an integer field of a custom object, which YAML may have decoded as a
// float.
func number(c unstructured.Unstructured, fields ...string) int64 {
	v, _, _ := unstructured.NestedFieldNoCopy(c.Object, fields...)
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		return int64(v)
	}
	return 0
}

func scaleTarget(c unstructured.Unstructured) (kind, name string) {
	if c.GetKind() != "ScaledObject" {
		return "", ""
	}
	return text(c.Object, "spec", "scaleTargetRef", "kind"), text(c.Object, "spec", "scaleTargetRef", "name")
}

// selects reports whether a selector matches a workload's pods.
func selects(s *metav1.LabelSelector, w workload) bool {
	found, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && found.Matches(labels.Set(w.pod.Labels))
}

// hasPort reports whether a container of the pod has a port, by name or number.
func hasPort(pod corev1.PodSpec, port intstr.IntOrString) bool {
	return slices.ContainsFunc(slices.Concat(pod.Containers, pod.InitContainers), func(c corev1.Container) bool { return containerHasPort(c, port) })
}

func containerHasPort(c corev1.Container, port intstr.IntOrString) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return port.Type == intstr.String && p.Name != "" && p.Name == port.StrVal || port.Type == intstr.Int && p.ContainerPort == port.IntVal
	})
}
