package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type sessionCmd struct {
	Send       sessionSendCmd       `cmd:"" help:"Send a message and show its run until it ends."`
	Watch      sessionWatchCmd      `cmd:"" help:"Show the runs of a session as they happen."`
	Create     sessionCreateCmd     `cmd:"" help:"Create a session."`
	List       sessionListCmd       `cmd:"" help:"List sessions, the latest first."`
	Get        sessionGetCmd        `cmd:"" help:"Show a session: its owner, its next run and its last step."`
	Transcript sessionTranscriptCmd `cmd:"" help:"Print a session's transcript."`
	Events     sessionEventsCmd     `cmd:"" help:"Print a session's events."`
	Cancel     sessionCancelCmd     `cmd:"" help:"Cancel a run."`
	Reset      sessionResetCmd      `cmd:"" help:"Start a session's conversation again, without its earlier turns."`
	Terminate  sessionTerminateCmd  `cmd:"" help:"End a session permanently."`
	Export     sessionExportCmd     `cmd:"" help:"Write a session's transcript as JSONL."`
	Import     sessionImportCmd     `cmd:"" help:"Create a session from a transcript."`
}

// event is one event of a session, as it is printed.
type event struct {
	name, run string
	seq       uint64
	more      bool // another event of the same sequence follows
	data      json.RawMessage
}

func eventOf(m bus.Stored) (event, error) {
	var head struct {
		Run string `json:"runId"`
	}
	if err := json.Unmarshal(m.Data, &head); err != nil {
		return event{}, fmt.Errorf("event %d: %w", m.Sequence, err)
	}
	return event{name: strings.Split(m.Subject, ".")[3], run: head.Run, seq: m.Sequence, more: m.More, data: m.Data}, nil
}

// writeJSON writes the event as one line. Live pieces have no sequence number.
func (e event) writeJSON(w io.Writer) error {
	data, err := api.Encode(struct {
		Seq   uint64          `json:"seq,omitempty"`
		More  bool            `json:"more,omitempty"`
		Event string          `json:"event"`
		Data  json.RawMessage `json:"data"`
	}{e.seq, e.more, e.name, e.data})
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
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

// Help returns the text that --help prints below the usage.
func (sessionTranscriptCmd) Help() string { return "With -o json, one message per line." }

// Run prints the transcript; with -o json as JSONL (docs/reference/context.md, Transcript
// format).
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
	Watch   bool   `short:"w" help:"Continue with new events until interrupted."`
	After   uint64 `help:"Only events after this sequence number."`
}

// Help returns the text that --help prints below the usage.
func (sessionEventsCmd) Help() string {
	return `With -o json, the output has one event per line. Events that were stored together
have the same seq, and all but the last of them have "more": true. To continue with
--after, use the seq of an event without it.

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
	events := b.PastEvents
	if c.Watch {
		events = b.Events
	}
	err = events(ctx, c.After, func(m bus.Stored) error {
		e, err := eventOf(m)
		if err != nil {
			return err
		}
		if a.cli.Output == outputJSON {
			return e.writeJSON(a.Out)
		}
		fmt.Fprintf(a.Out, "%d %s %s %s\n", e.seq, m.At.UTC().Format(time.RFC3339Nano), e.name, line(string(e.data), 160))
		return nil
	}, bus.SessionEvents(c.Session)...)
	if c.Watch && ctx.Err() != nil {
		return nil
	}
	return err
}
