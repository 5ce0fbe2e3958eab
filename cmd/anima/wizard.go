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

// terminal is where a person can be asked: both ends are one.
type terminal struct{ in, out *os.File }

// terminal returns nil where the input or the error output is no terminal.
func (a *app) terminal() *terminal {
	in, ok := a.In.(*os.File)
	out, also := a.Err.(*os.File) // the output may be read by a program
	if !ok || !also || !isTerminal(in) || !isTerminal(out) {
		return nil
	}
	return &terminal{in, out}
}

// withFD lends f's descriptor. The method Fd would take the deadlines away.
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

// errLeft is the error when the user leaves before the last answer.
var errLeft = &api.Error{Code: api.Invalid, Message: "ended before the last answer; nothing was written", Next: "run it again, or give the answers as flags: anima init --help"}

// talk lets f ask. The error is errLeft when the user leaves before the end.
func (t *terminal) talk(ctx context.Context, f func(*dialogue) error) error {
	err := t.edit(ctx, t.in, f)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return errLeft
	}
	return err
}

// edit lets f read lines of keys that come from in. Lines can be edited; ctrl-c and
// ctrl-d end them with io.EOF. When ctx ends, so does reading.
func (t *terminal) edit(ctx context.Context, in io.Reader, f func(*dialogue) error) error {
	var was *term.State
	var raw error
	if err := withFD(t.in, func(fd int) { was, raw = term.MakeRaw(fd) }); err != nil || raw != nil {
		return errors.Join(err, raw)
	}
	// What cannot be restored cannot be helped.
	restore := func() { _ = withFD(t.in, func(fd int) { _ = term.Restore(fd, was) }) }
	defer restore()
	stop := context.AfterFunc(ctx, func() {
		restore()
		// Where the terminal knows no deadline the next key ends it, or the next signal.
		_ = t.in.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	d := &dialogue{Terminal: term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, t.out}, "")}
	_ = withFD(t.out, func(fd int) { // without it long lines are wrapped elsewhere
		if w, h, err := term.GetSize(fd); err == nil && w > 0 {
			_ = d.SetSize(w, h)
		}
	})
	return f(d)
}

// dialogue asks one question after the other.
type dialogue struct{ *term.Terminal }

// maxLine is where the line editor stops taking letters, without a word.
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

// ask asks until the answer has no fault.
func (d *dialogue) ask(prompt string, to *string, judge func(string) []string) error {
	for {
		text, err := d.line(prompt)
		if err != nil {
			return err
		}
		text = strings.TrimSpace(text)
		faults := judge(text)
		if len(faults) == 0 {
			*to = text
			return nil
		}
		for _, f := range faults {
			fmt.Fprintf(d, "  %s\n", f)
		}
	}
}

// lines asks for a text of several lines, which a line with a dot ends.
func (d *dialogue) lines(to *string, judge func(string) []string) error {
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
		faults := judge(text)
		if len(faults) == 0 {
			*to = text
			return nil
		}
		for _, f := range faults {
			fmt.Fprintf(d, "  %s\n", f)
		}
	}
}

// agree asks a question whose answer is yes unless it is no.
func (d *dialogue) agree(question string) (bool, error) {
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

// wanted is what the user is asked for, with what the flags say of it.
type wanted struct {
	file   *loop.AgentFile
	model  *provider // nil: the flags name none
	models int
	fund   *string
}

// ask asks for what the flags do not say, if anything, and then whether to write
// what comes of it.
func (c initCmd) ask(ctx context.Context, a *app, t *terminal, v initView, all *wanted) error {
	f := all.file
	name, genesis := c.Name == nil, c.Genesis == nil && c.GenesisFile == ""
	creator, message, autonomy := c.Creator == nil, c.Message == nil, c.Autonomy == nil
	if c.Yes { // all that has a default is answered
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
	// An answer is judged by the file it would make, the others being right.
	judged := func(change func(*loop.AgentFile, string)) func(string) []string {
		return func(answer string) []string {
			whole := loop.AgentFile{Name: "x", Genesis: "x"}
			change(&whole, answer)
			_, faults := whole.Source()
			return faults
		}
	}
	return t.talk(ctx, func(d *dialogue) error {
		fmt.Fprintf(d, "This makes %s, the file that an agent is born from. Ctrl-c ends it, and nothing is written.\n\n", c.File)
		v.found(d)
		for _, q := range []struct {
			wanted bool
			about  string
			ask    func() error
		}{
			{name, "What is its name? Letters, digits and -.", func() error {
				return d.ask("name: ", &f.Name, judged(func(w *loop.AgentFile, s string) { w.Name = s }))
			}},
			{genesis, "Who is it, and what is it for? This is its genesis prompt. A line with only a dot ends it.", func() error {
				return d.lines(&f.Genesis, judged(func(w *loop.AgentFile, s string) { w.Genesis = s }))
			}},
			{creator, "Your address, if it shall know its creator; enter leaves it out.", func() error {
				return d.ask("creator: ", &f.Creator, judged(func(w *loop.AgentFile, s string) { w.Creator = s }))
			}},
			{message, "What do you tell it at its birth? Enter leaves it out.", func() error {
				return d.ask("message: ", &f.Message, judged(func(w *loop.AgentFile, s string) { w.Message = s }))
			}},
			{autonomy, "An autonomous agent wakes by itself a minute after it had nothing to do, and spends money then.", func() (err error) {
				f.Autonomy, err = d.agree("Shall it be autonomous?")
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
		yes, err := d.agree("An anima is running: make it there, with five dollars of play money?")
		if yes {
			*all.fund = "5"
		}
		return err
	})
}

// confirm shows the file, defaults included, and asks whether to write it.
func (d *dialogue) confirm(file string, f loop.AgentFile) error {
	src, _ := f.Source()
	fmt.Fprintf(d, "\n%s, with all defaults:\n\n", file)
	for l := range strings.Lines(string(src)) {
		fmt.Fprintf(d, "  %s\n", plain(strings.TrimRight(l, "\n")))
	}
	fmt.Fprintln(d)
	yes, err := d.agree("Write it?")
	if err == nil && !yes {
		return errLeft
	}
	return err
}
