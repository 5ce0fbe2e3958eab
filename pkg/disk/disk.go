// Package disk tells how much room a folder's file system has, and keeps a part of
// it as a reserve: what is under way may use it, and nothing new is accepted when
// only the reserve is left. It does not depend on what is kept in the folder.
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/anima-run/anima/pkg/api"
)

// MiB is 2^20 bytes.
const MiB = 1 << 20

// DefaultReserve is how many bytes are kept free where the operator says nothing:
// these, or a tenth of a smaller file system.
const DefaultReserve = 256 * MiB

// Space is the room of a file system, in bytes.
type Space struct {
	Free  int64 `json:"free"` // what this user may still write
	Total int64 `json:"total"`
}

// Reserve is a part of a file system that is kept free. It is safe for concurrent
// use. The nil Reserve keeps nothing.
type Reserve struct {
	dir   string
	bytes int64
}

// NewReserve keeps bytes free on dir's file system; 0 is [DefaultReserve], a
// negative number is nothing. The error is that of [Of].
func NewReserve(dir string, bytes int64) (*Reserve, error) {
	s, err := Of(dir)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes < 0:
		bytes = 0
	case bytes == 0:
		bytes = min(DefaultReserve, s.Total/10)
	}
	return &Reserve{dir: dir, bytes: bytes}, nil
}

// Bytes is how much is kept free.
func (r *Reserve) Bytes() int64 {
	if r == nil {
		return 0
	}
	return r.bytes
}

// Space is the room there is now.
func (r *Reserve) Space() (Space, error) { return Of(r.dir) }

// Check returns nil while more than the reserve is free. Errors: Unavailable with
// ReasonNoSpace. A file system that does not tell its room has some: writes show it.
func (r *Reserve) Check() error {
	if r == nil || r.bytes == 0 {
		return nil
	}
	s, err := Of(r.dir)
	if err != nil || s.Free > r.bytes {
		return nil //nolint:nilerr // writes show it
	}
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonNoSpace, RetryAfter: 10_000,
		Message: fmt.Sprintf("the disk of the data folder is full: %d MiB are free, and %d MiB are kept for what is under way", s.Free/MiB, r.bytes/MiB),
		Next:    "free space on it or enlarge it: no restart is needed; ANIMA_DISK_RESERVE sets what is kept",
	}
}

// Write proves that dir takes n bytes: it writes, syncs and removes a file.
func Write(dir string, n int) (err error) {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(make([]byte, n))
	return errors.Join(err, f.Sync(), f.Close())
}

// Size is the sum of the files below dir, in bytes on the disk, and their number,
// folders included. A file with several names counts once. It stops early, with
// what it has counted, when more than the given limits are found; 0 is no limit.
// Files that vanish meanwhile are left out.
func Size(dir string, maxBytes, maxFiles int64) (bytes, files int64, err error) {
	linked := map[inode]bool{}
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if d != nil && d.IsDir() { // it may be read by its owner's command only
				files++
				return nil
			}
			return err
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		files++
		bytes += used(info, linked)
		if maxBytes > 0 && bytes > maxBytes || maxFiles > 0 && files > maxFiles {
			return filepath.SkipAll
		}
		return nil
	})
	return bytes, files, err
}
