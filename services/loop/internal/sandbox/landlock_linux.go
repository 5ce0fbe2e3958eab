package sandbox

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access rights by the Landlock ABI that introduced them; see the kernel documentation,
// userspace-api/landlock.
const (
	fsFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	fsRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	fsAll1 = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
	fsAll2 = fsAll1 | unix.LANDLOCK_ACCESS_FS_REFER
	fsAll3 = fsAll2 | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	fsAll5 = fsAll3 | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	netAll4   = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	scopeAll6 = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
)

// readable returns the paths that programs need to start on Linux: code, and the parts of
// /etc without secrets. Missing paths are ignored.
func readable() []string {
	return []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
		"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
		"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/os-release", "/etc/mime.types",
		"/etc/localtime", "/etc/timezone", "/etc/services", "/etc/protocols",
		"/dev/zero", "/dev/random", "/dev/urandom",
	}
}

// dialable returns the additional paths that programs need to reach the network through a
// proxy. The proxy resolves names.
func dialable() []string {
	return []string{
		"/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf",
		"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/ca-certificates",
	}
}

// landlockABI returns the kernel's Landlock ABI version, or 0 without Landlock.
func landlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// handled returns all rights that the ABI can restrict. With open, TCP is not restricted.
func handled(abi int, open bool) unix.LandlockRulesetAttr {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: fsAll1}
	if abi >= 2 {
		attr.Handled_access_fs = fsAll2
	}
	if abi >= 3 {
		attr.Handled_access_fs = fsAll3
	}
	if abi >= 4 && !open {
		attr.Handled_access_net = netAll4
	}
	if abi >= 5 {
		attr.Handled_access_fs = fsAll5
	}
	if abi >= 6 {
		attr.Scoped = scopeAll6
	}
	return attr
}

// landlock restricts the calling thread, and the programs that it executes and starts, to
// the workspace and the readable paths. With RemoveOnly they cannot add to the workspace. no_new_privs must be set. The library of the
// Landlock project is not used: it restricts every thread of the process, and in a PID
// namespace under cgo it looks up threads of other processes.
func (o order) landlock() error {
	attr := handled(o.Held.LandlockABI, o.Open)
	size := unsafe.Offsetof(attr.Quiet_access_fs)
	switch abi := o.Held.LandlockABI; {
	case abi < 4:
		size = unsafe.Offsetof(attr.Handled_access_net)
	case abi < 6:
		size = unsafe.Offsetof(attr.Scoped)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("create rules: %w", errno)
	}
	rules := int(fd)
	defer unix.Close(rules) // the rules are in force by then

	allow := func(access uint64, paths ...string) error {
		for _, path := range paths {
			if err := allowBeneath(rules, path, access&attr.Handled_access_fs); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	}
	own := attr.Handled_access_fs &^ unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	if o.RemoveOnly {
		own = fsRead | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
	}
	err := errors.Join(
		allow(own, o.Dir),
		allow(fsRead, readable()...),
		allow(fsRead, o.ReadOnly...),
		allow(unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_WRITE_FILE, "/dev/null", "/dev/full"),
	)
	if o.Proxy != 0 {
		err = errors.Join(err, allow(fsRead, dialable()...))
	}
	if o.Proxy != 0 && attr.Handled_access_net != 0 {
		err = errors.Join(err, allowConnect(rules, o.Proxy))
	}
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict: %w", errno)
	}
	return nil
}

func allowBeneath(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // the rule holds its own reference
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= fsFile
	}
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&beneath)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// netPort is struct landlock_net_port_attr, and ruleNetPort is LANDLOCK_RULE_NET_PORT, of
// linux/landlock.h. golang.org/x/sys defines neither.
type netPort struct{ allowed, port uint64 }

const ruleNetPort = 2

// allowConnect allows TCP connections to a port of any host, because Landlock has no
// rules for addresses.
func allowConnect(rules int, port uint16) error {
	to := netPort{unix.LANDLOCK_ACCESS_NET_CONNECT_TCP, uint64(port)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), ruleNetPort,
		uintptr(unsafe.Pointer(&to)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("port %d: %w", port, errno)
	}
	return nil
}
