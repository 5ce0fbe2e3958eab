package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

// errRunEnded is the cause with which following ends after the end of the watched run.
var errRunEnded = errors.New("over")

// watcher follows a session. It reads events from the stream by their sequence numbers,
// and the live pieces of a completion from subscriptions. It continues over a restart of
// the server.
type watcher struct {
	a       *app
	view    *viewer
	notice  func(string)
	message *api.SendMessage // sent first; nil: no message
	away    bool

	repeated bool   // the message may have been sent before
	after    uint64 // sequence of the last event that was read

	mu      sync.Mutex // guards the fields below; only the goroutine of follow writes session and run
	session string
	run     string       // the watched run; "": all runs
	pending []live       // pieces that arrived before the message's run was known
	end     *api.LoopEnd // end of the watched run
}

func (a *app) watcher(out io.Writer) *watcher {
	w := &watcher{a: a, view: a.viewer(out)}
	w.notice = w.view.note
	if w.view.json { // keep JSON output free of other text
		w.notice = func(s string) { fmt.Fprintln(a.Err, "  ("+line(s, 300)+")") }
	}
	return w
}

// follow shows the session until the watched run ends or ctx ends.
func (w *watcher) follow(ctx context.Context) error {
	err := w.a.withReconnect(ctx, func(away bool) {
		w.away = away
		w.view.interrupted()
		if away {
			w.notice("the server cannot be reached, reconnecting")
		} else {
			w.notice("reconnected")
		}
	}, w.once)
	if errors.Is(err, errRunEnded) {
		return nil
	}
	return err
}

// once follows the session on one connection.
func (w *watcher) once(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if err := w.resolveSession(ctx, b); err != nil {
		return err
	}
	for _, l := range []struct {
		of   api.Message
		read func([]byte) (live, error)
	}{{api.StreamDelta{Session: w.session}, liveDelta}, {api.Thinking{Session: w.session}, liveThinking}} {
		subject := l.of.Subject().String()
		if w.session == newSession { // the id is known only after the message was sent
			subject = l.of.Subject().All()
		}
		ready := make(chan struct{})
		wg.Go(func() {
			cancel(b.Subscribe(ctx, subject, func() { close(ready) }, func(data []byte) {
				if d, err := l.read(data); err == nil {
					w.piece(d)
				}
			}))
		})
		select {
		case <-ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := w.begin(ctx, b); err != nil {
		return err
	}
	w.view.turn = func(id string) (api.Turn, error) { return callFor[api.Turn](ctx, b, api.GetTurn{Turn: id}) }
	w.view.input = func(run string) string { return w.input(ctx, b, run) }
	if w.run != "" {
		wg.Go(func() { w.pollRun(ctx, b, cancel) })
	}
	w.view.eventsShown(w.after)
	for {
		events := bus.SessionEvents(w.session)
		err := b.Follow(ctx, w.after, func(m bus.Stored) error { return w.stored(m, events) }, bus.EventSources(events...)...)
		if errors.Is(err, errMerged) {
			continue
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, errRunEnded) {
			return cause
		}
		return err
	}
}

// resolveSession determines the session to follow.
func (w *watcher) resolveSession(ctx context.Context, b *bus.Bus) error {
	if w.session != "" {
		return nil
	}
	g, err := callFor[api.Agent](ctx, b, api.GetAgent{Agent: w.message.Agent})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.session = g.Session
	w.mu.Unlock()
	return nil
}

const newSession = "new"

// begin sends the message, unless that is done, and determines the sequence after which
// the events of its run begin. The runs of a session are sequential, so the events of a
// new run come after the beginning of the session's last run, which may be the new run
// itself. The events of a repeated message's run may be anywhere in the stream.
func (w *watcher) begin(ctx context.Context, b *bus.Bus) error {
	if w.message == nil || w.run != "" {
		return nil
	}
	acc, err := callFor[api.Accepted](ctx, b, *w.message)
	for tries := 0; w.away && api.ReasonOf(err) == api.ReasonNoAnswer && ctx.Err() == nil && tries < 6; tries++ {
		acc, err = callFor[api.Accepted](ctx, b, *w.message) // the services start after their NATS server
	}
	if err != nil {
		return err
	}
	w.accepted(acc)
	if w.repeated {
		return nil
	}
	w.after, err = beforeLastRun(ctx, b, acc.Session)
	return err
}

// watched returns the run and the session that are watched.
func (w *watcher) watched() (run, session string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run, w.session
}

// watches reports whether the run is watched.
func (w *watcher) watches(run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run == "" || w.run == run
}

// piece processes a live message of the session, of the watched run or another.
func (w *watcher) piece(l live) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.end != nil: // the whole text was shown
	case w.message != nil && w.run == "":
		if len(w.pending) < maxEarly {
			w.pending = append(w.pending, l)
		}
	case w.run == "" || w.run == l.run:
		w.view.piece(l)
	}
}

