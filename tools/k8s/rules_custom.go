package main

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// checkScaling checks that every number of replicas has one owner.
func (m *manifests) checkScaling() {
	owners := map[string]int{}
	for _, s := range m.scalers {
		owners[s.Spec.ScaleTargetRef.Kind+"/"+s.Spec.ScaleTargetRef.Name]++
	}
	for _, c := range m.custom {
		if kind, name := scaleTarget(c); kind != "" {
			owners[kind+"/"+name]++
		}
	}
	for id, n := range owners {
		m.mustExist("an autoscaler", id)
		if n > 1 {
			m.fault("%s has several autoscalers", id)
		}
	}
	for _, w := range m.workloads {
		if owners[w.id] > 0 && w.replicas != nil {
			m.fault("%s sets replicas and has an autoscaler: an apply would reset the number", w.id)
		}
	}
}

// checkCustom checks the names in custom objects. Their fields are checked against their
// schemas.
func (m *manifests) checkCustom(c unstructured.Unstructured) {
	id := c.GetKind() + "/" + c.GetName()
	if m.scope.digests {
		eachImage(c.Object["spec"], func(image string) {
			if _, digest, _ := strings.Cut(image, "@"); !digestForm.MatchString(digest) {
				m.fault("%s: the image %s is not pinned by digest", id, image)
			}
		})
	}
	switch c.GetKind() {
	case "Cluster":
		if image := text(c.Object, "spec", "imageName"); tagOf(image) == "" {
			m.fault("%s: the image %s has no tag, from which the operator reads the version of Postgres: it would refuse the object", id, image)
		}
		m.checkStore(id, text(c.Object, "spec", "priorityClassName"))
		m.checkRoles(id, c)
	case "Pooler":
		m.checkStore(id, text(c.Object, "spec", "template", "spec", "priorityClassName"))
	case "Certificate":
		addresses, _, _ := unstructured.NestedStringSlice(c.Object, "spec", "ipAddresses")
		if text(c.Object, "spec", "secretName") == "nats-tls" && !slices.Contains(addresses, "127.0.0.1") {
			m.fault("%s is not for 127.0.0.1, to which the command line connects through a forwarded port", id)
		}
	case "ExternalSecret":
		m.checkUsed(id, c)
	case "ScaledObject":
		m.checkScaledObject(id, c)
	case "PodMonitor":
		m.checkPodMonitor(id, c)
	case "PrometheusRule":
		spec, err := yaml.Marshal(c.Object["spec"])
		if err != nil {
			m.fault("%s: %v", id, err)
		}
		m.checkSeries(id, string(spec))
	case "HTTPRoute":
		for _, r := range list(c.Object, "spec", "rules") {
			for _, b := range list(r, "backendRefs") {
				m.needServicePort(id, text(b, "name"), b["port"])
			}
		}
	}
}

// checkStore checks that the pods of a store are evicted after those of the services, if
// these have a priority.
func (m *manifests) checkStore(id, priority string) {
	if m.ids["PriorityClass/anima-service"] && priority != "anima-state" {
		m.fault("%s has the priority %q, below that of the services: they would evict it", id, priority)
	}
}

// checkRoles checks that the Secret of each role has the keys from which the operator sets
// its password.
func (m *manifests) checkRoles(id string, c unstructured.Unstructured) {
	for _, role := range list(c.Object, "spec", "managed", "roles") {
		secret := "Secret/" + text(role, "passwordSecret", "name")
		for _, key := range []string{"username", "password"} {
			if m.ids[secret] && !m.open[secret] && !slices.Contains(m.keys[secret], key) {
				m.fault("%s: %s has no %s, so the role %s has no password", id, secret, key, text(role, "name"))
			}
		}
	}
}

// checkUsed checks that a workload reads the Secret that an object creates.
func (m *manifests) checkUsed(id string, c unstructured.Unstructured) {
	name := text(c.Object, "spec", "target", "name")
	for _, w := range m.workloads {
		for _, v := range w.pod.Spec.Volumes {
			if v.Secret != nil && v.Secret.SecretName == name {
				return
			}
			if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil && s.Secret.Name == name }) {
				return
			}
		}
	}
	m.fault("%s creates a Secret that no workload mounts", id)
}

// text returns a text in a custom object; "" if there is none.
func text(v map[string]any, fields ...string) string {
	s, _, _ := unstructured.NestedString(v, fields...)
	return s
}

