package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"github.com/anima-run/anima/test/cluster/internal/netpol"
)

// Paths inside the node's own /run.
const (
	nodeSocket       = "/run/" + labName + "-netpol.sock"
	containerdSocket = "/run/containerd/containerd.sock"
	debianCNI        = "/usr/lib/cni"
)

// nodeInit is process 1 of a node. It mounts the node's file systems, starts the agent
// and reaps orphaned processes. When it is killed, the kernel kills all processes of the
// node, as in a crash.
func (l *lab) nodeInit(n int) error {
	if os.Getpid() != 1 {
		return errors.New("node-init is started by up and node start only")
	}
	if err := l.nodeMounts(n); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(nodeName(n))); err != nil {
		return err
	}
	for key, v := range map[string]string{
		"ip_forward": "1", "conf/all/rp_filter": "0", "ip_unprivileged_port_start": "0",
		"../bridge/bridge-nf-call-iptables": "1", // for policies between pods of one node
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4", key), []byte(v), 0o644); err != nil {
			return fmt.Errorf("kernel setting: %w", err)
		}
	}
	agent, err := os.StartProcess(l.self(), []string{l.self(), "node-agent", fmt.Sprint(n)}, &os.ProcAttr{
		Dir: l.dir, Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == agent.Pid:
			return errors.New("the node's agent ended")
		}
	}
}

