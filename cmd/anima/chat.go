package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/anima-run/anima/pkg/api"
)

type chatCmd struct {
	Agent   string        `arg:"" help:"The agent." predictor:"agent"`
	Session string        `help:"A session of the agent; \"new\" creates one; default is its main session." predictor:"session"`
	History int           `help:"How many of the last turns to show at the beginning." default:"3"`
	Timeout time.Duration `help:"How long to wait for the end of an answer." default:"10m"`
}

// chat is a conversation with an agent.
type chat struct {
	a       *app
	out     io.Writer
	texts   io.Writer // for texts that are no events: out, or standard error beside JSON
	live    bool      // out is a terminal
	agent   string
	session string // "new" until the first message creates the session
	timeout time.Duration
	failed  error // the last message that failed
}

func (c chatCmd) Run(ctx context.Context, a *app) error {
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	t := &chat{a: a, out: a.Out, texts: a.Out, agent: g.ID, session: g.Session, timeout: c.Timeout}
	if a.json() {
		t.texts = a.Err
	}
	if c.Session != "" {
		t.session = c.Session
	}
	if t.session != newSession {
		if _, err := ask[api.Session](ctx, a, api.GetSession{Session: t.session}); err != nil {
			return err
		}
	}
	tty := terminalOf(a.In, a.Out)
	if tty == nil || a.json() {
		return t.lines(ctx)
	}
	return t.onTerminal(ctx, tty, c.History)
}

// lines sends each line of standard input as a message.
func (c *chat) lines(ctx context.Context) error {
	in := bufio.NewScanner(c.a.stdin())
	in.Buffer(nil, 4*api.MaxMessageBytes)
	for in.Scan() && ctx.Err() == nil {
		text := strings.TrimSpace(in.Text())
		if text == "" {
			continue
		}
		if !utf8.ValidString(text) { // encoding as JSON would replace the invalid bytes
			c.failed = notUTF8()
			c.a.printError(c.failed)
			continue
		}
		if !c.a.json() {
			fmt.Fprintf(c.out, "> %s\n", plain(text))
		}
		leave, err := c.handleLine(ctx, text, nil)
		if err != nil {
			c.failed = err
			c.a.printError(err)
		}
		if leave {
			break
		}
	}
	if err := in.Err(); err != nil && ctx.Err() == nil {
		return failure(api.Invalid, "standard input: "+err.Error(), "give one message per line")
	}
	if c.failed != nil {
		return &shownError{c.failed}
	}
	return nil
}

