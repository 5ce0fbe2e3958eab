package sandbox

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// stampOf is the state of a file or directory; the zero Stamp if it is not there.
// steady is false if the state cannot tell all that may happen to it.
func stampOf(name string) (s Stamp, steady bool) {
	var st syscall.Stat_t
	err := syscall.Lstat(name, &st) // os.Lstat allocates what it returns
	for err == syscall.EINTR {
		err = syscall.Lstat(name, &st)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Stamp{}, true
	}
	if kind := st.Mode & syscall.S_IFMT; err != nil || kind != syscall.S_IFDIR && kind != syscall.S_IFREG {
		return Stamp{}, false // what a link leads to may change, and the link not
	}
	return Stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mode: st.Mode, changed: st.Ctim.Nano(), modified: st.Mtim.Nano()}, true //nolint:unconvert // their types differ between processors
}

// local are the file systems whose states come from this machine's kernel: those of a
// network may be minutes old.
var local = []int64{
	0xef53,     // ext2, ext3, ext4
	0x58465342, // xfs
	0x9123683e, // btrfs
	0x01021994, // tmpfs
	0x794c7630, // overlayfs
	0x2fc12fc1, // zfs
	0xf2f52010, // f2fs
}

// isLocal says whether a directory is on such a file system.
func isLocal(dir string) bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return false
	}
	return slices.Contains(local, int64(st.Type)) //nolint:unconvert // its type differs between processors
}
