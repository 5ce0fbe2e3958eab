package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

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

// Help returns the text that --help prints below the usage.
func (sessionSendCmd) Help() string {
	return `Without --no-wait the command shows the text of the model and the tool calls as they
happen and ends with the run; it fails if the run fails. With -o json it prints the
events, one per line, as session events does; the last is loop_end. While the server
cannot be reached, the command reconnects and continues after the last event;
--timeout limits the whole wait. A message that is merged into another run (steer,
collect) ends with that run.

Examples:
  anima session send lucky "count the words of notes.txt"
  anima session send lucky "only the long ones" --mode steer
  anima session send lucky "stop, read this first" --mode interrupt
  anima session send lucky --session new "something else"
  anima session send lucky - < question.txt
  anima session send lucky "good night" --no-wait -o json`
}

// message joins a command's words to a text. A single "-" reads standard input, up to one
// byte more than the maximum of a message, which is enough to detect a longer one.
func (a *app) message(words []string) (string, error) {
	text := strings.Join(words, " ")
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(a.In, api.MaxMessageBytes+1))
		if err != nil {
			return "", err
		}
		text = string(data)
	}
	if !utf8.ValidString(text) { // encoding as JSON would replace the invalid bytes
		return "", &api.Error{Code: api.Invalid, Message: "the message is not UTF-8", Next: "encode it as UTF-8"}
	}
	return text, nil
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
		return &api.Error{Code: api.Unavailable, Message: why + "; whether the message was accepted is not known", Next: "anima session list " + w.message.Agent + " lists the sessions and the times of their last activity"}
	}
	goes := "the run " + w.run + " continues"
	if w.away {
		goes += " when the server is back"
	}
	return &api.Error{
		Code: api.Unavailable, Message: why + "; " + goes,
		Next: "watch it with anima session watch " + w.session + ", or end it with anima session cancel " + w.run + " --session " + w.session,
	}
}

// runError returns the error for the end of a run; nil is success.
func runError(end api.LoopEnd) error {
	switch {
	case end.Success:
		return nil
	case end.Outcome == api.OutcomeDropped || end.Outcome == api.OutcomeExpired:
		return &api.Error{
			Code: api.Denied, Message: "the message was " + string(end.Outcome) + " and not run",
			Next: "anima run get " + end.Run + " shows the reason; send the message again if it is still needed",
		}
	}
	return failedRun(end)
}

// failedRun returns the error for a failed run. The command itself succeeded, so the exit
// code is that of an internal failure, or of the completion's error. End events of the
// previous release have no code.
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
