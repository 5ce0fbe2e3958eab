package main

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func (m *manifests) checkBudget(b policyv1.PodDisruptionBudget) {
	id := "PodDisruptionBudget/" + b.Name
	if b.Spec.MinAvailable != nil || b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 {
		m.fault("%s: want maxUnavailable 1 and nothing else", id)
	}
	if p := b.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow {
		m.fault("%s: pods that are not ready would block a drain: want AlwaysAllow", id)
	}
	if !slices.ContainsFunc(m.workloads, func(w workload) bool { return selects(b.Spec.Selector, w) }) {
		m.fault("%s is for no pods", id)
	}
}

// checkPolicy checks that every selector for this namespace selects pods, and that these
// have the ports that the policy names.
func (m *manifests) checkPolicy(p networkingv1.NetworkPolicy) {
	id := "NetworkPolicy/" + p.Name
	if len(p.Spec.PolicyTypes) == 0 {
		m.fault("%s has no policyTypes", id)
	}
	if m.foreign(p.Spec.PodSelector) {
		return
	}
	targets := m.selected(p.Spec.PodSelector)
	if len(targets) == 0 {
		m.fault("%s is for no pods", id)
	}
	for _, rule := range p.Spec.Ingress {
		for _, port := range rule.Ports {
			m.needPort(id, port, targets)
		}
		if len(rule.From) == 0 || len(rule.Ports) == 0 {
			m.fault("%s allows ingress from every source, or to every port", id)
		}
	}
	for _, rule := range p.Spec.Egress {
		if len(rule.To) == 0 || len(rule.Ports) == 0 {
			m.fault("%s allows egress to every destination, or to every port", id)
		}
		for _, to := range rule.To {
			if to.PodSelector == nil || to.NamespaceSelector != nil || m.foreign(*to.PodSelector) {
				continue
			}
			for _, port := range rule.Ports {
				if found := m.selected(*to.PodSelector); len(found) > 0 {
					m.needPort(id, port, found)
				}
			}
		}
	}
}

func (m *manifests) needPort(id string, port networkingv1.NetworkPolicyPort, pods []workload) {
	if port.Port == nil {
		return
	}
	if !slices.ContainsFunc(pods, func(w workload) bool { return hasPort(w.pod.Spec, *port.Port) }) {
		m.fault("%s has a rule for the port %s, which none of its pods has", id, port.Port)
	}
}

func (m *manifests) selected(s metav1.LabelSelector) []workload {
	var found []workload
	for _, w := range m.workloads {
		if selects(&s, w) {
			found = append(found, w)
		}
	}
	return found
}

// foreign reports whether a selector is for pods that an operator creates.
func (m *manifests) foreign(s metav1.LabelSelector) bool {
	for _, c := range m.custom {
		switch {
		case c.GetKind() == "Cluster" && s.MatchLabels["cnpg.io/cluster"] == c.GetName(),
			c.GetKind() == "Pooler" && s.MatchLabels["cnpg.io/poolerName"] == c.GetName():
			return true
		}
	}
	return false
}

// checkService checks that the service selects pods with its ports.
func (m *manifests) checkService(s corev1.Service) {
	id := "Service/" + s.Name
	if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		m.fault("%s opens a port of nodes: use a gateway", id)
	}
	if m.foreign(metav1.LabelSelector{MatchLabels: s.Spec.Selector}) {
		return
	}
	var pods []workload
	if len(s.Spec.Selector) > 0 {
		pods = m.selected(metav1.LabelSelector{MatchLabels: s.Spec.Selector})
	}
	if len(pods) == 0 {
		m.fault("%s has no pods", id)
	}
	for _, w := range pods {
		for _, p := range s.Spec.Ports {
			target := p.TargetPort
			if target == (intstr.IntOrString{}) {
				target = intstr.FromInt32(p.Port)
			}
			if !hasPort(w.pod.Spec, target) {
				m.fault("%s: %s has no port %s", id, w.id, target.String())
			}
		}
	}
}
