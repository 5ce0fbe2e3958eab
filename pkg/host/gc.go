package host

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/config"
)

// gcPercent is the GOGC of a process without that variable. Turns of 16 sessions in one
// process take an eighth less processor time with it than with Go's default of 100.
const gcPercent = 200

// TuneGC sets the garbage collector's parameters that the environment does not set: GOGC
// to 200, and GOMEMLIMIT to nine tenths of the memory limit of the process's cgroup, if
// there is one. A main function calls it once, at its start.
func TuneGC(lookup config.Lookup) {
	percent, limit := garbage(lookup, os.DirFS("/"))
	if percent > 0 {
		debug.SetGCPercent(percent)
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}

// maxLimit is the memory limit, in bytes, that is assumed if there is a higher one or none.
const maxLimit = 4 << 30

// MemoryLimit returns the memory limit of the process in bytes, at most 4 GiB, for bounds
// that are a part of it.
func MemoryLimit() int64 { return min(debug.SetMemoryLimit(-1), maxLimit) }

// garbage returns the values that [TuneGC] sets; 0 leaves a setting unchanged.
func garbage(lookup config.Lookup, root fs.FS) (percent int, limit int64) {
	if v, _ := lookup("GOGC"); v == "" {
		percent = gcPercent
	}
	if v, _ := lookup("GOMEMLIMIT"); v == "" {
		limit = cgroupMemory(root) / 10 * 9
	}
	return percent, limit
}

// cgroupMemory returns the lowest memory limit, in bytes, of the process's cgroup
// (version 1 or 2) and its ancestors; 0 if there is no limit. root is the root of the
// file system.
func cgroupMemory(root fs.FS) int64 {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0 // not Linux
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		top, file := "sys/fs/cgroup", "memory.max"
		switch {
		case number == "0" && controllers == "":
		case strings.Contains(","+controllers+",", ",memory,"):
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// In a container the cgroup may be mounted at the top, while /proc shows the path
		// outside of the container: paths that do not exist are skipped.
		for g := path.Join("/", group); ; g = path.Dir(g) {
			text, err := fs.ReadFile(root, path.Join(top, g, file))
			if err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 { // "max" means no limit
					least = min(least, n)
				}
			}
			if g == "/" {
				break
			}
		}
	}
	if least > unbounded {
		return 0
	}
	return least
}

// unbounded is the memory, in bytes, above which a limit counts as none: cgroup version 1
// writes a very large number for no limit.
const unbounded = 1 << 50
