package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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
		} else if known, err := os.ReadFile("/proc/filesystems"); err == nil && slices.Contains(strings.Fields(string(known)), module) {
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
	var have [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &have[0]); err != nil {
		return []string{err.Error()}
	}
	var out []string
	for name, bit := range map[string]uint{
		"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_KILL": unix.CAP_KILL, "CAP_SETGID": unix.CAP_SETGID,
		"CAP_SETUID": unix.CAP_SETUID, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
		"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_MKNOD": unix.CAP_MKNOD,
	} {
		if have[0].Effective&(1<<bit) == 0 { // all of them are below 32
			out = append(out, name)
		}
	}
	return out
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
