package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type sessionCmd struct {
	Send       sessionSendCmd       `cmd:"" help:"Send a message and wait for the answer."`
	Create     sessionCreateCmd     `cmd:"" help:"Begin a session."`
	List       sessionListCmd       `cmd:"" help:"List sessions, the latest first."`
	Get        sessionGetCmd        `cmd:"" help:"Show a session: who runs it, what is next, its last step."`
	Transcript sessionTranscriptCmd `cmd:"" help:"Print a session's transcript."`
	Events     sessionEventsCmd     `cmd:"" help:"Print a session's events."`
	Cancel     sessionCancelCmd     `cmd:"" help:"Cancel a run."`
	Reset      sessionResetCmd      `cmd:"" help:"Begin a session's conversation anew."`
	Terminate  sessionTerminateCmd  `cmd:"" help:"End a session for good."`
	Export     sessionExportCmd     `cmd:"" help:"Write a session's transcript as JSONL."`
	Import     sessionImportCmd     `cmd:"" help:"Make a session of a transcript."`
}

type sessionSendCmd struct {
	Agent   string        `arg:"" help:"The agent." predictor:"agent"`
	Message []string      `arg:"" help:"What to say; - reads standard input."`
	Session string        `help:"A session of the agent; \"new\" makes one; default is its main session."`
	Mode    string        `help:"What to do while the session is busy: queue (wait), drop (give up), interrupt (cancel what runs), steer (join the turn under way) or collect (wait, and join the others that wait)." enum:"queue,drop,interrupt,steer,collect" default:"queue"`
	ID      string        `help:"Your id for this message: sending it twice is sending it once."`
	Wait    bool          `help:"Wait for the end of the run." default:"true" negatable:""`
	Timeout time.Duration `help:"How long to wait for the end." default:"10m"`
}

// Help is shown by --help.
func (sessionSendCmd) Help() string {
	return `Without --no-wait the command shows what the agent does and ends with the run;
it fails when the run does. With -o json it prints the end of the run. A message
that another run takes in (steer, collect) ends with that run.

Examples:
  anima session send lucky "count the words of notes.txt"
  anima session send lucky "only the long ones" --mode steer
  anima session send lucky "stop, read this first" --mode interrupt
  anima session send lucky --session new "something else"
  anima session send lucky - < question.txt
  anima session send lucky "good night" --no-wait -o json`
}

func (c sessionSendCmd) Run(ctx context.Context, a *app) error {
	text := strings.Join(c.Message, " ")
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(a.In, api.MaxMessageBytes+1))
		if err != nil {
			return err
		}
		text = string(data)
	}
	if !utf8.ValidString(text) { // JSON would carry other characters in its place
		return &api.Error{Code: api.Invalid, Message: "the message is not UTF-8", Next: "encode it as UTF-8"}
	}
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	acc, err := bus.Call[api.Accepted](asking, b, api.SendMessage{
		Agent: c.Agent, Session: c.Session, Content: text, Mode: api.Mode(c.Mode), ID: c.ID,
	})
	if err != nil {
		return err
	}
	if !c.Wait {
		return a.print(acc, func(w io.Writer) {
			fmt.Fprintf(w, "accepted as run %s in session %s\n", acc.Run, acc.Session)
		})
	}
	waiting, stop := context.WithTimeout(ctx, c.Timeout)
	defer stop()
	end, err := a.await(waiting, b, acc, c.ID != "")
	if err != nil && waiting.Err() != nil {
		why := "no end after " + c.Timeout.String()
		if ctx.Err() != nil {
			why = "interrupted"
		}
		return &api.Error{
			Code: api.Unavailable, Message: fmt.Sprintf("%s; the run %s goes on", why, acc.Run),
			Next: "watch it with anima session events " + acc.Session + " --watch, or end it with anima session cancel " + acc.Run + " --session " + acc.Session,
		}
	}
	if err != nil {
		return err
	}
	if a.cli.Output == outputJSON {
		if err := a.print(end, nil); err != nil {
			return err
		}
	}
	switch {
	case end.Success:
		return nil
	case end.Fate == api.FateDropped || end.Fate == api.FateExpired:
		return &api.Error{
			Code: api.Denied, Message: "the message was " + string(end.Fate) + " and not run",
			Next: "anima run get " + end.Run + " says why; send it again if it is still wanted",
		}
	}
	return failedRun(end)
}