// nodeMounts mounts a separate /proc, /sys and /run for the node, and separate folders
// for the state of kubelet and the CNI plugins.
func (l *lab) nodeMounts(n int) error {
	dir := l.path("nodes", nodeName(n))
	cg := filepath.Join(dir, "cgroup")
	binds := map[string]string{"kubelet": "/var/lib/kubelet", "cnistate": "/var/lib/cni", "podlogs": "/var/log/pods", "ctrlogs": "/var/log/containers"}
	for _, d := range []string{cg, filepath.Join(dir, "containerd"), filepath.Join(dir, "imported")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	type mount struct {
		src, dst, kind string
		flags          uintptr
		data           string
	}
	all := []mount{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
		// A new /sys shows the devices of this network namespace. The control groups are
		// moved away and back while mounts are private: unmounting a shared copy would
		// unmount the machine's, too.
		{"/sys/fs/cgroup", cg, "", syscall.MS_BIND | syscall.MS_REC, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{cg, "/sys/fs/cgroup", "", syscall.MS_MOVE, ""},
		{"", "/", "", syscall.MS_REC | syscall.MS_SHARED, ""}, // kubelet requires that mounts propagate to containers
		{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
	}
	for src, dst := range binds {
		for _, d := range []string{filepath.Join(dir, src), dst} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		all = append(all, mount{filepath.Join(dir, src), dst, "", syscall.MS_BIND, ""})
	}
	for _, m := range all {
		if err := syscall.Mount(m.src, m.dst, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.src, m.dst, err)
		}
	}
	for _, d := range []string{"/run/netns", "/run/lock"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// nodeAgent runs a node's programs and enforces its network policies until it is killed.
// It restarts programs that end.
func (l *lab) nodeAgent(ctx context.Context, n int) error {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	files, err := l.nodeFiles(n)
	if err != nil {
		return err
	}
	client, err := l.api("")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, 2)
	e := netpol.New(nodeName(n), nodeSubnet(n), client, log.With("part", "netpol"))
	wg.Go(func() { failed <- e.Run(ctx) })
	wg.Go(func() { failed <- e.Serve(ctx, nodeSocket) })

	wg.Go(func() { l.keep(ctx, n, "containerd", nil, "containerd", "-c", files["containerd.toml"]) })
	err = poll(ctx, 50*time.Millisecond, func() error {
		_, err := command(ctx, "ctr", "version")
		return err
	})
	if err != nil {
		return err
	}
	// Kubelet starts after the import of images: a pod whose image is missing waits for a
	// long backoff.
	if err := l.importMissing(ctx, n, containerdSocket); err != nil {
		log.Error("images", "error", err)
	}
	wg.Go(func() {
		l.keep(ctx, n, "kubelet", []string{"GOMEMLIMIT=200MiB", "GOGC=50"}, filepath.Join(l.Bin, "kubelet"),
			"--config="+files["kubelet.yaml"], "--kubeconfig="+l.kubeconfig(nodeName(n)), "--hostname-override="+nodeName(n), "--node-ip="+nodeIP(n),
			"--root-dir=/var/lib/kubelet", "--v=2", "--node-labels=topology.kubernetes.io/zone=zone-"+fmt.Sprint(n))
	})
	wg.Go(func() {
		l.keep(ctx, n, "kube-proxy", nil, filepath.Join(l.Bin, "kube-proxy"), "--config="+files["proxy.yaml"], "--v=1")
	})
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("network policies: %w", err)
	}
}

// keep runs a program until ctx ends and restarts it one second after it has ended.
func (l *lab) keep(ctx context.Context, n int, name string, env []string, argv ...string) {
	log, err := os.OpenFile(l.path("log", nodeName(n)+"-"+name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = log.Close() }()
	for ctx.Err() == nil {
		c := exec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Env = append(os.Environ(), env...)
		c.Stdout, c.Stderr = log, log
		fmt.Fprintf(log, "--- %s ended: %v\n", name, c.Run())
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// nodeFiles writes the configuration of a node's programs and returns the paths.
func (l *lab) nodeFiles(n int) (map[string]string, error) {
	dir := l.path("nodes", nodeName(n))
	d := map[string]string{
		"Dir": dir, "N": fmt.Sprint(n), "Name": nodeName(n), "IP": nodeIP(n), "Subnet": nodeSubnet(n).String(),
		"PKI": string(l.pki()), "Conf": l.path("conf"), "DNS": dnsIP, "Pods": podNet + ".0.0/16", "Lab": labName,
		"Pause": registry + "pause:1", "Socket": containerdSocket, "Plugin": netpol.Plugin,
	}
	out := map[string]string{}
	for name, text := range map[string]string{
		"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig, "proxy.yaml": proxyConfig,
		"cni/10-lab.conflist": cniConfig, "resolv.conf": "",
	} {
		t, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			return nil, err
		}
		out[name] = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(out[name]), 0o755); err != nil {
			return nil, err
		}
		var b strings.Builder
		if err := t.Execute(&b, d); err != nil {
			return nil, err
		}
		if err := os.WriteFile(out[name], []byte(b.String()), 0o644); err != nil {
			return nil, err
		}
	}
	// containerd searches plugins in one folder only, so that folder has links to
	// Debian's plugins and to ours.
	bin := filepath.Join(dir, "cnibin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	links := map[string]string{netpol.Plugin: l.self()}
	for _, p := range []string{"bridge", "host-local", "loopback", "portmap"} {
		links[p] = filepath.Join(debianCNI, p)
	}
	for name, to := range links {
		at := filepath.Join(bin, name)
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := os.Symlink(to, at); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const cniConfig = `{"cniVersion":"1.0.0","name":"lab","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"{{.Subnet}}"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}},
 {"type":"{{.Plugin}}"}]}
`

const containerdConfig = `version = 2
root = "{{.Dir}}/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{{.Socket}}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  disable_apparmor = true
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE, and no sandbox would start
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Dir}}/cnibin"
    conf_dir = "{{.Dir}}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{{.Lab}}/{{.Name}}
enforceNodeAllocatable: []
failSwapOn: false
containerRuntimeEndpoint: unix://{{.Socket}}
address: 0.0.0.0
port: 10250
tlsCertFile: {{.PKI}}/{{.Name}}.crt
tlsPrivateKeyFile: {{.PKI}}/{{.Name}}.key
authentication: {x509: {clientCAFile: {{.PKI}}/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
clusterDNS: [{{.DNS}}]
clusterDomain: cluster.local
resolvConf: {{.Dir}}/resolv.conf
maxPods: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100 # nothing could pull an image again
nodeStatusUpdateFrequency: 5s
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: {{.Conf}}/kube-proxy.conf}
clusterCIDR: {{.Pods}}
hostnameOverride: {{.Name}}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
bindAddress: {{.IP}}
`

// archives returns the images that a node must have: those that build has made, then
// those that were loaded.
func (l *lab) archives() ([]string, error) {
	var out []string
	for _, tag := range sortedKeys(l.Images) {
		out = append(out, l.Images[tag])
	}
	loaded, err := filepath.Glob(l.path("images", "*.tar"))
	if err != nil {
		return nil, err
	}
	slices.Sort(loaded)
	return append(out, loaded...), nil
}

// importMissing imports on node n the archives that it has not imported in their current
// version.
func (l *lab) importMissing(ctx context.Context, n int, socket string) error {
	files, err := l.archives()
	if err != nil {
		return err
	}
	var all []error
	for _, f := range files {
		if err := l.importImage(ctx, n, socket, f); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// importImage imports one archive on node n. A marker file in the node's state holds the
// size and time of the imported archive.
func (l *lab) importImage(ctx context.Context, n int, socket, file string) error {
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	form := fmt.Sprint(st.Size(), " ", st.ModTime().UnixNano(), "\n")
	mark := l.path("nodes", nodeName(n), "imported", filepath.Base(file))
	if have, err := os.ReadFile(mark); err == nil && string(have) == form {
		return nil
	}
	out, err := command(ctx, "ctr", "-a", socket, "-n", "k8s.io", "images", "import", file)
	if err != nil {
		return fmt.Errorf("import %s on %s: %w", filepath.Base(file), nodeName(n), err)
	}
	// The wanted name of a loaded archive is in a file beside it, if a name was given.
	want, err := os.ReadFile(strings.TrimSuffix(file, ".tar") + ".name")
	if err == nil {
		if err := retag(ctx, socket, file, out, strings.TrimSpace(string(want))); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		return err
	}
	return os.WriteFile(mark, []byte(form), 0o644)
}

// retag gives the image of file the name want. imported is the output of ctr import.
func retag(ctx context.Context, socket, file, imported, want string) error {
	names := importedNames(imported)
	if slices.Contains(names, want) {
		return nil
	}
	if len(names) == 0 { // an OCI layout may have no names
		repo, _, _ := strings.Cut(want, ":")
		out, err := command(ctx, "ctr", "-a", socket, "-n", "k8s.io", "images", "import", "--digests", "--base-name", repo, file)
		if err != nil {
			return err
		}
		names = importedNames(out)
	}
	if len(names) != 1 {
		return fmt.Errorf("%s holds %d images (%s), so which one is %s? load it without a name", filepath.Base(file), len(names), strings.Join(names, " "), want)
	}
	_, err := command(ctx, "ctr", "-a", socket, "-n", "k8s.io", "images", "tag", "--force", names[0], want)
	return err
}

// importedNames parses the names of images from the output of ctr import.
func importedNames(out string) []string {
	var names []string
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, "unpacking "); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				names = append(names, f[0])
			}
		}
	}
	return names
}

// copyFile copies a file atomically.
func copyFile(dst, src string, mode fs.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	tmp, err := os.OpenFile(dst+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(tmp, in); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), dst)
}
