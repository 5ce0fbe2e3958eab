// Package storetest changes the file stores of a stopped NATS server into the state that
// an unclean exit leaves. It is for tests only.
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

// Files in the folder "msgs" of a stream, beside its blocks.
const (
	index = "index.db" // index of the messages
	ttls  = "thw.db"   // expiries of the messages
)

// Form is what is left of the state that a server saves beside its messages.
type Form int

// A server saves the state of a stream about every two minutes and at shutdown. Without
// the index it rebuilds the stream from all messages in its blocks, including replaced
// ones.
const (
	// Saved means that the index is unusable, and that the saved expiries are of a time
	// after the last message, at which none was left: the recovered messages have no TTL.
	// It is the worst case of a server that has run for minutes (nats-server issue 8505).
	Saved Form = iota
	// Never means that nothing was saved. The recovered messages have their TTL.
	Never
)

// Age changes all stores under dir, the folder of a stopped server, to the state form. It
// returns an error if there is no store.
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

// noTTLs returns a saved state in which no message up to the highest sequence expires: a
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
