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

type sessionCreateCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	ID    string `help:"Idempotency key: a repeated request creates one session."`
}

func (c sessionCreateCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.CreateSession{Agent: c.Agent, ID: c.ID}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s\n%s\n", v.ID, v.Agent, a.named("anima session send "+v.Agent+" \"…\" --session "+v.ID))
	})
}

type sessionListCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c sessionListCmd) Run(ctx context.Context, a *app) error {
	req := api.ListSessions{Agent: c.Agent, After: c.After, Limit: c.Limit}
	return listOf(ctx, a, c.Agent, req, func(v api.Sessions) int { return len(v.Sessions) }, func(w io.Writer, v api.Sessions) {
		table(w, "SESSION\tAGENT\tRUNS\tTURNS\tTOKENS\tCOST\tLAST", v.Sessions, v.Page, func(s api.Session) []any {
			return []any{s.ID, s.Agent, s.Messages, s.Turns, s.InputTokens + s.OutputTokens, s.Cost, when(s.UpdatedAt)}
		})
	})
}

type sessionTranscriptCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

// Run prints the transcript; with -o json as JSONL (docs/reference/context.md, Transcript
// format).
func (c sessionTranscriptCmd) Run(ctx context.Context, a *app) error {
	return a.transcript(ctx, c.Session, func(l api.TranscriptLine) error {
		if a.json() {
			return writeLine(a.Out, l)
		}
		_, err := fmt.Fprintf(a.Out, "[%s] %s: %s\n", l.Timestamp, l.Role, plain(l.Content))
		for _, call := range l.ToolCalls {
			if err == nil {
				_, err = fmt.Fprintf(a.Out, "    → %s %s\n", plain(call.Name), plain(call.Arguments))
			}
		}
		return err
	})
}

type sessionEventsCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	Watch   bool   `short:"w" help:"Continue with new events until interrupted."`
	After   uint64 `help:"Only events after this sequence number."`
}

func (c sessionEventsCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	if _, err := callFor[api.Session](ctx, b, api.GetSession{Session: c.Session}); err != nil {
		return err
	}
	after := c.After
	printed := func(m bus.Stored) error {
		e, err := eventOf(m)
		if err != nil {
			return err
		}
		if a.json() {
			err = e.writeJSON(a.Out)
		} else {
			_, err = fmt.Fprintf(a.Out, "%d %s %s %s\n", e.seq, m.At.UTC().Format(time.RFC3339Nano), e.name, line(string(e.data), 160))
		}
		if err == nil && !m.More {
			after = m.Sequence
		}
		return err
	}
	if !c.Watch {
		return b.PastEvents(ctx, after, printed, bus.SessionEvents(c.Session)...)
	}
	if after > 0 {
		if err := b.CheckAfter(ctx, after, bus.SessionEvents(c.Session)...); err != nil {
			return err
		}
	}
	a.disconnect() // the watch opens its own connections
	err = a.withReconnect(ctx, a.away, func(ctx context.Context, b *bus.Bus) error {
		return b.Events(ctx, after, printed, bus.SessionEvents(c.Session)...)
	})
	if ctx.Err() != nil { // interrupted
		return nil
	}
	return err
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
	return writeLine(w, struct {
		Seq   uint64          `json:"seq,omitempty"`
		More  bool            `json:"more,omitempty"`
		Event string          `json:"event"`
		Data  json.RawMessage `json:"data"`
	}{e.seq, e.more, e.name, e.data})
}

type sessionResetCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

func (c sessionResetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ResetSession{Session: c.Session}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s is reset; %d turns stay in its transcript\n", v.ID, v.Agent, v.Reset)
	})
}

type sessionTerminateCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	Reason  string `help:"The reason." default:"your creator ended it"`
}

func (c sessionTerminateCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.TerminateSession{Session: c.Session, Reason: c.Reason}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s is terminated since %s: %s\n", v.ID, v.Agent, when(v.Terminated), line(v.Reason, 200))
	})
}

type sessionCancelCmd struct {
	runGetCmd
	Reason string `help:"The reason." default:"your creator cancelled it"`
}

func (c sessionCancelCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.CancelRun{Run: c.ID, Session: c.Session, Reason: c.Reason}, a.runText)
}

type runCmd struct {
	Get runGetCmd `cmd:"" help:"Show a run: its progress, or its outcome."`
}

type runGetCmd struct {
	ID      string `arg:"" name:"run" help:"The run."`
	Session string `help:"Its session; needed while the run waits." placeholder:"SESSION" predictor:"session"`
}

func (c runGetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetRun{Run: c.ID, Session: c.Session}, a.runText)
}

