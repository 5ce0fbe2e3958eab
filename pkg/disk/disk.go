// Package disk measures the free space of a folder's file system, and keeps a part of it
// as a reserve: work in progress may use the reserve, and new work is refused when only
// the reserve is free. It must not depend on the content of the folder.
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

// DefaultReserve is the default number of bytes to keep free; on a smaller file system it
// is a tenth of the total, if that is less.
const DefaultReserve = 256 * MiB

// Space is the space of a file system in bytes.
type Space struct {
	Free  int64 `json:"free"` // available to this user
	Total int64 `json:"total"`
}

// Reserve is a part of a file system that is kept free. It is safe for concurrent use. A
// nil Reserve keeps nothing free.
type Reserve struct {
	dir   string
	bytes int64
}

// NewReserve returns a Reserve that keeps bytes free on dir's file system. 0 means
// [DefaultReserve], a negative number means no reserve. The error is that of [Of].
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

// Bytes returns the size of the reserve.
func (r *Reserve) Bytes() int64 {
	if r == nil {
		return 0
	}
	return r.bytes
}

// Space returns the current space of the file system.
func (r *Reserve) Space() (Space, error) { return Of(r.dir) }

// Check returns nil if more than the reserve is free, and Unavailable with ReasonNoSpace
// otherwise. If the space cannot be measured, it returns nil: a failed write will report
// the problem.
func (r *Reserve) Check() error {
	free, full := r.full(1)
	if !full {
		return nil
	}
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonNoSpace, RetryAfter: retry,
		Message: fmt.Sprintf("the disk of the data folder is full: %d MiB are free, and %d MiB are reserved for work in progress", free/MiB, r.bytes/MiB),
		Next:    "free space on it or enlarge it: no restart is needed; ANIMA_DISK_RESERVE sets the reserve",
	}
}

// CheckStranger is like Check for what strangers send: twice the reserve must be free, so
// that they cannot use up the space for the work that is accepted until Check fails. Its
// error says nothing about the disk.
func (r *Reserve) CheckStranger() error {
	if _, full := r.full(2); !full {
		return nil
	}
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonNoSpace, RetryAfter: retry,
		Message: "the server has no space for this", Next: "try again later; its operator has to free space",
	}
}

// retry is the time after which a refused request may be repeated, in milliseconds.
const retry = 10_000

// full reports whether at most n times the reserve is free.
func (r *Reserve) full(n int64) (free int64, full bool) {
	if r == nil || r.bytes == 0 {
		return 0, false
	}
	s, err := Of(r.dir)
	return s.Free, err == nil && s.Free <= n*r.bytes
}

// Write checks that dir can store n bytes: it writes, syncs and removes a file.
func Write(dir string, n int) (err error) {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.Write(make([]byte, n))
	return errors.Join(err, f.Sync(), f.Close())
}

// Size returns the disk space of the files below dir in bytes, and the number of files,
// including folders. The space of a file with several names counts once. Size stops, with
// the counts so far, when they exceed the given limits; 0 means no limit. Files that are
// removed meanwhile are skipped.
func Size(dir string, maxBytes, maxFiles int64) (bytes, files int64, err error) {
	linked := map[inode]bool{}
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if d != nil && d.IsDir() { // only the user of a command may have the permission to read it
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
