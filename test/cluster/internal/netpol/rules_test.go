package netpol

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// pods are the pods of the tests: web and db in shop, dns in kube-system, scraper in a
// labelled namespace, and one pod of each kind that is ignored.
const pods = `[
 {"metadata":{"namespace":"shop","name":"web","labels":{"app":"web","tier":"front"}},"spec":{"nodeName":"n1","containers":[{"ports":[{"name":"http","containerPort":8080}]}]},"status":{"phase":"Running","podIP":"10.1.0.2"}},
 {"metadata":{"namespace":"shop","name":"db","labels":{"app":"db"}},"spec":{"nodeName":"n2","initContainers":[{"ports":[{"name":"sidecar","containerPort":7000}]}],"containers":[{"ports":[{"name":"sql","containerPort":5432},{"name":"syslog","containerPort":514,"protocol":"UDP"}]}]},"status":{"phase":"Running","podIP":"10.2.0.2"}},
 {"metadata":{"namespace":"shop","name":"db2","labels":{"app":"db"}},"spec":{"nodeName":"n2","containers":[{"ports":[{"name":"sql","containerPort":5433}]}]},"status":{"phase":"Running","podIP":"10.2.0.3"}},
 {"metadata":{"namespace":"kube-system","name":"dns","labels":{"k8s-app":"kube-dns"}},"spec":{"nodeName":"n2"},"status":{"phase":"Running","podIP":"10.2.0.4"}},
 {"metadata":{"namespace":"mon","name":"scraper","labels":{"app":"scraper"}},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIP":"10.1.0.3"}},
 {"metadata":{"namespace":"shop","name":"done","labels":{"app":"web"}},"spec":{"nodeName":"n1"},"status":{"phase":"Succeeded","podIP":"10.1.0.2"}},
 {"metadata":{"namespace":"shop","name":"new","labels":{"app":"web"}},"spec":{"nodeName":"n1"},"status":{"phase":"Pending"}},
 {"metadata":{"namespace":"shop","name":"host","labels":{"app":"web"}},"spec":{"nodeName":"n1","hostNetwork":true},"status":{"phase":"Running","podIP":"10.99.0.11"}}]`

const namespaces = `[{"metadata":{"name":"shop"}},{"metadata":{"name":"mon","labels":{"team":"ops"}}},{"metadata":{"name":"kube-system","labels":{"kubernetes.io/metadata.name":"kube-system"}}}]`

// rules returns the rules of node n1 (pods web and scraper) for policies with the given
// specs, all in the namespace shop.
func rules(t *testing.T, specs ...string) string {
	t.Helper()
	s := State{Node: "n1", Subnet: netip.MustParsePrefix("10.1.0.0/24")}
	for text, into := range map[string]any{pods: &s.Pods, namespaces: &s.Namespaces} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	for _, spec := range specs {
		var p Policy
		if err := json.Unmarshal([]byte(`{"metadata":{"namespace":"shop","name":"p"},"spec":`+spec+`}`), &p); err != nil {
			t.Fatal(err)
		}
		s.Policies = append(s.Policies, p)
	}
	return Rules(s)
}

// chain returns the lines of one chain without those that every chain has, and whether
// the chain exists.
func chain(text, name string) ([]string, bool) {
	_, rest, ok := strings.Cut(text, "  chain "+name+" {")
	if !ok {
		return nil, false
	}
	body, _, _ := strings.Cut(rest, "\n  }")
	var out []string
	for _, l := range strings.Split(body, "\n")[1:] {
		if l = strings.TrimSpace(l); l != "counter name denied_ingress drop" && l != "counter name denied_egress drop" {
			out = append(out, l)
		}
	}
	return out, true
}

const (
	in  = "ingress_10_1_0_2"
	out = "egress_10_1_0_2"
)

func TestRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec  string // of one policy
		chain string
		want  []string // accepted matches; "-" means that no policy applies to the direction
	}{
		"deny all in":                  {`{"podSelector":{},"policyTypes":["Ingress"]}`, in, nil},
		"deny all in leaves out":       {`{"podSelector":{},"policyTypes":["Ingress"]}`, out, []string{"-"}},
		"deny all out":                 {`{"podSelector":{},"policyTypes":["Egress"]}`, out, nil},
		"deny all out leaves in":       {`{"podSelector":{},"policyTypes":["Egress"]}`, in, []string{"-"}},
		"no types is ingress":          {`{"podSelector":{}}`, in, nil},
		"no types with egress is both": {`{"podSelector":{},"egress":[{}]}`, out, []string{"accept"}},
		"no types without egress":      {`{"podSelector":{}}`, out, []string{"-"}},
		"other pods":                   {`{"podSelector":{"matchLabels":{"app":"db"}}}`, in, []string{"-"}},
		"allow all":                    {`{"podSelector":{},"ingress":[{}]}`, in, []string{"accept"}},
		"pods of the namespace":        {`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}]}]}`, in, []string{"ip saddr { 10.2.0.2, 10.2.0.3 } accept"}},
		"pods of other namespaces too": {`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"scraper"}}}]}]}`, in, nil},
		"namespace":                    {`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"ops"}}}]}]}`, in, []string{"ip saddr { 10.1.0.3 } accept"}},
		"all namespaces":               {`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}}]}]}`, in, []string{"ip saddr { 10.1.0.2, 10.1.0.3, 10.2.0.2, 10.2.0.3, 10.2.0.4 } accept"}},
		"namespace and pod":            {`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"k8s-app":"kube-dns"}}}]}]}`, in, []string{"ip saddr { 10.2.0.4 } accept"}},
		"namespace or pod":             {`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"ops"}}},{"podSelector":{"matchLabels":{"app":"db"}}}]}]}`, in, []string{"ip saddr { 10.1.0.3, 10.2.0.2, 10.2.0.3 } accept"}},
		"no pod is selected":           {`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"none"}}}]}]}`, in, nil},
		"In and NotIn":                 {`{"podSelector":{"matchExpressions":[{"key":"app","operator":"In","values":["web","x"]},{"key":"tier","operator":"NotIn","values":["back"]}]},"ingress":[{}]}`, in, []string{"accept"}},
		"Exists":                       {`{"podSelector":{"matchExpressions":[{"key":"tier","operator":"Exists"}]},"ingress":[{}]}`, in, []string{"accept"}},
		"DoesNotExist":                 {`{"podSelector":{"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]},"ingress":[{}]}`, in, []string{"-"}},
		"unknown operator":             {`{"podSelector":{"matchExpressions":[{"key":"tier","operator":"Like"}]},"ingress":[{}]}`, in, []string{"-"}},
		"port is TCP":                  {`{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`, in, []string{"tcp dport { 80 } accept"}},
		"ports and protocols":          {`{"podSelector":{},"ingress":[{"ports":[{"port":53,"protocol":"UDP"},{"port":53,"protocol":"TCP"},{"port":54}]}]}`, in, []string{"tcp dport { 53, 54 } accept", "udp dport { 53 } accept"}},
		"protocol alone":               {`{"podSelector":{},"ingress":[{"ports":[{"protocol":"UDP"}]}]}`, in, []string{"meta l4proto udp accept"}},
		"endPort":                      {`{"podSelector":{},"ingress":[{"ports":[{"port":6000,"endPort":6010}]}]}`, in, []string{"tcp dport { 6000-6010 } accept"}},
		"own named port":               {`{"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}],"ports":[{"port":"http"}]}]}`, in, []string{"ip saddr { 10.2.0.2, 10.2.0.3 } tcp dport { 8080 } accept"}},
		"named port that is not there": {`{"podSelector":{},"ingress":[{"ports":[{"port":"nope"}]}]}`, in, nil},
		"named port, other protocol":   {`{"podSelector":{},"ingress":[{"ports":[{"port":"http","protocol":"UDP"}]}]}`, in, nil},
		"ipBlock":                      {`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.5/8"}}],"ports":[{"port":80}]}]}`, in, []string{"ip saddr 10.0.0.0/8 tcp dport { 80 } accept"}},
		"ipBlock with except":          {`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.1.0.0/16","10.2.0.0/16"]}}]}]}`, in, []string{"ip saddr 0.0.0.0/0 ip saddr != { 10.1.0.0/16, 10.2.0.0/16 } accept"}},
		"ipBlock of IPv6":              {`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"fd00::/8"}}]}]}`, in, nil},
		"ipBlock that is none":         {`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"all; drop"}}]}]}`, in, nil},
		"egress by the peer's name":    {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{"matchLabels":{"app":"db"}}}],"ports":[{"port":"sql"}]}]}`, out, []string{"ip daddr { 10.2.0.2 } tcp dport { 5432 } accept", "ip daddr { 10.2.0.3 } tcp dport { 5433 } accept"}},
		"egress to a sidecar's name":   {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{}}],"ports":[{"port":"sidecar"}]}]}`, out, []string{"ip daddr { 10.2.0.2 } tcp dport { 7000 } accept"}},
		"egress by name to anyone":     {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":"syslog","protocol":"UDP"}]}]}`, out, []string{"ip daddr { 10.2.0.2 } udp dport { 514 } accept"}},
		"egress to a port of anyone":   {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"ports":[{"port":53,"protocol":"UDP"}]}]}`, out, []string{"udp dport { 53 } accept"}},
		"egress to anyone":             {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{}]}`, out, []string{"accept"}},
		"egress to a block by number":  {`{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"ipBlock":{"cidr":"169.254.20.10/32"}}],"ports":[{"port":53,"protocol":"UDP"},{"port":"sql"}]}]}`, out, []string{"ip daddr 169.254.20.10/32 udp dport { 53 } accept"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := chain(rules(t, c.spec), c.chain)
			if !ok {
				got = []string{"-"}
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestRulesAddUp checks that several policies allow the union of what each allows.
func TestRulesAddUp(t *testing.T) {
	t.Parallel()
	got, _ := chain(rules(t, `{"podSelector":{}}`, `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"ports":[{"port":80}]}]}`, `{"podSelector":{},"ingress":[{"ports":[{"port":80}]}]}`), in)
	if want := "tcp dport { 80 } accept"; strings.Join(got, "\n") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRulesOfTheHooks(t *testing.T) {
	t.Parallel()
	text := rules(t, `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{}]}`)
	for name, want := range map[string]string{
		// Policies apply to the ingress of web only; scraper is known; every other
		// address of the node has no rules yet.
		"ingress": `type filter hook forward priority -5; policy accept;
ct state established,related accept
ip daddr vmap { 10.1.0.2 : goto ingress_10_1_0_2 }
ip daddr { 10.1.0.2, 10.1.0.3 } accept
ip daddr 10.1.0.0/24 counter name unknown reject with icmpx type host-unreachable`,
		"egress": `type filter hook forward priority -10; policy accept;
ct state established,related accept
ip saddr { 10.1.0.2, 10.1.0.3 } accept
ip saddr 10.1.0.0/24 counter name unknown drop`,
	} {
		got, _ := chain(text, name)
		if strings.Join(got, "\n") != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), want)
		}
	}
	if again := rules(t, `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{}]}`); again != text {
		t.Error("the same state gave another text")
	}
}

// TestRulesAreUnderstood checks the rules with nft, which parses them without applying.
func TestRulesAreUnderstood(t *testing.T) {
	t.Parallel()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("NOT RUN: there is no nft here to read the rules; install nftables")
	}
	text := rules(t,
		`{"podSelector":{},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"namespaceSelector":{}},{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.1.0.0/16"]}}],"ports":[{"port":80},{"port":90,"endPort":99},{"protocol":"UDP"}]}],"egress":[{"ports":[{"port":"sql"}]},{}]}`)
	c := exec.CommandContext(t.Context(), nft, "-c", "-f", "-")
	c.Stdin = strings.NewReader(text)
	if msg, err := c.CombinedOutput(); err != nil {
		if strings.Contains(string(msg), "Operation not permitted") {
			t.Skip("NOT RUN: nft -c needs root")
		}
		t.Errorf("nft: %v\n%s\n%s", err, msg, text)
	}
}