// onTerminal runs the conversation on a terminal with line editing. Keys that are pressed
// while an answer is shown are kept for the next prompt.
func (c *chat) onTerminal(ctx context.Context, t *terminal, history int) error {
	keys := &keyboard{file: t.in}
	err := t.withLineEditor(ctx, keys, func(d *dialogue) error {
		c.out, c.texts, c.live = d, d, true
		d.SetBracketedPasteMode(true)
		defer d.SetBracketedPasteMode(false)
		fmt.Fprintf(d, "Chat with %s in session %s. /help lists the commands, ctrl-c exits.\n", c.agent, c.session)
		if err := c.history(ctx, history); err != nil {
			c.print(err)
		}
		for {
			text, err := d.message(c.agent + "> ")
			if err != nil {
				return err
			}
			if text == "" {
				continue
			}
			leave, err := c.handleLine(ctx, text, keys)
			if err != nil {
				c.print(err)
			}
			if leave || ctx.Err() != nil {
				return nil
			}
		}
	})
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// message reads one message from the terminal.
func (d *dialogue) message(prompt string) (string, error) {
	var all []string
	d.SetPrompt(prompt)
	for {
		text, err := d.ReadLine()
		switch {
		case errors.Is(err, term.ErrPasteIndicator):
			all = append(all, text)
			d.SetPrompt("… ")
			continue
		case err != nil:
			return "", err
		case len([]rune(text)) >= maxLine:
			fmt.Fprintf(d, "  (that line may have been cut at %d characters and was not sent: use session send for long texts)\n", maxLine)
			return "", nil
		}
		more, continued := strings.CutSuffix(text, `\`)
		all = append(all, more)
		if !continued {
			return strings.TrimSpace(strings.Join(all, "\n")), nil
		}
		d.SetPrompt("… ")
	}
}

// print prints an error within the conversation.
func (c *chat) print(err error) {
	a := *c.a
	a.Err = c.out
	a.printError(err)
}

// handleLine processes one line, which is a command or a message.
func (c *chat) handleLine(ctx context.Context, text string, keys *keyboard) (leave bool, err error) {
	if !strings.HasPrefix(text, "/") {
		return c.send(ctx, text, keys)
	}
	name, arg, _ := strings.Cut(text, " ")
	switch name {
	case "/quit", "/exit", "/q":
		return true, nil
	case "/help":
		fmt.Fprint(c.texts, chatHelp)
	case "/history":
		n := 10
		if arg = strings.TrimSpace(arg); arg != "" {
			if n, err = strconv.Atoi(arg); err != nil || n < 1 {
				return false, api.Errorf(api.Invalid, "%q is not a number of turns", arg)
			}
		}
		return false, c.history(ctx, n)
	case "/new":
		c.session = newSession
		fmt.Fprintln(c.texts, "  (the next message begins a new session)")
	case "/session":
		return false, c.show(ctx)
	default:
		return false, failure(api.Invalid, "there is no command "+name, "/help lists them; a message cannot begin with a slash")
	}
	return false, nil
}

const chatHelp = `  /history [N]     show the last turns
  /new             continue in a new session
  /session         show the session's id and cost
  /quit            exit
  ctrl-c           cancel the run in progress; at the prompt, exit
`

// send sends a message and shows its run.
func (c *chat) send(ctx context.Context, text string, keys *keyboard) (leave bool, err error) {
	here, stop := context.WithCancel(ctx)
	defer stop()
	run, done := context.WithTimeout(here, c.timeout)
	defer done()
	w := c.a.watcher(c.out)
	w.view.live = c.live
	interrupts, cancelled := 0, false
	var asked sync.WaitGroup
	interrupt := func() {
		interrupts++
		current, session := w.watched()
		if interrupts > 1 || current == "" {
			leave = true
			stop()
			return
		}
		w.notice("cancelling the run; ctrl-c again exits")
		asked.Go(func() {
			// The request uses the outer context: the run costs money until it is
			// cancelled, also when the user leaves meanwhile.
			_, err := ask[api.RunState](ctx, c.a, api.CancelRun{Run: current, Session: session, Reason: "your creator interrupted it"})
			if err != nil {
				w.notice("the run was not cancelled: " + err.Error())
			}
			cancelled = err == nil
		})
	}
	released := keys.watch(interrupt)
	end, err := w.send(run, api.SendMessage{Agent: c.agent, Session: c.session, Content: text})
	released()
	asked.Wait()
	if _, session := w.watched(); session != "" && w.run != "" {
		c.session = session
	}
	switch {
	case err != nil && leave && cancelled:
		fmt.Fprintln(c.texts, "  (the run is cancelled)")
		return leave, nil
	case err != nil && run.Err() != nil:
		return leave, w.waitError(here, c.timeout)
	case err != nil:
		return leave, err
	case interrupts > 0 && !end.Success:
		fmt.Fprintln(c.texts, "  (interrupted)")
		return leave, nil
	}
	return leave, runError(end)
}

// history prints the last n turns of the session.
func (c *chat) history(ctx context.Context, n int) error {
	if c.session == newSession || n < 1 {
		return nil
	}
	v, err := ask[api.Turns](ctx, c.a, api.ListTurns{Session: c.session, Limit: n})
	if err != nil {
		return err
	}
	slices.Reverse(v.Turns)
	for _, t := range v.Turns {
		if t.Input != "" {
			fmt.Fprintf(c.texts, "%s\n> %s\n", when(t.StartedAt), strings.ReplaceAll(plain(t.Input), "\n", "\n> "))
		}
		if text := strings.TrimSpace(t.Thinking); text != "" {
			fmt.Fprintln(c.texts, plain(text))
		}
		for _, k := range t.Calls {
			fmt.Fprintf(c.texts, "  → %s %s\n  ← %s: %s\n", plain(k.Tool), line(string(k.Arguments), 200), k.Outcome, line(k.Result+k.Error, 200))
		}
	}
	return nil
}

func (c *chat) show(ctx context.Context) error {
	if c.session == newSession {
		fmt.Fprintln(c.texts, "  (the next message begins a new session)")
		return nil
	}
	s, err := ask[api.Session](ctx, c.a, api.GetSession{Session: c.session})
	if err == nil {
		fmt.Fprintf(c.texts, "  session %s: %d turns, %d tokens, %s\n", s.ID, s.Turns, s.InputTokens+s.OutputTokens, s.Cost)
	}
	return err
}
