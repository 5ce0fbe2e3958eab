package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// maxSource is the maximum number of bytes that is read of a file. The limit on the
// length of an AGENT.md is loop's.
const maxSource = 1 << 20

// input opens a file, or standard input for "-".
func (a *app) input(file string) (io.ReadCloser, error) {
	if file == "-" {
		return io.NopCloser(a.stdin()), nil
	}
	return os.Open(file)
}

// stdin returns standard input, of which a signal ends the reading: the error is
// [context.Canceled].
func (a *app) stdin() io.Reader { return interruptible{a.In, a.signal} }

// interruptible is a reader whose Read returns when done is closed. The read of a terminal
// or a pipe cannot be ended, so its goroutine is left behind: it ends with the process.
type interruptible struct {
	r    io.Reader
	done <-chan struct{}
}

func (i interruptible) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	buf, over := make([]byte, len(p)), make(chan result, 1) // p belongs to the caller again when Read has returned
	go func() {
		n, err := i.r.Read(buf)
		over <- result{n, err}
	}()
	select {
	case <-i.done:
		return 0, context.Canceled
	case got := <-over:
		return copy(p, buf[:got.n]), got.err
	}
}

// read reads a file, or standard input for "-". Of one that is larger than most bytes it
// returns most+1 bytes.
func (a *app) read(file string, most int64) ([]byte, error) {
	in, err := a.input(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // read only: a Close error loses no data
	return io.ReadAll(io.LimitReader(in, most+1))
}

// readText reads a text of at most maxSource bytes from a file, or from standard input
// for "-". Every error is Invalid, with what the file should be, except that of a signal.
func (a *app) readText(file, want string) (string, error) {
	data, err := a.read(file, maxSource)
	switch {
	case errors.Is(err, context.Canceled):
		return "", err
	case err != nil:
	case len(data) > maxSource:
		err = fmt.Errorf("%s is larger than %d bytes", file, maxSource)
	case !utf8.Valid(data): // encoding as JSON would replace the invalid bytes
		err = fmt.Errorf("%s is not valid UTF-8", file)
	}
	if err != nil {
		return "", failure(api.Invalid, err.Error(), want)
	}
	return string(data), nil
}

// message joins a command's words to a text. A single "-" reads standard input, up to one
// byte more than the maximum of a message, which is enough to detect a longer one.
func (a *app) message(words []string) (string, error) {
	text := strings.Join(words, " ")
	if text == "-" {
		data, err := a.read("-", api.MaxMessageBytes)
		if err != nil {
			return "", err
		}
		text = string(data)
	}
	if !utf8.ValidString(text) { // encoding as JSON would replace the invalid bytes
		return "", notUTF8()
	}
	return text, nil
}

func notUTF8() error { return failure(api.Invalid, "the message is not UTF-8", "encode it as UTF-8") }

// readPrivate reads a file with credentials; nil means that there is none. exposed means
// that other users can read the file; then it is not read.
func readPrivate(file string) (data []byte, exposed bool, err error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case info.Mode().Perm()&0o077 != 0:
		return nil, true, nil
	}
	data, err = os.ReadFile(file)
	return data, false, err
}

// writePrivate replaces a file, with v as JSON, and creates its folder. Only its owner may
// read both.
func writePrivate(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return writeFile(file, append(data, '\n'))
}

// lockFile waits until no other process has locked a file, which it creates with its
// folder, and locks it, unless the file system has no locks. The end of the process unlocks
// it, too.
func lockFile(file string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return func() { _ = f.Close() }, nil // nothing was written
		}
		if wait.For(ctx, lockPause) != nil {
			_ = f.Close() // nothing was written
			return nil, fmt.Errorf("%s is locked by another process", file)
		}
	}
}

// lockWait is how long lockFile waits, although commands have the lock for milliseconds
// only. lockPause is the pause between two tries.
const (
	lockWait  = 10 * time.Second
	lockPause = 10 * time.Millisecond
)

// putNew writes a file that a user named. Without force it fails if the file exists: the
// error is fs.ErrExist.
func putNew(file string, data []byte, force bool) error {
	put := createFile
	if force {
		put = writeFile
	}
	err := put(file, data)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return failure(api.Invalid, err.Error(), "name a file that you may write")
	}
	return err
}

// writeFile replaces a file atomically, with a mode that only its owner may read.
func writeFile(file string, data []byte) error { return putFile(file, data, os.Rename) }

// createFile is writeFile for a new file. If the file exists, it is kept and the error is
// fs.ErrExist.
func createFile(file string, data []byte) error {
	return putFile(file, data, func(tmp, file string) error {
		if err := os.Link(tmp, file); err != nil { // unlike Rename, Link does not replace a file
			return err
		}
		return os.Remove(tmp)
	})
}

func putFile(file string, data []byte, place func(tmp, file string) error) error {
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = place(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the temporary file is not needed after an error
		return err
	}
	// The new name is durable only after its folder was synced.
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
