//go:build !linux

package tracesdk

import (
	"errors"
	"os"
)

const canSpool = false

func lockFile(*os.File) error               { return errors.ErrUnsupported }
func unlockFile(*os.File) error             { return errors.ErrUnsupported }
func mapFile(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }
