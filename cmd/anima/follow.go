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
)

// errOver ends following.
var errOver = errors.New("over")

// errBroken is why a use of a connection ends that broke.
var errBroken = errors.New("the connection broke")

// lookAgain is how long to wait between two attempts to find a server that is away.
const lookAgain = 250 * time.Millisecond

// steady calls use with a connection to the services. When the connection breaks,
// the context of use ends; steady looks for the services where they are then, and
// calls use again. It ends with use, or with ctx. A server that cannot be reached
// at the first attempt is an error at once.
func (a *app) steady(ctx context.Context, away func(bool), use func(context.Context, *bus.Bus) error) error {
	b, done, err := a.bus()
	for err == nil {
		var broken bool
		broken, err = whole(ctx, b, use)
		done()
		if !broken {
			return err
		}
		b, done, err = a.again(ctx, away)
	}
	return err
}

// whole calls use and says whether it ended because the connection broke.
func whole(ctx context.Context, b *bus.Bus, use func(context.Context, *bus.Bus) error) (bool, error) {
	once, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	gone := b.Broken()
	wg.Go(func() {
		select {
		case <-gone:
			cancel(errBroken)
		case <-once.Done():
		}
	})
	err := use(once, b)
	// What came to its end needs no other connection.
	return err != nil && !errors.Is(err, errOver) && ctx.Err() == nil && errors.Is(context.Cause(once), errBroken), err
}

