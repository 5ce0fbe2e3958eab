package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/loop"
)

// terminal is a terminal for a dialogue: input and output of the same terminal.
type terminal struct{ in, out *os.File }

// terminal returns nil if standard input or standard error is not a terminal.
func (a *app) terminal() *terminal {
	in, ok := a.In.(*os.File)
	out, also := a.Err.(*os.File) // standard output may be a pipe to a program
	if !ok || !also || !isTerminal(in) || !isTerminal(out) {
		return nil
	}
	return &terminal{in, out}
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

func isTerminal(f *os.File) (yes bool) {
	err := withFD(f, func(fd int) { yes = term.IsTerminal(fd) })
	return err == nil && yes
}

// errCancelled is the error for a dialogue that the user ends before the last answer.
var errCancelled = &api.Error{Code: api.Invalid, Message: "the dialogue was cancelled; nothing was written", Next: "run the command again, or give the answers as flags: anima init --help"}

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

// ask repeats a question until judge finds no fault in the answer.
func (d *dialogue) ask(prompt string, to *string, validate func(string) []string) error {
	for {
		text, err := d.line(prompt)
		if err != nil {
			return err
		}
		text = strings.TrimSpace(text)
		faults := validate(text)
		if len(faults) == 0 {
			*to = text
			return nil
		}
		for _, f := range faults {
			fmt.Fprintf(d, "  %s\n", f)
		}
	}
}

// lines reads a text of several lines, up to a line that is a single dot.
func (d *dialogue) lines(to *string, validate func(string) []string) error {
	for {
		var all []string
		for {
			text, err := d.line("| ")
			if err != nil {
				return err
			}
			if strings.TrimSpace(text) == "." {
				break
			}
			all = append(all, text)
		}
		text := strings.TrimSpace(strings.Join(all, "\n"))
		faults := validate(text)
		if len(faults) == 0 {
			*to = text
			return nil
		}
		for _, f := range faults {
			fmt.Fprintf(d, "  %s\n", f)
		}
	}
}

// askYesNo asks a question and returns true unless the answer is no.
func (d *dialogue) askYesNo(question string) (bool, error) {
	yes := true
	err := d.ask(question+" [Y/n] ", new(string), func(s string) []string {
		switch strings.ToLower(s) {
		case "", "y", "yes":
			return nil
		case "n", "no":
			yes = false
			return nil
		}
		return []string{"answer y or n"}
	})
	return yes, err
}

// initValues holds the values that the dialogue asks for, preset by the flags.
type initValues struct {
	file   *loop.AgentFile
	model  *provider // nil: the flags name none
	models int
	fund   *string
}

// ask asks for the values that the flags do not set, and then whether to write the
// resulting file.
func (c initCmd) ask(ctx context.Context, a *app, t *terminal, v initView, all *initValues) error {
	f := all.file
	name, genesis := c.Name == nil, c.Genesis == nil && c.GenesisFile == ""
	creator, message, autonomy := c.Creator == nil, c.Message == nil, c.Autonomy == nil
	if c.Yes { // values with a default are not asked for
		creator, message, autonomy = false, false, false
	}
	model := all.model == nil && !c.Yes && len(v.Providers) == 0
	if !name && !genesis && !creator && !message && !autonomy && !model {
		return nil
	}
	stored, err := a.storedHere()
	if err != nil {
		return err
	}
	// An answer is validated as part of a file in which the other values are valid.
	validator := func(change func(*loop.AgentFile, string)) func(string) []string {
		return func(answer string) []string {
			whole := loop.AgentFile{Name: "x", Genesis: "x"}
			change(&whole, answer)
			_, faults := whole.Source()
			return faults
		}
	}
	return t.runDialogue(ctx, func(d *dialogue) error {
		fmt.Fprintf(d, "This writes %s, the file that an agent is created from. Ctrl-c exits, and nothing is written.\n\n", c.File)
		v.printEnvironment(d)
		for _, q := range []struct {
			wanted bool
			about  string
			ask    func() error
		}{
			{name, "What is the agent's name? Letters, digits and -.", func() error {
				return d.ask("name: ", &f.Name, validator(func(w *loop.AgentFile, s string) { w.Name = s }))
			}},
			{genesis, "What are its identity and its purpose? This is the genesis prompt. A line with only a dot ends it.", func() error {
				return d.lines(&f.Genesis, validator(func(w *loop.AgentFile, s string) { w.Genesis = s }))
			}},
			{creator, "What is the address of its creator? Enter omits it.", func() error {
				return d.ask("creator: ", &f.Creator, validator(func(w *loop.AgentFile, s string) { w.Creator = s }))
			}},
			{message, "What is the message of its creator for the first turn? Enter omits it.", func() error {
				return d.ask("message: ", &f.Message, validator(func(w *loop.AgentFile, s string) { w.Message = s }))
			}},
			{autonomy, "An autonomous agent is woken a minute after it had no more work, and its runs cost money.", func() (err error) {
				f.Autonomy, err = d.askYesNo("Make the agent autonomous?")
				return err
			}},
			{model, "", func() (err error) {
				all.model, all.models, err = d.askModel(ctx, stored)
				return err
			}},
		} {
			if !q.wanted {
				continue
			}
			if q.about != "" {
				fmt.Fprintf(d, "\n%s\n", q.about)
			}
			if err := q.ask(); err != nil {
				return err
			}
		}
		if c.Yes {
			return nil
		}
		if err := d.confirm(c.File, *f); err != nil || *all.fund != "" || !a.running() {
			return err
		}
		yes, err := d.askYesNo("An anima is running: create the agent there, with $5 of test credits?")
		if yes {
			*all.fund = "5"
		}
		return err
	})
}

// confirm prints the file, including defaults, and asks whether to write it.
func (d *dialogue) confirm(file string, f loop.AgentFile) error {
	src, _ := f.Source()
	fmt.Fprintf(d, "\n%s, with all defaults:\n\n", file)
	for l := range strings.Lines(string(src)) {
		fmt.Fprintf(d, "  %s\n", plain(strings.TrimRight(l, "\n")))
	}
	fmt.Fprintln(d)
	yes, err := d.askYesNo("Write it?")
	if err == nil && !yes {
		return errCancelled
	}
	return err
}
