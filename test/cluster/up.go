package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/anima-run/anima/test/cluster/internal/netns"
	"github.com/anima-run/anima/test/cluster/internal/pki"
)

//go:embed addons/*.yaml
var addons embed.FS

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// up starts the cluster. It keeps running processes, so it can also add nodes to a lab or
// update its images.
func (l *lab) up(ctx context.Context, nodes int, wipe, keda bool) error {
	if err := check(ctx, nodes); err != nil {
		return err
	}
	s := newSteps()
	if wipe {
		if err := l.down(ctx, true); err != nil {
			return err
		}
	}
	groups := []string{"core", "addons"}
	if nodes == 0 {
		groups = groups[:1]
	}
	if keda {
		groups = append(groups, "keda")
	}
	if err := build(ctx, groups); err != nil {
		return err
	}
	if err := l.prepare(nodes); err != nil {
		return err
	}
	s.done("programs, certificates")
	if err := l.network(ctx); err != nil {
		return err
	}
	if nodes > 0 {
		if err := l.startOutside(ctx); err != nil {
			return err
		}
	}
	s.done("network of %d nodes", nodes)
	if err := l.controlPlane(ctx); err != nil {
		return err
	}
	s.done("API server ready")
	for n := 1; n <= nodes; n++ {
		if err := l.startNode(ctx, n); err != nil {
			return err
		}
	}
	if err := l.applyAddons(ctx); err != nil {
		return err
	}
	s.done("nodes started, add-ons applied")
	if nodes == 0 {
		fmt.Println("control plane only: use kubectl apply --server-side --dry-run=server")
		return nil
	}
	if err := l.ready(ctx, s); err != nil {
		return err
	}
	if keda {
		return l.keda(ctx)
	}
	return nil
}

// prepare creates the folders, the configuration and the certificates.
func (l *lab) prepare(nodes int) error {
	for _, d := range []string{"bin", "conf", "run", "log", "etcd", "nodes", "images"} {
		if err := os.MkdirAll(l.path(d), 0o755); err != nil {
			return err
		}
	}
	for _, v := range l.volumes() {
		if err := os.MkdirAll(v.Path, 0o755); err != nil {
			return err
		}
	}
	api, err := programs("core")[0].path()
	if err != nil {
		return err
	}
	if err := l.copySelf(); err != nil {
		return err
	}
	// Existing nodes are kept, also if a smaller number is requested.
	l.Nodes, l.Bin, l.Images = max(nodes, l.Nodes), filepath.Dir(api), builtImages(l.hasKeda())
	if err := l.save(); err != nil {
		return err
	}
	return l.certificates()
}

// hasKeda reports whether KEDA was installed in this lab.
func (l *lab) hasKeda() bool {
	_, ok := l.Images[registry+"keda:"+kedaVersion]
	return ok
}

// copySelf copies this program to the folder that the nodes use.
func (l *lab) copySelf() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if self == l.self() {
		return nil
	}
	return copyFile(l.self(), self, 0o755)
}

func (l *lab) certificates() error {
	d := l.pki()
	for ca, cn := range map[string]string{"ca": labName + "-ca", "front-proxy-ca": "front-proxy-ca"} {
		if err := d.CA(ca, cn); err != nil {
			return err
		}
	}
	if err := d.KeyPair("sa"); err != nil {
		return err
	}
	certs := []pki.Cert{
		{
			File: "apiserver", CN: "kube-apiserver", IPs: []string{"127.0.0.1", apiIP, serviceIP},
			DNS: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		},
		{File: "apiserver-kubelet", CN: "kube-apiserver-kubelet-client", Org: "system:masters"},
		{File: "admin", CN: "admin", Org: "system:masters"},
		{File: "kube-controller-manager", CN: "system:kube-controller-manager"},
		{File: "kube-scheduler", CN: "system:kube-scheduler"},
		{File: "kube-proxy", CN: "system:kube-proxy"},
	}
	for n := 1; n <= l.Nodes; n++ {
		certs = append(certs, pki.Cert{File: nodeName(n), CN: "system:node:" + nodeName(n), Org: "system:nodes", DNS: []string{nodeName(n)}, IPs: []string{nodeIP(n)}})
	}
	for i, c := range certs {
		if err := d.Issue("ca", c); err != nil {
			return err
		}
		if i < 2 { // the API server's own certificates need no kubeconfig
			continue
		}
		if err := d.Kubeconfig(l.kubeconfig(c.File), apiServer, "ca", c.File); err != nil {
			return err
		}
	}
	return d.Issue("front-proxy-ca", pki.Cert{File: "front-proxy", CN: "front-proxy-client"})
}

