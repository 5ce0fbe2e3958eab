package netpol

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Meta is the metadata of an object of Kubernetes.
type Meta struct {
	Namespace string
	Name      string
	Labels    map[string]string
}

// Pod has the fields of a pod that determine its traffic.
type Pod struct {
	Metadata Meta
	Spec     struct {
		NodeName       string
		HostNetwork    bool
		InitContainers []Container
		Containers     []Container
	}
	Status struct {
		Phase string
		PodIP string
	}
}

// Container has the ports of a container, which give them names.
type Container struct {
	Ports []struct {
		Name          string
		ContainerPort int
		Protocol      string
	}
}

// Namespace has the labels that a namespaceSelector matches.
type Namespace struct{ Metadata Meta }

// Policy is a NetworkPolicy of networking.k8s.io/v1.
type Policy struct {
	Metadata Meta
	Spec     struct {
		PodSelector Selector
		PolicyTypes []string
		Ingress     []Rule
		Egress      []Rule
	}
}

// Rule is one entry of ingress (From) or egress (To).
type Rule struct {
	From  []Peer
	To    []Peer
	Ports []Port
}

// Peer is one entry of from or to.
type Peer struct {
	PodSelector       *Selector
	NamespaceSelector *Selector
	IPBlock           *struct {
		CIDR   string
		Except []string
	}
}

// Port is one entry of ports. The zero value means every port of TCP.
type Port struct {
	Protocol string
	Port     *IntOrString
	EndPort  int
}

// IntOrString is a port number, or the name of a container's port.
type IntOrString struct {
	Int  int
	Name string
}

// UnmarshalJSON decodes a number or a string.
func (p *IntOrString) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &p.Int) == nil {
		return nil
	}
	return json.Unmarshal(b, &p.Name)
}

// Selector selects objects by labels. The zero value selects all objects.
type Selector struct {
	MatchLabels      map[string]string
	MatchExpressions []struct {
		Key      string
		Operator string
		Values   []string
	}
}

// Matches reports whether the labels are selected. An unknown operator selects nothing.
func (s Selector) Matches(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, has := labels[e.Key]
		in := has && slices.Contains(e.Values, v)
		ok := false
		switch e.Operator {
		case "In":
			ok = in
		case "NotIn":
			ok = !in
		case "Exists":
			ok = has
		case "DoesNotExist":
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// Key implements kube.Object.
func (p Pod) Key() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// Key implements kube.Object.
func (n Namespace) Key() string { return n.Metadata.Name }

// Key implements kube.Object.
func (p Policy) Key() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// port returns the number of a named port of the pod, or 0.
func (p Pod) port(name, protocol string) int {
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		for _, q := range c.Ports {
			if q.Name == name && cmp.Or(q.Protocol, "TCP") == protocol {
				return q.ContainerPort
			}
		}
	}
	return 0
}

// types reports the directions that the policy applies to.
func (p Policy) types() (ingress, egress bool) {
	if len(p.Spec.PolicyTypes) == 0 {
		return true, len(p.Spec.Egress) > 0
	}
	return slices.Contains(p.Spec.PolicyTypes, "Ingress"), slices.Contains(p.Spec.PolicyTypes, "Egress")
}
