package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/anima-run/anima/test/cluster/internal/cgroup"
)

const cgroups cgroup.Root = "/sys/fs/cgroup"

// debian lists the packages of this machine that the nodes use, with a file of each.
var debian = []struct{ name, file string }{
	{"containerd", "/usr/bin/containerd"},
	{"runc", "/usr/sbin/runc"},
	{"containernetworking-plugins", "/usr/lib/cni/bridge"},
	{"iptables", "/usr/sbin/iptables"}, // required by portmap and kubelet
	{"nftables", "/usr/sbin/nft"},
	{"conntrack", "/usr/sbin/conntrack"},
	{"iproute2", "/usr/sbin/ip"},
}

func mustBeRoot() error {
	if runtime.GOOS != "linux" {
		return notRun("the lab needs Linux")
	}
	if os.Geteuid() != 0 {
		return notRun("the lab needs root, for namespaces and mounts; run it with sudo -E")
	}
	return nil
}

// check returns an error if this machine cannot run the lab, with the missing
// requirements.
func check(ctx context.Context, nodes int) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	if nodes < 0 || nodes > maxNodes {
		return fmt.Errorf("%d nodes: want 0 to %d", nodes, maxNodes)
	}
	if lack := missingCapabilities(); len(lack) > 0 {
		return notRun("root lacks capabilities here: " + strings.Join(lack, " ") + "; run it on a machine, not in a container")
	}
	if _, err := exec.LookPath("ip"); err != nil || nodes > 0 {
		if err := packages(ctx); err != nil {
			return err
		}
	}
	if nodes == 0 {
		return nil
	}
	if lack := cgroups.Missing(); len(lack) > 0 {
		return notRun("control groups of version 1 are missing: " + strings.Join(lack, " ") +
			"; the nodes need a v1 or hybrid hierarchy (kernel argument systemd.unified_cgroup_hierarchy=0); NODES=0 works without")
	}
	for module, file := range map[string]string{"br_netfilter": "/proc/sys/net/bridge/bridge-nf-call-iptables", "overlay": ""} {
		if file != "" {
			if _, err := os.Stat(file); err == nil {
				continue
			}
		} else if fileHas("/proc/filesystems", module) {
			continue
		}
		if _, err := command(ctx, "modprobe", module); err != nil {
			return notRun("the kernel module " + module + " is missing: " + err.Error())
		}
	}
	return nil
}

// missingCapabilities returns the missing capabilities of those that namespaces, mounts,
// devices and the network of pods require. CAP_SYS_RESOURCE is not required; containerd
// is configured accordingly.
func missingCapabilities() []string {
	bits := map[string]uint{
		"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_NET_ADMIN": 12,
		"CAP_SYS_CHROOT": 18, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27,
	}
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			have, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				return []string{err.Error()}
			}
			var out []string
			for name, bit := range bits {
				if have&(1<<bit) == 0 {
					out = append(out, name)
				}
			}
			return out
		}
	}
	return []string{"/proc/self/status has no CapEff"}
}

// packages installs the Debian packages that are missing.
func packages(ctx context.Context, more ...string) error {
	need := more
	for _, d := range debian {
		if _, err := os.Stat(d.file); err != nil {
			need = append(need, d.name)
		}
	}
	if len(need) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return notRun("these are missing, and there is no apt-get to install them: " + strings.Join(need, " "))
	}
	fmt.Println("installing", strings.Join(need, " "))
	if _, err := command(ctx, "apt-get", "update", "-qq"); err != nil {
		return notRun("packages are missing (" + strings.Join(need, " ") + ") and cannot be had: " + err.Error())
	}
	argv := append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"}, need...)
	if _, err := command(ctx, argv...); err != nil {
		return notRun("packages are missing and cannot be installed: " + err.Error())
	}
	return nil
}

func fileHas(path, word string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		for _, w := range strings.Fields(sc.Text()) {
			if w == word {
				return true
			}
		}
	}
	return false
}