func (a *app) runText(w io.Writer, v api.RunState) {
	row(w, "run", v.Run)
	fmt.Fprintf(w, "session\t%s\nagent\t%s\nkind\t%s\nstatus\t%s\naccepted\t%s\n", v.Session, v.Agent, v.Kind, v.Status, when(v.AcceptedAt))
	if v.Cancelled {
		row(w, "cancelled", "yes")
	}
	fate := string(v.Outcome)
	if fate != "" && v.Into != "" {
		fate += " into run " + v.Into
	}
	fields(w, "fate", fate)
	if v.Status != api.RunEnded {
		return
	}
	end := "well"
	if !v.Success {
		end = line(fmt.Sprintf("%s %s: %s", v.Code, v.Reason, v.Error), 200)
	}
	fields(w, "ended", when(v.EndedAt)+", "+end, "next", a.named(line(v.Next, 300)), "turns", v.Turns, "cost", v.Cost, "response", indent(v.Response))
}

type sessionGetCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

// sessionView is a session with its work in progress. Owner, next run and last step are
// read one after the other without a lock, so they may belong to different times.
type sessionView struct {
	api.Session

	Lock *api.Lock    `json:"lock,omitempty"` // owner and expiry; nil: no replica runs the session
	Next *api.Run     `json:"next,omitempty"` // oldest message that is not done, including the one in progress
	Step *journalStep `json:"step,omitempty"` // nil: none within the retention of the journal
}

// journalStep is a step of a session's journal without its content.
type journalStep struct {
	Run  string `json:"runId"`
	Turn int    `json:"turn"`
	Kind string `json:"kind"`
	At   int64  `json:"at"` // Unix microseconds
}

func (c sessionGetCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var v sessionView
	if v.Session, err = bus.Call[api.Session](ctx, b, api.GetSession{Session: c.Session}); err != nil {
		return err
	}
	if err := v.look(ctx, b); err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { v.text(w, time.Now()) })
}

// look fills in the fields that it reads from the bus without a request to a service.
func (v *sessionView) look(ctx context.Context, b *bus.Bus) error {
	now := time.Now().UnixMicro()
	var last api.Journal
	m, err := b.Last(ctx, api.Journal{Session: v.ID}.Subject())
	exists, err := found(m, err, &last)
	if err != nil {
		return err
	}
	if exists {
		v.Step = &journalStep{last.Run, last.Turn, last.Kind, m.At.UnixMicro()}
	}
	if err := v.owner(ctx, b, last, now); err != nil {
		return err
	}
	var next api.Run
	m, err = b.Next(ctx, api.Run{Session: v.ID}.Subject(), 1)
	if exists, err = found(m, err, &next); exists {
		v.Next = &next
	}
	return err
}

// found decodes a message that was read into v, and reports whether it exists.
func found(m bus.Stored, err error, v any) (bool, error) {
	if api.CodeOf(err) == api.NotFound {
		return false, nil
	}
	if err == nil {
		err = api.Decode(m.Data, v)
	}
	return err == nil, err
}

// owner fills in the owner of the session, from the last entry of its journal and from
// the lock that may extend its lease.
func (v *sessionView) owner(ctx context.Context, b *bus.Bus, last api.Journal, now int64) error {
	held, open := last.Held("", now)
	if held {
		v.Lock = &api.Lock{Run: last.Run, Owner: last.Owner, Epoch: last.Epoch, Expires: last.Expires}
	}
	if !open {
		return nil
	}
	locks, err := bus.OpenBucket[api.Lock](ctx, b)
	if err != nil {
		return err
	}
	e, err := locks.Get(ctx, api.LockKey(v.ID))
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err == nil && e.Value.Expires > now { // an expired lock has not been deleted yet
		v.Lock = &e.Value
	}
	return err
}

func (v *sessionView) text(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "session\t%s\nagent\t%s\nmessages\t%d\nturns\t%d\ncost\t%s\n", v.ID, v.Agent, v.Messages, v.Turns, v.Cost)
	owner, next, step := "no replica", "nothing", "-"
	if v.Lock != nil {
		owner = fmt.Sprintf("replica %s, run %s", plain(v.Lock.Owner), v.Lock.Run)
	}
	if v.Next != nil {
		next = fmt.Sprintf("run %s, a %s of %s", v.Next.Run, v.Next.Kind, ago(v.Next.AcceptedAt, now))
	}
	if v.Step != nil {
		step = fmt.Sprintf("%s, turn %d of run %s, %s", plain(v.Step.Kind), v.Step.Turn, v.Step.Run, ago(v.Step.At, now))
	}
	fmt.Fprintf(w, "run by\t%s\nnext\t%s\nlast step\t%s\n", owner, next, step)
	if v.Terminated != 0 {
		fmt.Fprintf(w, "terminated\t%s: %s\n", when(v.Terminated), line(v.Reason, 100))
	}
}
