package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/anima-run/anima/pkg/api"
)

// terminal is a terminal for a dialogue: input and output of the same terminal.
type terminal struct{ in, out *os.File }

// terminalOf returns nil unless both are terminals.
func terminalOf(in io.Reader, out io.Writer) *terminal {
	if !isTerminal(in) || !isTerminal(out) {
		return nil
	}
	return &terminal{in.(*os.File), out.(*os.File)}
}

// withFD calls do with f's descriptor. The method Fd would set the file to blocking mode,
// in which deadlines have no effect.
func withFD(f *os.File, do func(fd int)) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return c.Control(func(fd uintptr) { do(int(fd)) })
}

// isTerminal reports whether an input or output is a terminal.
func isTerminal(stream any) (yes bool) {
	f, ok := stream.(*os.File)
	return ok && withFD(f, func(fd int) { yes = term.IsTerminal(fd) }) == nil && yes
}

// errCancelled is the error for a dialogue that the user ends before the last answer.
var errCancelled = failure(api.Invalid, "the dialogue was cancelled; nothing was written", "run the command again, or give the answers as flags: anima init --help")

// runDialogue runs f with a dialogue. It returns errCancelled if the user ends the
// dialogue early.
func (t *terminal) runDialogue(ctx context.Context, f func(*dialogue) error) error {
	err := t.withLineEditor(ctx, t.in, f)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return errCancelled
	}
	return err
}

// withLineEditor runs f with a line editor that reads keys from in. Ctrl-c and ctrl-d end
// a line with io.EOF. Reading ends with ctx.
func (t *terminal) withLineEditor(ctx context.Context, in io.Reader, f func(*dialogue) error) error {
	var was *term.State
	var raw error
	if err := withFD(t.in, func(fd int) { was, raw = term.MakeRaw(fd) }); err != nil || raw != nil {
		return errors.Join(err, raw)
	}
	// A failure to restore the mode of the terminal cannot be handled.
	restore := func() { _ = withFD(t.in, func(fd int) { _ = term.Restore(fd, was) }) }
	defer restore()
	stop := context.AfterFunc(ctx, func() {
		restore()
		// If the terminal does not support deadlines, reading ends with the next key or
		// signal.
		_ = t.in.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	d := &dialogue{Terminal: term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, t.out}, "")}
	_ = withFD(t.out, func(fd int) { // without the size, long lines wrap at the default width
		if w, h, err := term.GetSize(fd); err == nil && w > 0 {
			_ = d.SetSize(w, h)
		}
	})
	return f(d)
}

// dialogue asks questions on a terminal.
type dialogue struct{ *term.Terminal }

// maxLine is the length at which the line editor ignores further characters.
const maxLine = 4096

func (d *dialogue) line(prompt string) (string, error) {
	d.SetPrompt(prompt)
	text, err := d.ReadLine()
	if err == nil && len([]rune(text)) >= maxLine {
		fmt.Fprintf(d, "  That line may have been cut at %d characters: give the text as a flag or in a file.\n", maxLine)
		return d.line(prompt)
	}
	return text, err
}

// ask calls read for an answer until validate finds no fault in it.
func (d *dialogue) ask(read func() (string, error), validate func(string) []string) (string, error) {
	for {
		text, err := read()
		if err != nil {
			return "", err
		}
		text = strings.TrimSpace(text)
		faults := validate(text)
		if len(faults) == 0 {
			return text, nil
		}
		for _, f := range faults {
			fmt.Fprintf(d, "  %s\n", f)
		}
	}
}

// prompt returns a function that reads one line.
func (d *dialogue) prompt(text string) func() (string, error) {
	return func() (string, error) { return d.line(text) }
}

// lines reads a text of several lines, up to a line that is a single dot.
func (d *dialogue) lines() (string, error) {
	var all []string
	for {
		text, err := d.line("| ")
		if err != nil || strings.TrimSpace(text) == "." {
			return strings.Join(all, "\n"), err
		}
		all = append(all, text)
	}
}

// askYesNo asks a question and returns true unless the answer is no.
func (d *dialogue) askYesNo(question string) (bool, error) {
	text, err := d.ask(d.prompt(question+" [Y/n] "), func(s string) []string {
		if !slices.Contains([]string{"", "y", "yes", "n", "no"}, strings.ToLower(s)) {
			return []string{"answer y or n"}
		}
		return nil
	})
	return !strings.HasPrefix(strings.ToLower(text), "n"), err
}

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
