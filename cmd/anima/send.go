package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type sessionSendCmd struct {
	Agent   string        `arg:"" help:"The agent." predictor:"agent"`
	Message []string      `arg:"" help:"The message; - reads standard input."`
	Session string        `help:"A session of the agent; \"new\" creates one; default is its main session." predictor:"session"`
	Mode    string        `help:"Queue mode, for a busy session: queue (wait), drop (do not run the message), interrupt (cancel the run in progress), steer (join the turn in progress) or collect (wait, and merge with other waiting messages)." enum:"queue,drop,interrupt,steer,collect" default:"queue"`
	ID      string        `help:"Idempotency key: a repeated request sends one message."`
	Wait    bool          `help:"Wait for the end of the run." default:"true" negatable:""`
	Timeout time.Duration `help:"How long to wait for the end." default:"10m"`
}

func (c sessionSendCmd) Run(ctx context.Context, a *app) error {
	text, err := a.message(c.Message)
	if err != nil {
		return err
	}
	req := api.SendMessage{Agent: c.Agent, Session: c.Session, Content: text, Mode: api.Mode(c.Mode), ID: c.ID}
	if !c.Wait {
		return show(ctx, a, req, func(w io.Writer, acc api.Accepted) {
			fmt.Fprintf(w, "accepted as run %s in session %s\n", acc.Run, acc.Session)
		})
	}
	waiting, stop := context.WithTimeout(ctx, c.Timeout)
	defer stop()
	w := a.watcher(a.Out)
	end, err := w.send(waiting, req)
	if err != nil && waiting.Err() != nil {
		return w.waitError(ctx, c.Timeout)
	}
	if err != nil {
		return err
	}
	return runError(end)
}

// send sends a message and shows its run to the end. The message always has an id, so
// that it can be sent again if the connection breaks before the answer.
func (w *watcher) send(ctx context.Context, req api.SendMessage) (api.LoopEnd, error) {
	w.repeated = req.ID != "" // its run may have ended
	if req.ID == "" {
		req.ID = "cli-" + uuid.NewString()
	}
	w.message = &req
	w.mu.Lock()
	w.session = req.Session
	w.mu.Unlock()
	err := w.follow(ctx)
	if err == nil && w.end == nil {
		err = errors.New("the event stream ended before the run")
	}
	if err != nil {
		return api.LoopEnd{}, err
	}
	return *w.end, nil
}

// waitError returns the error of a wait that ended before its run.
func (w *watcher) waitError(ctx context.Context, timeout time.Duration) error {
	why := "the run did not end within " + timeout.String()
	switch {
	case ctx.Err() != nil:
		why = "interrupted"
	case w.away:
		why = "the server could not be reached again within " + timeout.String()
	}
	if w.run == "" {
		return failure(api.Unavailable, why+"; whether the message was accepted is not known",
			"anima session list "+w.message.Agent+" lists the sessions and the times of their last activity")
	}
	why += "; the run " + w.run + " continues"
	if w.away {
		why += " when the server is back"
	}
	return failure(api.Unavailable, why,
		"watch it with anima session watch "+w.session+", or end it with anima session cancel "+w.run+" --session "+w.session)
}

// runError returns the error for the end of a run; nil is success. The command itself
// succeeded, so the exit code of a failed run is that of an internal failure, or of the
// completion's error. End events of the previous release have no code.
func runError(end api.LoopEnd) error {
	switch {
	case end.Success:
		return nil
	case end.Outcome == api.OutcomeDropped || end.Outcome == api.OutcomeExpired:
		return failure(api.Denied, "the message was "+string(end.Outcome)+" and not run",
			"anima run get "+end.Run+" shows the reason; send the message again if it is still needed")
	}
	e := failure(api.Internal, "the run failed", "anima session events "+end.Session+" shows what happened")
	e.Reason = end.Reason
	if end.Error != "" {
		e.Message += ": " + end.Error
	}
	if end.Next != "" {
		e.Next = end.Next + "; " + e.Next
	}
	return e
}

type sessionWatchCmd struct {
	Session string `arg:"" help:"The session, or an agent: its main session." predictor:"agent or session"`
	All     bool   `help:"Start with the session's first event; default is the beginning of its last run."`
	After   uint64 `help:"Only events after this sequence number."`
}

func (c sessionWatchCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	w := a.watcher(a.Out)
	w.view.echo = true
	if w.session, err = sessionOf(ctx, b, c.Session); err != nil {
		return err
	}
	if c.After == 0 && !c.All {
		if w.after, err = beforeLastRun(ctx, b, w.session); err != nil {
			return err
		}
	}
	if c.After > 0 {
		if err := b.CheckAfter(ctx, c.After, bus.SessionEvents(w.session)...); err != nil {
			return err
		}
	}
	a.disconnect() // the watcher opens its own connections
	w.after = max(w.after, c.After)
	if !a.json() && isTerminal(a.Out) {
		fmt.Fprintf(a.Err, "session %s; ctrl-c exits\n", w.session)
	}
	if err := w.follow(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// sessionOf returns the id of the session with this id, or of the main session of the
// agent with this name.
func sessionOf(ctx context.Context, b *bus.Bus, name string) (string, error) {
	s, err := callFor[api.Session](ctx, b, api.GetSession{Session: name})
	if api.CodeOf(err) != api.NotFound {
		return s.ID, err
	}
	g, agentErr := callFor[api.Agent](ctx, b, api.GetAgent{Agent: name})
	if api.CodeOf(agentErr) == api.NotFound {
		return "", failure(api.NotFound, "there is no session and no agent "+name, "anima session list and anima agent list show the existing ones")
	}
	return g.Session, agentErr
}

// beforeLastRun returns the sequence after which the session's last run begins. It
// returns 0 if that is not known or there was no run.
func beforeLastRun(ctx context.Context, b *bus.Bus, session string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	first, err := firstOfLastRun(ctx, b, session)
	if api.CodeOf(err) == api.NotFound {
		first, err = b.Last(ctx, api.LoopStart{Session: session}.Subject()) // of the previous release
	}
	if api.CodeOf(err) == api.NotFound {
		return 0, nil
	}
	return max(first.Sequence, 1) - 1, err
}

// firstOfLastRun returns the entry of the session's journal that holds the LoopStart of
// the last run. It goes backwards from the last entry to the first entry of each epoch.
// Errors: NotFound.
func firstOfLastRun(ctx context.Context, b *bus.Bus, session string) (bus.Stored, error) {
	journal := api.Journal{Session: session}.Subject()
	m, err := b.Last(ctx, journal)
	for err == nil {
		var e api.Journal
		if err := api.Decode(m.Data, &e); err != nil {
			return m, err
		}
		if e.Form == 0 {
			break
		}
		if m, err = b.Next(ctx, journal, e.Epoch); err != nil {
			break
		}
		if began, err := bus.Expand(m, api.LoopStart{}.Subject()); err != nil || len(began) > 0 {
			return m, err
		}
		if err := api.Decode(m.Data, &e); err != nil {
			return m, err
		}
		if e.Last == 0 {
			break
		}
		m, err = b.Next(ctx, journal, e.Last) // last entry of the previous owner
	}
	if err == nil {
		err = api.Errorf(api.NotFound, "session %s has no run", session)
	}
	return m, err
}