// network creates the namespaces: one with a bridge for the control plane, and one for
// each node. None of their links, addresses or routes leads to another network.
func (l *lab) network(ctx context.Context) error {
	batch := func(ns string, lines ...string) error {
		argv := []string{"ip"}
		if ns != "" {
			argv = append(argv, "-n", ns)
		}
		for _, line := range lines {
			if _, err := command(ctx, append(slices.Clone(argv), strings.Fields(line)...)...); err != nil {
				return err
			}
		}
		return nil
	}
	if !netns.Exists(labName) {
		if err := batch("", "netns add "+labName); err != nil {
			return err
		}
		if err := batch(labName, "link set lo up", "link add br0 type bridge", "addr add "+apiIP+"/16 dev br0", "link set br0 up"); err != nil {
			return err
		}
		err := netns.Do(labName, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
		if err != nil {
			return err
		}
	}
	for n := 1; n <= l.Nodes; n++ {
		ns, v := nodeNetns(n), fmt.Sprintf("v%d", n)
		if netns.Exists(ns) {
			continue
		}
		if err := batch("", "netns add "+ns); err != nil {
			return err
		}
		if err := batch(ns, "link set lo up", fmt.Sprintf("link add eth0 type veth peer name %s netns %s", v, labName),
			"addr add "+nodeIP(n)+"/16 dev eth0", "link set eth0 up", "route add default via "+apiIP); err != nil {
			return err
		}
		if err := batch(labName, "link set "+v+" master br0 up", fmt.Sprintf("route add %s via %s", nodeSubnet(n), nodeIP(n))); err != nil {
			return err
		}
	}
	for a := 1; a <= l.Nodes; a++ {
		for b := 1; b <= l.Nodes; b++ {
			if a == b {
				continue
			}
			if err := batch(nodeNetns(a), fmt.Sprintf("route replace %s via %s", nodeSubnet(b), nodeIP(b))); err != nil {
				return err
			}
		}
	}
	return nil
}

// controlPlane starts etcd, the API server, the controllers and the scheduler.
func (l *lab) controlPlane(ctx context.Context) error {
	p := l.pki()
	start := func(name string, env []string, args ...string) error {
		for _, b := range programs("core") {
			if b.name == name {
				path, err := b.path()
				if err != nil {
					return err
				}
				return l.start(daemon{name: name, netns: labName, argv: append([]string{path}, args...), env: env})
			}
		}
		return fmt.Errorf("there is no program %s", name)
	}
	// The data of the lab need not survive a crash of the machine, so etcd does not sync.
	err := start("etcd", []string{"GOGC=50"}, "--data-dir="+l.path("etcd"), "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380",
		"--unsafe-no-fsync", "--auto-compaction-retention=10m", "--log-level=warn")
	if err != nil {
		return err
	}
	err = start("kube-apiserver", []string{"GOGC=75"}, "--advertise-address="+apiIP, "--secure-port=6443", "--etcd-servers=http://127.0.0.1:2379",
		"--service-cluster-ip-range="+services, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--client-ca-file="+p.Path("ca.crt"), "--tls-cert-file="+p.Path("apiserver.crt"), "--tls-private-key-file="+p.Path("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file="+p.Path("sa.pub"), "--service-account-signing-key-file="+p.Path("sa.key"),
		"--kubelet-client-certificate="+p.Path("apiserver-kubelet.crt"), "--kubelet-client-key="+p.Path("apiserver-kubelet.key"),
		"--kubelet-certificate-authority="+p.Path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file="+p.Path("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+p.Path("front-proxy.crt"), "--proxy-client-key-file="+p.Path("front-proxy.key"), "--enable-aggregator-routing=true", "--event-ttl=1h", "--v=1")
	if err != nil {
		return err
	}
	api, err := l.api(labName)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the API server is not ready; see "+l.path("log", "kube-apiserver.log")))
	defer cancel()
	err = poll(ctx, 100*time.Millisecond, func() error {
		for _, name := range []string{"etcd", "kube-apiserver"} {
			if _, alive := l.procs().Get(name); !alive {
				cancel()
				return fmt.Errorf("%s ended; see %s", name, l.path("log", name+".log"))
			}
		}
		return api.Get(ctx, "/readyz", nil)
	})
	if err != nil {
		return err
	}
	conf := func(name string) []string {
		c := l.kubeconfig(name)
		return []string{"--kubeconfig=" + c, "--authentication-kubeconfig=" + c, "--authorization-kubeconfig=" + c, "--leader-elect=false", "--v=1"}
	}
	// A lost node is detected within 20 s instead of 50 s, which shortens the drills.
	err = start("kube-controller-manager", nil, append(conf("kube-controller-manager"),
		"--use-service-account-credentials=true", "--root-ca-file="+p.Path("ca.crt"), "--service-account-private-key-file="+p.Path("sa.key"),
		"--cluster-signing-cert-file="+p.Path("ca.crt"), "--cluster-signing-key-file="+p.Path("ca.key"), "--requestheader-client-ca-file="+p.Path("front-proxy-ca.crt"),
		"--node-monitor-grace-period=16s", "--node-monitor-period=2s",
		"--horizontal-pod-autoscaler-sync-period=5s", "--horizontal-pod-autoscaler-initial-readiness-delay=5s")...)
	if err != nil {
		return err
	}
	return start("kube-scheduler", nil, conf("kube-scheduler")...)
}

// startNode starts process 1 of a node in new namespaces.
func (l *lab) startNode(ctx context.Context, n int) error {
	if _, alive := l.procs().Get(nodeName(n)); alive {
		return nil
	}
	// Groups of a previous process are removed: kubelet would wait 3 s for each of them.
	if err := cgroups.Remove(ctx, labName+"/"+nodeName(n), 10*time.Second); err != nil {
		return err
	}
	if err := cgroups.Make(labName + "/" + nodeName(n)); err != nil {
		return err
	}
	return l.start(daemon{
		name: nodeName(n), netns: nodeNetns(n), argv: []string{l.self(), "node-init", fmt.Sprint(n)},
		flags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWPID,
	})
}

// volume is one of the static volumes.
type volume struct {
	Number int
	Path   string
}

func (l *lab) volumes() []volume {
	var out []volume
	for i := 1; i <= volumes; i++ {
		out = append(out, volume{i, l.path("volumes", fmt.Sprint(i))})
	}
	return out
}

// addonData is the data for the templates of the add-ons.
type addonData struct {
	Nodes   int
	DNS     string
	Volumes []volume
}

// Image returns the tag of an image that is built here.
func (addonData) Image(name string) (string, error) {
	for _, r := range recipes("") {
		if r.name == name {
			return r.tag(), nil
		}
	}
	return "", fmt.Errorf("there is no image %q", name)
}

func (l *lab) applyAddons(ctx context.Context) error {
	t, err := template.ParseFS(addons, "addons/*.yaml")
	if err != nil {
		return err
	}
	var all bytes.Buffer
	for _, f := range t.Templates() {
		if err := f.Execute(&all, addonData{Nodes: l.Nodes, DNS: dnsIP, Volumes: l.volumes()}); err != nil {
			return err
		}
		all.WriteString("\n---\n")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = l.kubectl(ctx, all.Bytes(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// ready waits until all nodes are ready, with DNS, metrics and all images.
func (l *lab) ready(ctx context.Context, s *steps) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("not ready after 5 minutes; see "+l.path("log")))
	defer cancel()
	api, err := l.api(labName)
	if err != nil {
		return err
	}
	err = poll(ctx, 200*time.Millisecond, func() error {
		for n := 1; n <= l.Nodes; n++ {
			if _, alive := l.procs().Get(nodeName(n)); !alive {
				cancel()
				return fmt.Errorf("%s ended; see %s", nodeName(n), l.path("log", nodeName(n)+".log"))
			}
			if ok, err := nodeReady(ctx, api, n); err != nil {
				return err
			} else if !ok {
				return errors.New(nodeName(n) + " is not ready")
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.done("%d nodes ready", l.Nodes)
	// Nodes that were running before do not have newer images.
	if err := l.importEverywhere(ctx); err != nil {
		return err
	}
	s.done("images on every node")
	for _, d := range []string{"coredns", "metrics-server"} {
		if _, err := l.kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "deployment/"+d, "--timeout=180s"); err != nil {
			return err
		}
	}
	s.done("names and metrics-server ready")
	err = poll(ctx, 500*time.Millisecond, func() error {
		var list struct{ Items []any }
		if err := api.Get(ctx, "/apis/metrics.k8s.io/v1beta1/nodes", &list); err != nil {
			return err
		}
		if len(list.Items) < l.Nodes {
			return fmt.Errorf("metrics of %d nodes, want %d", len(list.Items), l.Nodes)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.done("metrics of every node")
	return nil
}

// importEverywhere imports the missing images on every running node, from outside: a
// node's socket is accessible through the root of its process 1.
func (l *lab) importEverywhere(ctx context.Context) error {
	errs := make([]error, l.Nodes+1)
	var wg sync.WaitGroup
	for n := 1; n <= l.Nodes; n++ {
		r, alive := l.procs().Get(nodeName(n))
		if !alive {
			continue
		}
		wg.Go(func() {
			errs[n] = l.importMissing(ctx, n, fmt.Sprintf("/proc/%d/root%s", r.PID, containerdSocket))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// newImages imports the images that were built since the lab was started.
func (l *lab) newImages(ctx context.Context) error {
	if l.Images == nil {
		l.Images = map[string]string{}
	}
	maps.Copy(l.Images, builtImages(l.hasKeda()))
	if err := l.save(); err != nil {
		return err
	}
	return l.importEverywhere(ctx)
}

// load stores image archives with the lab and imports them on every running node. A node
// that starts later imports them, too.
func (l *lab) load(ctx context.Context, args []string) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	if l.Bin == "" {
		return errors.New("there is no lab; run up first")
	}
	s := newSteps()
	// Images that were built since the lab was started are imported, too.
	if err := l.newImages(ctx); err != nil {
		return err
	}
	name := ""
	var added []string
	for _, a := range args {
		st, err := os.Stat(a)
		if errors.Is(err, fs.ErrNotExist) && name == "" && strings.Contains(a, ":") {
			name = a
			continue
		}
		if err != nil {
			return err
		}
		if st.IsDir() {
			return fmt.Errorf("%s is a folder; load wants an archive (tar)", a)
		}
		base := filepath.Base(a)
		if name != "" {
			base = strings.NewReplacer("/", "_", ":", "_").Replace(name) + ".tar"
		}
		dst := l.path("images", base)
		if err := copyFile(dst, a, 0o644); err != nil {
			return err
		}
		side := strings.TrimSuffix(dst, ".tar") + ".name"
		if err := os.RemoveAll(side); err != nil {
			return err
		}
		if name != "" {
			if err := os.WriteFile(side, []byte(name+"\n"), 0o644); err != nil {
				return err
			}
		}
		name = ""
		added = append(added, dst, side)
	}
	if len(added) == 0 || name != "" {
		return errors.New("load wants [NAME:TAG] FILE.tar")
	}
	if err := l.importEverywhere(ctx); err != nil {
		for _, f := range added { // otherwise no later load would succeed
			_ = os.Remove(f)
		}
		return err
	}
	s.done("%d images on every node", len(added)/2)
	return nil
}

// pvPhase holds the fields of a volume that freeVolumes reads.
type pvPhase struct {
	Metadata struct{ Name string }
	Status   struct{ Phase string }
	Spec     struct{ Local struct{ Path string } }
}

// freeVolumes empties the volumes whose claim was deleted and makes them available again.
func (l *lab) freeVolumes(ctx context.Context) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	out, err := l.kubectl(ctx, nil, "get", "pv", "-o", "json")
	if err != nil {
		return err
	}
	var list struct{ Items []pvPhase }
	if err := json.Unmarshal(out, &list); err != nil {
		return err
	}
	freed := 0
	for _, pv := range list.Items {
		if pv.Status.Phase != "Released" || filepath.Dir(pv.Spec.Local.Path) != l.path("volumes") {
			continue
		}
		if _, err := l.kubectl(ctx, nil, "delete", "pv", pv.Metadata.Name); err != nil {
			return err
		}
		if err := os.RemoveAll(pv.Spec.Local.Path); err != nil {
			return err
		}
		if err := os.MkdirAll(pv.Spec.Local.Path, 0o755); err != nil {
			return err
		}
		freed++
	}
	fmt.Printf("%d of %d volumes freed\n", freed, len(list.Items))
	return l.applyAddons(ctx)
}