// list returns the objects of a list in a custom object.
func list(v map[string]any, fields ...string) (all []map[string]any) {
	items, _, _ := unstructured.NestedSlice(v, fields...)
	for _, i := range items {
		if o, ok := i.(map[string]any); ok {
			all = append(all, o)
		}
	}
	return all
}

// needServicePort checks that a Service has the port, which is a number decoded from
// YAML.
func (m *manifests) needServicePort(who, name string, port any) {
	for _, s := range m.services {
		if s.Name == name && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
			f, isFloat := port.(float64)
			i, isInt := port.(int64)
			return isFloat && int32(f) == p.Port || isInt && int32(i) == p.Port
		}) {
			return
		}
	}
	m.fault("%s sends to the port %v of Service/%s, which does not exist", who, port, name)
}

func (m *manifests) checkScaledObject(id string, c unstructured.Unstructured) {
	for _, t := range list(c.Object, "spec", "triggers") {
		if text(t, "type") != "nats-jetstream" {
			continue
		}
		meta, _, _ := unstructured.NestedStringMap(t, "metadata")
		host, port, _ := strings.Cut(meta["natsServerMonitoringEndpoint"], ":")
		number, err := strconv.ParseInt(port, 10, 64)
		if err != nil {
			m.fault("%s: %v", id, err)
		}
		service, _, _ := strings.Cut(host, ".")
		m.needServicePort(id, service, number)
		if i := slices.IndexFunc(m.services, func(s corev1.Service) bool { return s.Name == service }); i >= 0 && m.services[i].Spec.ClusterIP != corev1.ClusterIPNone {
			m.fault("%s reads Service/%s, which is not headless: KEDA would scale by a server that may not have the consumer", id, service)
		}
		// The lag of the consumer includes the messages in progress.
		slots, _ := strconv.ParseInt(m.words.defaults["ANIMA_LOOP_SLOTS"], 10, 64)
		for _, w := range m.workloads {
			for _, container := range w.pod.Spec.Containers {
				for _, e := range container.Env {
					if e.Name == "ANIMA_LOOP_SLOTS" {
						slots, _ = strconv.ParseInt(e.Value, 10, 64)
					}
				}
			}
		}
		if lag, err := strconv.ParseInt(meta["lagThreshold"], 10, 64); err != nil || lag > slots*4/5 || lag < slots/2 {
			m.fault("%s: lagThreshold is %q, want about three quarters of the %d slots of a replica, or busy replicas are removed", id, meta["lagThreshold"], slots)
		}
		if _, ok, _ := unstructured.NestedMap(c.Object, "spec", "fallback"); !ok {
			m.fault("%s has no fallback for the time when NATS cannot be reached", id)
		}
	}
	policies := list(c.Object, "spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleDown", "policies")
	for _, p := range policies {
		if number(unstructured.Unstructured{Object: p}, "value") != 1 {
			m.fault("%s removes more than one replica at a time", id)
		}
	}
	if len(policies) == 0 {
		m.fault("%s does not limit how fast it removes replicas", id)
	}
}

func (m *manifests) checkPodMonitor(id string, c unstructured.Unstructured) {
	spec, _, _ := unstructured.NestedMap(c.Object, "spec")
	doc, err := yaml.Marshal(spec["selector"])
	if err != nil {
		m.fault("%s: %v", id, err)
		return
	}
	selector, err := decode[metav1.LabelSelector](doc)
	if err != nil {
		m.fault("%s: %v", id, err)
		return
	}
	pods := m.selected(selector)
	if len(pods) == 0 {
		m.fault("%s selects no pods", id)
	}
	for _, e := range list(spec, "podMetricsEndpoints") {
		for _, w := range pods {
			if port := text(e, "port"); !hasPort(w.pod.Spec, intstr.FromString(port)) {
				m.fault("%s reads the port %s, which %s does not have", id, port, w.id)
			}
		}
	}
}

// checkSeries checks that every metric of anima in a text is one of docs/metrics.md.
func (m *manifests) checkSeries(id, text string) {
	for _, name := range series.FindAllString(text, -1) {
		if !slices.Contains(m.words.metrics, name) && !strings.HasPrefix(name, "gen_ai_request_model") {
			m.fault("%s uses %s, which no service exports", id, name)
		}
	}
}

// checkFiles checks the content of ConfigMaps that other programs read.
func (m *manifests) checkFiles() {
	for id, text := range m.config {
		if strings.Contains(id, "dashboard") {
			m.checkSeries("ConfigMap/"+id, text)
		}
	}
}
