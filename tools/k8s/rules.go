package main

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	psa "k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
)

// flush is the maximum time that a service takes to export its last spans.
const flush = 5 * time.Second

// Patterns for values in configuration files and queries.
var (
	lameDuck  = regexp.MustCompile(`(?m)^\s*lame_duck_duration\s*[:=]?\s*"?([0-9a-z]+)`)
	graceDuck = regexp.MustCompile(`(?m)^\s*lame_duck_grace_period\s*[:=]?\s*"?([0-9a-z]+)`)
	hashed    = regexp.MustCompile(`-[2456789bcdfghkmt]{10}$`) // alphabet of kustomize's hashes
	series    = regexp.MustCompile(`\b(?:anima|gen_ai|messaging)_[a-z0-9_]+`)
	expansion = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)
	settingOf = regexp.MustCompile(`^(ANIMA|OPENAI)_`)
)

// restricted evaluates pods by the Pod Security Standards of Kubernetes.
var restricted = sync.OnceValues(func() (podsecurity.Evaluator, error) {
	return podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
})

func (m *manifests) checkRestricted(w workload) {
	evaluator, err := restricted()
	if err != nil {
		m.fault("%v", err)
		return
	}
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	result := podsecurity.AggregateCheckResults(evaluator.EvaluatePod(level, &w.pod.ObjectMeta, &w.pod.Spec))
	if !result.Allowed {
		m.fault("%s is not restricted: %s", w.id, result.ForbiddenDetail())
	}
}

// checkWorkload checks the objects around the pods of a workload.
func (m *manifests) checkWorkload(w workload) {
	isolated := map[networkingv1.PolicyType]bool{}
	for _, p := range m.policies {
		if len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions) > 0 && selects(&p.Spec.PodSelector, w) {
			for _, t := range p.Spec.PolicyTypes {
				isolated[t] = true
			}
		}
	}
	// A Job receives no requests.
	if !isolated[networkingv1.PolicyTypeEgress] || !isolated[networkingv1.PolicyTypeIngress] && !w.job {
		m.fault("%s has no NetworkPolicy of its own for ingress and egress", w.id)
	}
	if w.job {
		return
	}
	if w.history == nil || *w.history > 3 {
		m.fault("%s keeps more than 3 old revisions", w.id)
	}
	many := m.replicasOf(w) > 1
	budgeted := slices.ContainsFunc(m.budgets, func(b policyv1.PodDisruptionBudget) bool { return selects(b.Spec.Selector, w) })
	switch {
	case many && !budgeted:
		m.fault("%s has several replicas and no PodDisruptionBudget", w.id)
	case many && len(w.pod.Spec.TopologySpreadConstraints) == 0:
		m.fault("%s has several replicas and no rule that spreads them", w.id)
	}
	if affinity := w.pod.Spec.Affinity; affinity != nil && affinity.PodAntiAffinity != nil {
		for _, t := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if !selects(t.LabelSelector, w) {
				m.fault("%s has an anti-affinity that does not select its own pods", w.id)
			}
		}
	}
	for _, c := range w.pod.Spec.TopologySpreadConstraints {
		if !selects(c.LabelSelector, w) {
			m.fault("%s spreads by a selector that does not select its pods", w.id)
		}
		if honors := c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor; c.WhenUnsatisfiable == corev1.DoNotSchedule && !honors {
			m.fault("%s is spread over nodes that take none of its pods: replacements would be pending while a node is drained or has crashed: want nodeTaintsPolicy Honor", w.id)
		}
	}
	if r := w.rolling; r != nil {
		surge, err := amount(r.MaxSurge, "25%")
		unavailable, err2 := amount(r.MaxUnavailable, "25%")
		if err != nil || err2 != nil {
			m.fault("%s has an invalid maxSurge or maxUnavailable (%v, %v)", w.id, r.MaxSurge, r.MaxUnavailable)
		} else if surge < 1 || unavailable != 0 {
			m.fault("%s loses a replica during a rollout: want maxUnavailable 0 and maxSurge 1", w.id)
		}
	}
}

// checkQuota checks that a quota allows the claims of all pods. Without the last of its
// claims, a store would never have all its servers.
func (m *manifests) checkQuota(q corev1.ResourceQuota) {
	limit, ok := q.Spec.Hard[corev1.ResourceRequestsStorage]
	if !ok {
		return
	}
	var sum resource.Quantity
	for _, c := range m.claims {
		sum.Add(*c.Spec.Resources.Requests.Storage())
	}
	for _, w := range m.workloads {
		for _, c := range w.claims {
			each := c.Spec.Resources.Requests.Storage().DeepCopy()
			each.Mul(m.replicasOf(w))
			sum.Add(each)
		}
	}
	for _, c := range m.custom {
		if c.GetKind() != "Cluster" {
			continue
		}
		each, err := resource.ParseQuantity(text(c.Object, "spec", "storage", "size"))
		if err != nil {
			m.fault("Cluster/%s: storage.size: %v", c.GetName(), err)
			continue
		}
		each.Mul(number(c, "spec", "instances"))
		sum.Add(each)
	}
	if sum.Cmp(limit) > 0 {
		m.fault("ResourceQuota/%s allows claims of %s, and the pods have claims of %s", q.Name, limit.String(), sum.String())
	}
}

// amount returns a number, or a percentage of ten.
func amount(v *intstr.IntOrString, otherwise string) (int, error) {
	if v == nil {
		v = &intstr.IntOrString{Type: intstr.String, StrVal: otherwise}
	}
	return intstr.GetScaledValueFromIntOrPercent(v, 10, true)
}

