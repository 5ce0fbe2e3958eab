// Package storetest makes the file stores of a stopped NATS server look as an unclean
// exit leaves them. It is for tests only.
package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// The files of a stream's folder "msgs", beside its blocks.
const (
	index = "index.db" // which messages there are
	ttls  = "thw.db"   // when messages expire
)

// Form says what is left of the state that a server saves beside its messages.
type Form int

// A server saves the state of a stream about every two minutes and when it is shut
// down. Without the index it rebuilds the stream from all messages in its blocks, those
// included that were replaced.
const (
	// Saved: the index is unusable, and the saved expiries are those of a time after the
	// last message, at which none was left. What comes back has no TTL. This is what a
	// server leaves that has run for minutes (nats-server issue 8505), at its worst.
	Saved Form = iota
	// Never: nothing was saved. What comes back has its TTL.
	Never
)

// Age changes all stores under dir, the folder of a server that has stopped, into a
// form. It is an error if there is no store.
func Age(dir string, form Form) error {
	stores := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() != "msgs" {
			return err
		}
		stores++
		if err := remove(filepath.Join(path, index)); err != nil {
			return err
		}
		if form == Never {
			return remove(filepath.Join(path, ttls))
		}
		return os.WriteFile(filepath.Join(path, ttls), noTTLs(), 0o600)
	})
	if err == nil && stores == 0 {
		err = fmt.Errorf("no file store of NATS under %s", dir)
	}
	return err
}

// noTTLs is a saved state in which no message up to the highest sequence expires: a
// version, the number of entries, and the sequence.
func noTTLs() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{1}, 0)
	return binary.LittleEndian.AppendUint64(b, math.MaxInt64)
}

func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