// failedRun is why a run failed, as an error of the command, which itself did what it
// was asked: its exit code is that of a failure, or of how the answer ended. An end of a
// release before does not say why.
func failedRun(end api.LoopEnd) error {
	e := &api.Error{Code: api.Internal, Reason: end.Reason, Message: "the run failed", Next: "anima session events " + end.Session + " shows what happened"}
	if end.Error != "" {
		e.Message += ": " + end.Error
	}
	if end.Next != "" {
		e.Next = end.Next + "; " + e.Next
	}
	return e
}

// errOver ends following.
var errOver = errors.New("over")

// await follows the run of a message to its end, or the run that took it in.
func (a *app) await(ctx context.Context, b *bus.Bus, acc api.Accepted, repeated bool) (api.LoopEnd, error) {
	for {
		end, err := a.follow(ctx, b, acc, repeated)
		if err != nil || end.Fate != api.FateMerged || end.Into == "" {
			return end, err
		}
		if a.cli.Output != outputJSON {
			fmt.Fprintf(a.Out, "  (joins run %s)\n", end.Into)
		}
		acc.Run, repeated = end.Into, true // it may be over
	}
}

// follow prints a run's events until its end. Runs of a session are one after
// the other, so a fresh run begins after the last end, unless that is its own; a
// repeated one may lie anywhere.
func (a *app) follow(ctx context.Context, b *bus.Bus, acc api.Accepted, repeated bool) (end api.LoopEnd, err error) {
	var after uint64
	if !repeated {
		last, err := b.Last(ctx, api.LoopEnd{Session: acc.Session}.Subject())
		if err != nil && api.CodeOf(err) != api.NotFound {
			return end, err
		}
		if e, err := eventOf(last); err == nil && e.run != acc.Run {
			after = last.Sequence
		}
	}
	err = b.Follow(ctx, after, func(m bus.Stored) error {
		e, err := eventOf(m)
		if err != nil || e.run != acc.Run {
			return err
		}
		if a.cli.Output != outputJSON {
			if text := e.text(); text != "" {
				fmt.Fprintln(a.Out, text)
			}
		}
		if e.name != "loop_end" {
			return nil
		}
		if err := json.Unmarshal(m.Data, &end); err != nil {
			return err
		}
		return errOver
	}, sessionSubjects(acc.Session)...)
	if errors.Is(err, errOver) {
		err = nil
	}
	return end, err
}

// sessionEvents are the stored events of seed 004; deltas are live only.
var sessionEvents = []string{"loop_start", "loop_context", "loop_execute", "tool_start", "tool_end", "loop_persist", "loop_error", "loop_end"}

func sessionSubjects(session string) []string {
	var out []string
	for _, name := range sessionEvents {
		s := api.LoopStart{Session: session}.Subject()
		s.Name = name
		out = append(out, s.String())
	}
	return out
}

// event is one event of a session, as printed.
type event struct {
	name, run string
	seq       uint64
	data      json.RawMessage
}

func eventOf(m bus.Stored) (event, error) {
	var head struct {
		Run string `json:"runId"`
	}
	if err := json.Unmarshal(m.Data, &head); err != nil {
		return event{}, fmt.Errorf("event %d: %w", m.Sequence, err)
	}
	return event{name: strings.Split(m.Subject, ".")[3], run: head.Run, seq: m.Sequence, data: m.Data}, nil
}

// text is the event for people; "" where there is nothing worth a line.
func (e event) text() string {
	switch e.name {
	case "tool_start":
		var v api.ToolStart
		if json.Unmarshal(e.data, &v) == nil {
			return fmt.Sprintf("  → %s %s", v.ToolName, line(string(v.Arguments), 100))
		}
	case "tool_end":
		var v api.ToolEnd
		if json.Unmarshal(e.data, &v) == nil {
			return fmt.Sprintf("  ← %s %s: %s (%d ms)", v.ToolName, v.Outcome, line(v.Result, 100), v.Duration)
		}
	case "loop_error":
		var v api.LoopError
		if json.Unmarshal(e.data, &v) == nil {
			return fmt.Sprintf("  ✗ %s: %s", v.Code, plain(v.Error))
		}
	case "loop_end":
		var v api.LoopEnd
		if json.Unmarshal(e.data, &v) == nil && v.Fate != api.FateMerged { // another's end says more
			return fmt.Sprintf("%s\n  (%d turns, %s, %d ms)", plain(v.Response), v.Turns, v.Cost, v.Duration)
		}
	}
	return ""
}

type sessionListCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c sessionListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListSessions{Agent: c.Agent, After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Sessions) {
		fmt.Fprintln(w, "SESSION\tAGENT\tRUNS\tTURNS\tTOKENS\tCOST\tLAST")
		for _, s := range v.Sessions {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", s.ID, s.Agent, s.Messages, s.Turns, s.InputTokens+s.OutputTokens, s.Cost, when(s.UpdatedAt))
		}
		more(w, v.Page)
	})
}

type sessionTranscriptCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

// Help is shown by --help.
func (sessionTranscriptCmd) Help() string { return "With -o json, one message a line." }

// Run prints seed 004's JSONL with -o json.
func (c sessionTranscriptCmd) Run(ctx context.Context, a *app) error {
	return a.transcript(ctx, c.Session, func(l api.TranscriptLine) error {
		if a.cli.Output == outputJSON {
			return writeLine(a.Out, l)
		}
		fmt.Fprintf(a.Out, "[%s] %s: %s\n", l.Timestamp, l.Role, plain(l.Content))
		for _, call := range l.ToolCalls {
			fmt.Fprintf(a.Out, "    → %s %s\n", call.Name, plain(call.Arguments))
		}
		return nil
	})
}

type sessionEventsCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	Watch   bool   `short:"w" help:"Go on with what comes, until interrupted."`
	After   uint64 `help:"Only what follows this sequence number."`
}

// Help is shown by --help.
func (sessionEventsCmd) Help() string {
	return `With -o json, one event a line; its seq is what --after takes.

Examples:
  anima session events lucky-main
  anima session events lucky-main --watch --after 120 -o json`
}

func (c sessionEventsCmd) Run(ctx context.Context, a *app) error {
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if _, err := bus.Call[api.Session](asking, b, api.GetSession{Session: c.Session}); err != nil {
		return err
	}
	var last uint64
	if !c.Watch {
		for _, s := range sessionEvents {
			subject := api.LoopStart{Session: c.Session}.Subject()
			subject.Name = s
			m, err := b.Last(asking, subject)
			if err != nil && api.CodeOf(err) != api.NotFound {
				return err
			}
			last = max(last, m.Sequence)
		}
		if last <= c.After {
			return nil
		}
	}
	err = b.Follow(ctx, c.After, func(m bus.Stored) error {
		e, err := eventOf(m)
		if err != nil {
			return err
		}
		if a.cli.Output == outputJSON {
			data, err := api.Encode(struct {
				Seq   uint64          `json:"seq"`
				Event string          `json:"event"`
				Data  json.RawMessage `json:"data"`
			}{e.seq, e.name, e.data})
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Out, string(data))
		} else {
			fmt.Fprintf(a.Out, "%d %s %s %s\n", e.seq, m.At.UTC().Format("15:04:05.000"), e.name, line(string(e.data), 160))
		}
		if !c.Watch && m.Sequence >= last {
			return errOver
		}
		return nil
	}, sessionSubjects(c.Session)...)
	if errors.Is(err, errOver) || c.Watch && ctx.Err() != nil {
		return nil
	}
	return err
}