func (m *manifests) checkPod(w workload) {
	spec := w.pod.Spec
	if s, err := metav1.LabelSelectorAsSelector(w.selector); !w.job && (err != nil || s.Empty() || !s.Matches(labels.Set(w.pod.Labels))) {
		m.fault("%s does not select its own pods (%v)", w.id, err)
	}
	m.mustExist(w.id, "ServiceAccount/"+spec.ServiceAccountName)
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		m.fault("%s mounts a token of Kubernetes that it does not need", w.id)
	}
	if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
		m.fault("%s has service links, whose variables look like settings", w.id)
	}
	if spec.PriorityClassName != "" {
		m.mustExist(w.id, "PriorityClass/"+spec.PriorityClassName)
	}
	if w.service != "" {
		m.mustExist(w.id, "Service/"+w.service)
	}
	volumes := map[string]*corev1.Volume{}
	for _, c := range w.claims {
		volumes[c.Name] = &corev1.Volume{}
	}
	for _, v := range spec.Volumes {
		volumes[v.Name] = &v
		m.checkVolume(w, v)
	}
	m.checkGrace(w)
	for _, c := range spec.InitContainers {
		m.checkContainer(w, c, volumes, false)
	}
	for _, c := range spec.Containers {
		m.checkContainer(w, c, volumes, !w.job)
	}
}

func (m *manifests) checkVolume(w workload, v corev1.Volume) {
	switch {
	case v.Secret != nil:
		m.needKeys(w, "Secret/"+v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
		if mode := v.Secret.DefaultMode; mode == nil || *mode&0o007 != 0 {
			m.fault("%s: all users can read the secret %s: want defaultMode 0440", w.id, v.Name)
		}
	case v.ConfigMap != nil:
		m.needConfig(w, v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		m.mustExist(w.id, "PersistentVolumeClaim/"+v.PersistentVolumeClaim.ClaimName)
	case v.HostPath != nil:
		m.fault("%s: the volume %s is a hostPath", w.id, v.Name)
	case v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil:
		m.fault("%s: the volume %s has no limit", w.id, v.Name)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				m.needKeys(w, "Secret/"+s.Secret.Name, s.Secret.Items, s.Secret.Optional)
			}
			if s.ConfigMap != nil {
				m.needConfig(w, s.ConfigMap.Name)
			}
		}
	}
}

// needKeys checks that an object has the keys that a volume selects. Base contains no
// secrets and leaves some configuration to overlays.
func (m *manifests) needKeys(w workload, id string, items []corev1.KeyToPath, optional *bool) {
	if optional != nil && *optional {
		return
	}
	if !m.ids[id] {
		if m.scope.secrets {
			m.mustExist(w.id, id)
		}
		return
	}
	for _, i := range items {
		if !m.open[id] && !slices.Contains(m.keys[id], i.Key) {
			m.fault("%s needs the key %s of %s, which does not exist", w.id, i.Key, id)
		}
	}
}

// needConfig checks that the name of a ConfigMap contains a hash of its content. Without
// one, pods would not be restarted when only the content changes.
func (m *manifests) needConfig(w workload, name string) {
	id := "ConfigMap/" + name
	m.needKeys(w, id, nil, nil)
	if m.ids[id] && !hashed.MatchString(name) {
		m.fault("%s reads %s, whose name has no hash: a change would not roll the pods", w.id, id)
	}
}

// served reports whether a Service selects a workload's pods.
func (m *manifests) served(w workload) bool {
	return slices.ContainsFunc(m.services, func(s corev1.Service) bool {
		return len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.pod.Labels))
	})
}

func (m *manifests) mustExist(who, id string) {
	if !m.ids[id] {
		m.fault("%s needs %s, which does not exist", who, id)
	}
}

// checkGrace checks that the grace period of the pod is long enough for a drain.
func (m *manifests) checkGrace(w workload) {
	if w.job {
		return
	}
	grace := 30 * time.Second
	if g := w.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	for _, c := range w.pod.Spec.Containers {
		need := time.Duration(0)
		if l := c.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
			need = time.Duration(l.PreStop.Sleep.Seconds) * time.Second
		}
		switch c.Name {
		case "service":
			drain := m.words.defaults["ANIMA_DRAIN"]
			for _, e := range c.Env {
				if e.Name == "ANIMA_DRAIN" {
					drain = e.Value
				}
			}
			d, err := time.ParseDuration(drain)
			if err != nil {
				m.fault("%s: ANIMA_DRAIN is %q", w.id, drain)
			}
			need += d + flush
		case "nats":
			found := false
			for id, text := range m.config {
				if !strings.Contains(id, "nats") || !lameDuck.MatchString(text) {
					continue
				}
				found = true
				duck, err := time.ParseDuration(lameDuck.FindStringSubmatch(text)[1])
				if err != nil {
					m.fault("ConfigMap/%s: %v", id, err)
				}
				need += duck + 20*time.Second
				if g := graceDuck.FindStringSubmatch(text); g != nil {
					if d, err := time.ParseDuration(g[1]); err != nil || d >= duck {
						m.fault("ConfigMap/%s: lame_duck_grace_period is not shorter than lame_duck_duration", id)
					}
				}
			}
			if !found {
				m.fault("%s: no configuration sets lame_duck_duration", w.id)
			}
		}
		if grace <= need && need > 0 {
			m.fault("%s: terminationGracePeriodSeconds is %v, and %s may need %v to end", w.id, grace, c.Name, need)
		}
	}
}
