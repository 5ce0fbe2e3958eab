package main

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ctrlC is what a terminal in raw mode sends for it.
const ctrlC = 0x03

// keyboard reads keys of a terminal in raw mode. While an answer is shown, ctrl-c
// interrupts and the other keys are kept for the next line. The nil keyboard has no
// keys.
type keyboard struct {
	file  *os.File
	ahead []byte // typed before they were asked for
}

// Read gives the line editor its keys.
func (k *keyboard) Read(p []byte) (int, error) {
	if len(k.ahead) > 0 {
		n := copy(p, k.ahead)
		k.ahead = k.ahead[n:]
		return n, nil
	}
	return k.file.Read(p)
}

// keyWait bounds how long a watch goes on after its end, in milliseconds.
const keyWait = 50

// watch calls interrupt for each ctrl-c until the function it returns has been
// called. Read must not be called meanwhile.
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
				return // the line editor gets it too
			}
		}
	})
	return func() { close(over); wg.Wait() }
}

// ready waits keyWait for a key.
func (k *keyboard) ready() (yes bool) {
	_ = withFD(k.file, func(fd int) { // what cannot be asked has no keys
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, keyWait)
		yes = err == nil && n > 0
	})
	return yes
}
