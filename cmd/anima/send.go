package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type sessionSendCmd struct {
	Agent   string        `arg:"" help:"The agent." predictor:"agent"`
	Message []string      `arg:"" help:"The message; - reads standard input."`
	Session string        `help:"A session of the agent; \"new\" creates one; default is its main session."`
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