// accepted stores the run of the message, and shows the pieces that arrived before it was
// known.
func (w *watcher) accepted(acc api.Accepted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run, w.session = acc.Run, acc.Session
	for _, l := range w.pending {
		if l.run == acc.Run {
			w.view.piece(l)
		}
	}
	w.pending = nil
}

// errMerged restarts following with the run that the watched one was merged into.
var errMerged = errors.New("merged")

// stored processes a message of the stream. After the end of the watched run it returns
// errRunEnded, or errMerged if the watched run is now the one that it was merged into.
func (w *watcher) stored(m bus.Stored, events []api.Subject) error {
	all, err := bus.Expand(m, events...)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := w.event(e); err != nil {
			return err
		}
	}
	w.after = m.Sequence
	w.view.eventsShown(m.Sequence)
	return nil
}

func (w *watcher) event(m bus.Stored) error {
	e, err := eventOf(m)
	if err != nil || !w.watches(e.run) {
		return err
	}
	if e.name != "loop_end" || w.run == "" {
		return w.view.event(e)
	}
	var end api.LoopEnd
	if err := json.Unmarshal(m.Data, &end); err != nil {
		return err
	}
	merged := end.Outcome == api.OutcomeMerged && end.Into != ""
	if !merged {
		// Set before the end is shown: a live piece that arrives late must not follow it.
		w.mu.Lock()
		w.end = &end
		w.mu.Unlock()
	}
	if err := w.view.event(e); err != nil {
		return err
	}
	if !merged {
		return errRunEnded
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run, w.after = end.Into, 0 // that run may have ended
	w.view.mergedInto(end.Into)
	return errMerged
}

// checkInterval is the interval at which the watcher requests the state of the run from
// loop. endEventTimeout is how long it waits for the run's end event after loop has
// reported the run as ended.
const (
	checkInterval   = 5 * time.Second
	endEventTimeout = 3 * time.Second
)

// pollRun requests the state of the run periodically and ends the watch when the run has
// ended, also if its end event was lost with the end of a stream. It reports once when
// the message waits for its session.
func (w *watcher) pollRun(ctx context.Context, b *bus.Bus, cancel context.CancelCauseFunc) {
	said := false
	for delay := time.Second; ; delay = checkInterval {
		if wait.For(ctx, delay) != nil {
			return
		}
		run, session := w.watched()
		st, err := callFor[api.RunState](ctx, b, api.GetRun{Run: run, Session: session})
		switch {
		case err != nil: // retried after checkInterval
		case st.Status == api.RunQueued && !said && !w.view.json:
			said = true
			w.notice("the session is busy; the message is queued")
		case st.Status == api.RunEnded && st.Outcome != api.OutcomeMerged:
			if wait.For(ctx, endEventTimeout) != nil || !w.watches(st.Run) {
				continue
			}
			end := api.LoopEnd{
				Run: st.Run, Session: st.Session, Agent: st.Agent, Success: st.Success, Outcome: st.Outcome, Response: st.Response,
				Turns: st.Turns, Cost: st.Cost, Duration: (st.EndedAt - st.AcceptedAt) / 1000, At: st.EndedAt,
				Code: st.Code, Reason: st.Reason, Error: st.Error, Next: st.Next,
			}
			w.mu.Lock()
			w.end = &end
			w.mu.Unlock()
			w.view.endWithoutEvent(end)
			cancel(errRunEnded)
			return
		}
	}
}

// input returns the message that began a run: from its first turn if that is stored,
// otherwise from the queue. It is "" if neither has it.
func (w *watcher) input(ctx context.Context, b *bus.Bus, run string) string {
	if t, err := callFor[api.Turn](ctx, b, api.GetTurn{Turn: run + ".1"}); err == nil {
		return t.Input
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var next api.Run
	m, err := b.Next(ctx, api.Run{Session: w.session}.Subject(), 1)
	if exists, err := found(m, err, &next); err != nil || !exists || next.Run != run {
		return ""
	}
	return next.Content
}