// again connects when the services are there, and says when they are not.
func (a *app) again(ctx context.Context, away func(bool)) (*bus.Bus, func(), error) {
	for try := 0; ; try++ {
		b, done, err := a.bus()
		if err == nil {
			if try > 0 {
				away(false)
			}
			return b, done, nil
		}
		if try == 0 {
			away(true)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// watcher follows a session: events from the stream, by their sequence numbers, and
// live pieces of what the model writes. It survives the server's restart.
type watcher struct {
	a       *app
	view    *viewer
	notice  func(string)
	message *api.SendMessage // that is sent first; nil is none
	away    bool

	repeated bool   // the message may have been sent before
	after    uint64 // the last event that was seen

	mu      sync.Mutex // of what follows; the goroutine of follow alone writes session and run
	session string
	run     string       // the run that is watched; "" is all
	early   []live       // what came before the run of the message was known
	end     *api.LoopEnd // of the run
}

func (a *app) watcher(out io.Writer) *watcher {
	w := &watcher{a: a, view: newViewer(out, a.cli.Output == outputJSON)}
	w.notice = w.view.note
	if w.view.json { // the output is for programs
		w.notice = func(s string) { fmt.Fprintln(a.Err, "  ("+s+")") }
	}
	return w
}

// follow shows the session until the watched run ends, or until ctx does.
func (w *watcher) follow(ctx context.Context) error {
	err := w.a.steady(ctx, func(away bool) {
		w.away = away
		w.view.interrupted()
		if away {
			w.notice("the server is away; waiting for it to come back")
		} else {
			w.notice("the server is back")
		}
	}, w.once)
	if errors.Is(err, errOver) {
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
	if err := w.place(ctx, b); err != nil {
		return err
	}
	for _, l := range []struct {
		of   api.Message
		read func([]byte) (live, error)
	}{{api.StreamDelta{Session: w.session}, liveDelta}, {api.Thinking{Session: w.session}, liveThinking}} {
		subject := l.of.Subject().String()
		if w.session == newSession { // its id is not known before the message is sent
			subject = l.of.Subject().All()
		}
		ready := make(chan struct{})
		wg.Go(func() {
			cancel(b.Listen(ctx, subject, func() { close(ready) }, func(data []byte) {
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
		wg.Go(func() { w.check(ctx, b, cancel) })
	}
	w.view.reached(w.after)
	for {
		events := bus.SessionEvents(w.session)
		err := b.Follow(ctx, w.after, func(m bus.Stored) error { return w.stored(m, events) }, bus.EventSources(events...)...)
		if errors.Is(err, errMerged) {
			continue
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, errOver) {
			return cause
		}
		return err
	}
}

// place finds out which session is followed.
func (w *watcher) place(ctx context.Context, b *bus.Bus) error {
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

// begin sends the message, unless that was done, and finds out where its run's
// events begin. Runs of a session are one after the other, so the events of a fresh run
// begin after the beginning of the last one, which may be its own; those of a repeated
// one may lie anywhere.
func (w *watcher) begin(ctx context.Context, b *bus.Bus) error {
	if w.message == nil || w.run != "" {
		return nil
	}
	acc, err := callFor[api.Accepted](ctx, b, *w.message)
	for tries := 0; w.away && api.ReasonOf(err) == api.ReasonNoAnswer && ctx.Err() == nil && tries < 6; tries++ {
		acc, err = callFor[api.Accepted](ctx, b, *w.message) // the services come up after their NATS
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

// watched is the run and the session that are watched.
func (w *watcher) watched() (run, session string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run, w.session
}

// watches says whether a run is one that is watched.
func (w *watcher) watches(run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run == "" || w.run == run
}

// piece takes a live message of the session, of this run or another.
func (w *watcher) piece(l live) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.end != nil: // the whole text was shown
	case w.message != nil && w.run == "":
		if len(w.early) < maxEarly {
			w.early = append(w.early, l)
		}
	case w.run == "" || w.run == l.run:
		w.view.piece(l)
	}
}

// accepted notes the run of the message, and shows the pieces that came before it
// was known.
func (w *watcher) accepted(acc api.Accepted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run, w.session = acc.Run, acc.Session
	for _, l := range w.early {
		if l.run == acc.Run {
			w.view.piece(l)
		}
	}
	w.early = nil
}

// errMerged goes on with the run that took the watched one in.
var errMerged = errors.New("merged")

// stored takes a message of the stream.
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
	w.view.reached(m.Sequence)
	return nil
}

func (w *watcher) event(m bus.Stored) error {
	e, err := eventOf(m)
	if err != nil {
		return err
	}
	if !w.watches(e.run) {
		return nil
	}
	if err := w.view.event(e); err != nil {
		return err
	}
	if e.name != "loop_end" || w.run == "" {
		return nil
	}
	var end api.LoopEnd
	if err := json.Unmarshal(m.Data, &end); err != nil {
		return err
	}
	return w.over(end)
}

// over notes the end of the watched run, or watches the one that took it in.
func (w *watcher) over(end api.LoopEnd) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end.Fate == api.FateMerged && end.Into != "" {
		w.run, w.after = end.Into, 0 // it may be over
		w.view.joins(end.Into)
		return errMerged
	}
	w.end = &end
	return errOver
}

// How often loop is asked about the run, and how long the event of its end may take
// after loop has said that it is over.
const (
	checkEvery = 5 * time.Second
	endEvent   = 3 * time.Second
)

// check asks how far the run is: its end counts also where its event was lost with
// the end of a stream. It says when the message waits for its session.
func (w *watcher) check(ctx context.Context, b *bus.Bus, cancel context.CancelCauseFunc) {
	said := false
	for wait := time.Second; ; wait = checkEvery {
		if !pause(ctx, wait) {
			return
		}
		w.mu.Lock()
		req := api.GetRun{Run: w.run, Session: w.session}
		w.mu.Unlock()
		st, err := callFor[api.RunState](ctx, b, req)
		switch {
		case err != nil: // it is asked again
		case st.Status == api.RunQueued && !said && !w.view.json:
			said = true
			w.notice("the session is busy; the message waits")
		case st.Status == api.RunEnded && st.Fate != api.FateMerged:
			if !pause(ctx, endEvent) || !w.watches(st.Run) {
				continue
			}
			end := api.LoopEnd{
				Run: st.Run, Session: st.Session, Agent: st.Agent, Success: st.Success, Fate: st.Fate, Response: st.Response,
				Turns: st.Turns, Cost: st.Cost, Duration: (st.EndedAt - st.AcceptedAt) / 1000, At: st.EndedAt,
				Code: st.Code, Reason: st.Reason, Error: st.Error, Next: st.Next,
			}
			w.mu.Lock()
			w.end = &end
			w.mu.Unlock()
			w.view.lost(end)
			cancel(errOver)
			return
		}
	}
}

// pause says whether d passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// input is what began a run, as far as it is known: its first turn has it once that
// is stored, the queue until then.
func (w *watcher) input(ctx context.Context, b *bus.Bus, run string) string {
	if t, err := callFor[api.Turn](ctx, b, api.GetTurn{Turn: run + ".1"}); err == nil {
		return t.Input
	}
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var cmd api.Run
	m, err := b.Next(asking, api.Run{Session: w.session}.Subject(), 1)
	if err != nil || api.Decode(m.Data, &cmd) != nil || cmd.Run != run {
		return ""
	}
	return cmd.Content
}
