package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ctrlC is the byte that a terminal in raw mode sends for ctrl-c.
const ctrlC = 0x03

// keyboard reads keys of a terminal in raw mode. While an answer is shown, ctrl-c
// interrupts it and the other keys are kept for the next line. watch on a nil keyboard
// does nothing.
type keyboard struct {
	file  *os.File
	ahead []byte // typed before the prompt
}

// Read returns the kept keys first, then reads from the terminal.
func (k *keyboard) Read(p []byte) (int, error) {
	if len(k.ahead) > 0 {
		n := copy(p, k.ahead)
		k.ahead = k.ahead[n:]
		return n, nil
	}
	return k.file.Read(p)
}

// keyWait is the timeout of one poll for keys in milliseconds. It bounds how long a watch
// continues after its end.
const keyWait = 50

// watch calls interrupt for each ctrl-c until the returned function is called. Read must
// not be called meanwhile.
func (k *keyboard) watch(interrupt func()) func() {
	if k == nil {
		return func() {}
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 256)
		for {
			select {
			case <-over:
				return
			default:
			}
			if !k.ready() {
				continue
			}
			n, err := k.file.Read(buf)
			for _, b := range buf[:n] {
				if b == ctrlC {
					interrupt()
				} else {
					k.ahead = append(k.ahead, b)
				}
			}
			if err != nil {
				return // the line editor gets the error, too
			}
		}
	})
	return func() { close(over); wg.Wait() }
}

// ready waits up to keyWait for a key.
func (k *keyboard) ready() (yes bool) {
	_ = withFD(k.file, func(fd int) { // a closed file has no keys
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, keyWait)
		yes = err == nil && n > 0
	})
	return yes
}
