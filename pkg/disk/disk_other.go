//go:build !unix

package disk

import (
	"errors"
	"os"
)

// Of returns errors.ErrUnsupported on this system.
func Of(string) (Space, error) { return Space{}, errors.ErrUnsupported }

type inode struct{}

func used(info os.FileInfo, _ map[inode]bool) int64 { return info.Size() }
