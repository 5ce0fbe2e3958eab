package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/disk"
)

// ErrQuota is the error for a workspace that exceeds its quota.
var ErrQuota = errors.New("the folder's quota is used up")

// Quota is the limit of a workspace's content. A zero field means no limit.
type Quota struct {
	Bytes int64 // allocated on disk by all files
	Files int64 // files and folders
}

// Check returns nil if more bytes and one file fit into the quota of the workspace.
// Errors: [ErrQuota].
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
	// lookSpace is the interval at which the free space of the disk is read while a
	// command runs; this is one system call.
	lookSpace = 25 * time.Millisecond
	// lookFiles is the minimum interval at which the files are counted, unless the disk
	// fills.
	lookFiles = time.Second
	// pace is the minimum ratio of the interval between counts to the duration of a
	// count.
	pace = 10
)

// Watch calls end at most once, with the reason, when dir exceeds its quota or room
// returns an error because the disk is full. room may be nil. Watch then returns; it also
// returns when ctx ends. Files are counted every second, and at once if the disk has lost
// a sixteenth of the quota.
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
		space, _ := disk.Of(dir) // on an error the free space is taken as unchanged
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
