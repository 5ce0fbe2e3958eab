package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/disk"
)

// ErrQuota wraps what an agent's folder has too much of.
var ErrQuota = errors.New("the folder's quota is used up")

// Quota bounds what a workspace holds. Zero is no bound.
type Quota struct {
	Bytes int64 // on the disk, of all files together
	Files int64 // files and folders
}

// Check returns nil when the workspace takes more bytes, and a file, within its
// quota. Errors: [ErrQuota].
func (q Quota) Check(dir string, more int64) error { return q.check(dir, more, 1) }

func (q Quota) check(dir string, moreBytes, moreFiles int64) error {
	if q == (Quota{}) {
		return nil
	}
	bytes, files, err := disk.Size(dir, q.Bytes, q.Files)
	switch {
	case err != nil:
		return fmt.Errorf("measure the folder: %w", err)
	case q.Bytes > 0 && bytes+moreBytes > q.Bytes:
		return fmt.Errorf("%w: its files may take %d MiB; delete some", ErrQuota, q.Bytes/disk.MiB)
	case q.Files > 0 && files+moreFiles > q.Files:
		return fmt.Errorf("%w: it may hold %d files; delete some", ErrQuota, q.Files)
	}
	return nil
}

const (
	// lookSpace is how often a running command's disk is looked at, which is one
	// system call.
	lookSpace = 25 * time.Millisecond
	// lookFiles is how often, at most, its files are counted, and at least while the
	// disk fills.
	lookFiles = time.Second
	// pace is how many times longer than a count takes the next one is away.
	pace = 10
)

// Watch calls end, once, with why what writes dir must not go on: dir has more than its
// quota, or room, which may be nil, says that the disk is full. It returns then, or when
// ctx ends. The files are counted every second, and at once when the disk has lost a
// sixteenth of the quota.
func (q Quota) Watch(ctx context.Context, dir string, room func() error, end func(error)) {
	if q == (Quota{}) && room == nil {
		return
	}
	tick := time.NewTicker(lookSpace)
	defer tick.Stop()
	var next time.Time
	var step int64
	var last disk.Space
	for {
		now := time.Now()
		if room != nil {
			if err := room(); err != nil {
				end(err)
				return
			}
		}
		space, _ := disk.Of(dir) // unknown room is none that was lost
		if now.After(next) || step > 0 && last.Free-space.Free > step {
			if err := q.check(dir, 0, 0); err != nil {
				end(err)
				return
			}
			took := time.Since(now)
			next, last, step = now.Add(max(lookFiles, pace*took)), space, max(q.Bytes/16, disk.MiB)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
