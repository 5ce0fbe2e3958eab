// Package netpol enforces the NetworkPolicies of Kubernetes for the pods of one node with
// nftables, because the bridge plugin of CNI, which the lab uses, ignores them. It must
// be used in the lab only.
//
// A policy applies to a direction of a pod, ingress or egress. Each direction with at
// least one policy gets a chain that accepts the allowed traffic and drops the rest.
// Packets of established connections pass, so a change of policies does not interrupt
// them. Traffic of the node itself (probes of kubelet) is not filtered.
//
// All packets of a pod are dropped until Attach has applied its rules. Only IPv4 is
// supported, as in the lab.
package netpol

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Table is the name of the nftables table that holds the rules.
const Table = "anima_netpol"

// State is the input for the rules of one node.
type State struct {
	Node       string       // node whose pods are protected
	Subnet     netip.Prefix // addresses of the node's pods
	Pods       []Pod        // of all nodes; those without an address are ignored
	Namespaces []Namespace
	Policies   []Policy
}

// Rules returns the rules of a state as a script for nft -f, which replaces the whole
// table. The same state gives the same text.
func Rules(s State) string {
	w := world{labels: map[string]map[string]string{}}
	for _, n := range s.Namespaces {
		w.labels[n.Metadata.Name] = n.Metadata.Labels
	}
	var local []Pod
	for _, p := range s.Pods {
		if _, err := netip.ParseAddr(p.Status.PodIP); err != nil || p.Spec.HostNetwork ||
			p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		w.pods = append(w.pods, p)
		if p.Spec.NodeName == s.Node {
			local = append(local, p)
		}
	}
	slices.SortFunc(w.pods, func(a, b Pod) int { return strings.Compare(a.Key(), b.Key()) })
	slices.SortFunc(local, func(a, b Pod) int { return strings.Compare(a.Key(), b.Key()) })

	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {}\ndelete table inet %s\ntable inet %s {\n", Table, Table, Table)
	b.WriteString("  counter denied_ingress {}\n  counter denied_egress {}\n  counter unknown {}\n")
	known := make([]string, 0, len(local))
	jumps := map[bool][]string{}
	for _, p := range local {
		known = append(known, p.Status.PodIP)
		for _, ingress := range []bool{true, false} {
			lines, ruled := w.allowed(p, s.Policies, ingress)
			if !ruled {
				continue
			}
			side := direction(ingress)
			chain := side + "_" + strings.ReplaceAll(p.Status.PodIP, ".", "_")
			jumps[ingress] = append(jumps[ingress], p.Status.PodIP+" : goto "+chain)
			fmt.Fprintf(&b, "  chain %s { # %s\n", chain, p.Key())
			for _, l := range lines {
				fmt.Fprintf(&b, "    %s accept\n", l)
			}
			fmt.Fprintf(&b, "    counter name denied_%s drop\n  }\n", side)
		}
	}
	// Egress of the sender is checked before ingress of the receiver, in two base chains,
	// because an accept ends only the chain's own hook.
	for i, ingress := range []bool{false, true} {
		addr := "saddr"
		if ingress {
			addr = "daddr"
		}
		fmt.Fprintf(&b, "  chain %s {\n    type filter hook forward priority %d; policy accept;\n", direction(ingress), -10+5*i)
		b.WriteString("    ct state established,related accept\n")
		if len(jumps[ingress]) > 0 {
			fmt.Fprintf(&b, "    ip %s vmap %s\n", addr, set(jumps[ingress]))
		}
		if len(known) > 0 {
			fmt.Fprintf(&b, "    ip %s %s accept\n", addr, set(known))
		}
		// Packets from an unknown pod are dropped. Packets to a pod that has ended are
		// rejected, so that the sender gets an error at once.
		verdict := "drop"
		if ingress {
			verdict = "reject with icmpx type host-unreachable"
		}
		fmt.Fprintf(&b, "    ip %s %s counter name unknown %s\n  }\n", addr, s.Subnet, verdict)
	}
	b.WriteString("}\n")
	return b.String()
}

func direction(ingress bool) string {
	if ingress {
		return "ingress"
	}
	return "egress"
}

// world holds the pods and namespaces that a peer may select.
type world struct {
	pods   []Pod
	labels map[string]map[string]string // of namespaces
}

// allowed returns the traffic that policies allow in one direction of the pod, as matches
// of nftables, and whether any policy applies to that direction.
func (w world) allowed(pod Pod, policies []Policy, ingress bool) (lines []string, ruled bool) {
	for _, q := range policies {
		in, out := q.types()
		if q.Metadata.Namespace != pod.Metadata.Namespace || !q.Spec.PodSelector.Matches(pod.Metadata.Labels) || ingress && !in || !ingress && !out {
			continue
		}
		ruled = true
		if ingress {
			for _, r := range q.Spec.Ingress {
				lines = append(lines, w.ingress(pod, r)...)
			}
		} else {
			for _, r := range q.Spec.Egress {
				lines = append(lines, w.egress(pod.Metadata.Namespace, r)...)
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), ruled
}

// ingress returns the matches of an ingress rule. Named ports are those of the pod
// itself, the same for every peer.
func (w world) ingress(pod Pod, r Rule) []string {
	ports := portMatches(r.Ports, &pod)
	if len(r.From) == 0 {
		return ports
	}
	pods, blocks := w.peers(r.From, pod.Metadata.Namespace)
	var lines []string
	for _, port := range ports {
		for _, b := range blocks {
			lines = append(lines, join(b.match("saddr"), port))
		}
		if len(pods) > 0 {
			lines = append(lines, join("ip saddr "+set(addresses(pods)), port))
		}
	}
	return lines
}

// egress returns the matches of an egress rule. A named port is a port of the peer, so
// peers are grouped by its number.
func (w world) egress(namespace string, r Rule) []string {
	var lines []string
	pods, blocks := w.peers(r.To, namespace)
	plain := portMatches(r.Ports, nil)
	if len(r.To) == 0 {
		lines = append(lines, plain...)
		pods = w.pods // for named ports only
		if len(plain) == 1 && plain[0] == anyPort {
			return lines
		}
	}
	for _, port := range plain {
		for _, b := range blocks {
			lines = append(lines, join(b.match("daddr"), port))
		}
	}
	groups := map[string][]Pod{}
	for _, p := range pods {
		for _, port := range portMatches(r.Ports, &p) {
			groups[port] = append(groups[port], p)
		}
	}
	for _, port := range slices.Sorted(maps.Keys(groups)) {
		if len(r.To) == 0 && slices.Contains(plain, port) {
			continue
		}
		lines = append(lines, join("ip daddr "+set(addresses(groups[port])), port))
	}
	return lines
}

// block is a parsed ipBlock.
type block struct {
	cidr   netip.Prefix
	except []string
}

func (b block) match(addr string) string {
	m := fmt.Sprintf("ip %s %s", addr, b.cidr)
	if len(b.except) > 0 {
		m += fmt.Sprintf(" ip %s != %s", addr, set(b.except))
	}
	return m
}

// peers resolves the entries of from or to. An ipBlock with IPv6 addresses selects
// nothing.
func (w world) peers(ps []Peer, namespace string) (pods []Pod, blocks []block) {
	for _, p := range w.pods {
		if slices.ContainsFunc(ps, func(x Peer) bool { return w.chooses(x, p, namespace) }) {
			pods = append(pods, p)
		}
	}
	for _, x := range ps {
		if x.IPBlock == nil {
			continue
		}
		cidr, err := netip.ParsePrefix(x.IPBlock.CIDR)
		if err != nil || !cidr.Addr().Is4() {
			continue
		}
		b := block{cidr: cidr.Masked()}
		for _, e := range x.IPBlock.Except {
			if not, err := netip.ParsePrefix(e); err == nil && not.Addr().Is4() {
				b.except = append(b.except, not.Masked().String())
			}
		}
		blocks = append(blocks, b)
	}
	return pods, blocks
}

func (w world) chooses(x Peer, p Pod, namespace string) bool {
	switch {
	case x.IPBlock != nil || x.PodSelector == nil && x.NamespaceSelector == nil:
		return false
	case x.NamespaceSelector == nil && p.Metadata.Namespace != namespace:
		return false
	case x.NamespaceSelector != nil && !x.NamespaceSelector.Matches(w.labels[p.Metadata.Namespace]):
		return false
	}
	return x.PodSelector == nil || x.PodSelector.Matches(p.Metadata.Labels)
}

// anyPort is the match of a rule without ports.
const anyPort = ""

// portMatches returns ports as matches, at most one with and one without numbers for each
// protocol. Names are those of the pod's ports. An unknown name allows nothing, and
// neither does any name if pod is nil.
func portMatches(ports []Port, pod *Pod) []string {
	if len(ports) == 0 {
		return []string{anyPort}
	}
	numbers := map[string][]string{}
	var out []string
	for _, p := range ports {
		proto := strings.ToLower(cmp.Or(p.Protocol, "TCP"))
		if proto != "tcp" && proto != "udp" && proto != "sctp" {
			continue
		}
		if p.Port == nil {
			out = append(out, "meta l4proto "+proto)
			continue
		}
		n := p.Port.Int
		if p.Port.Name != "" {
			if pod == nil {
				continue
			}
			n = pod.port(p.Port.Name, strings.ToUpper(proto))
		}
		switch {
		case n < 1 || n > 65535:
		case p.EndPort > n && p.EndPort <= 65535:
			numbers[proto] = append(numbers[proto], fmt.Sprintf("%d-%d", n, p.EndPort))
		default:
			numbers[proto] = append(numbers[proto], fmt.Sprint(n))
		}
	}
	for proto, ns := range numbers {
		out = append(out, proto+" dport "+set(ns))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func addresses(pods []Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Status.PodIP)
	}
	return out
}

// set returns an anonymous set without duplicates, which nftables refuses in a map.
func set(elements []string) string {
	es := slices.Clone(elements)
	slices.Sort(es)
	return "{ " + strings.Join(slices.Compact(es), ", ") + " }"
}

func join(a, b string) string { return strings.TrimSpace(a + " " + b) }
