package sandbox

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// stampOf returns the state of a file or directory, or the zero Stamp if it is missing.
// steady is false if the stamp cannot show every change.
func stampOf(name string) (s Stamp, steady bool) {
	var st syscall.Stat_t
	err := syscall.Lstat(name, &st) // os.Lstat allocates its result
	for err == syscall.EINTR {
		err = syscall.Lstat(name, &st)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Stamp{}, true
	}
	if kind := st.Mode & syscall.S_IFMT; err != nil || kind != syscall.S_IFDIR && kind != syscall.S_IFREG {
		return Stamp{}, false // the target of a link may change without the link
	}
	return Stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mode: st.Mode, changed: st.Ctim.Nano(), modified: st.Mtim.Nano()}, true //nolint:unconvert // their types differ between processors
}

// local are the magic numbers of file systems whose stamps are always current. The stamps
// of network file systems may be minutes old.
var local = []int64{
	0xef53,     // ext2, ext3, ext4
	0x58465342, // xfs
	0x9123683e, // btrfs
	0x01021994, // tmpfs
	0x794c7630, // overlayfs
	0x2fc12fc1, // zfs
	0xf2f52010, // f2fs
}

// isLocal reports whether a directory is on a file system of local.
func isLocal(dir string) bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return false
	}
	return slices.Contains(local, int64(st.Type)) //nolint:unconvert // its type differs between processors
}
