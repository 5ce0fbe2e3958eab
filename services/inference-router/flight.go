package router

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// flights holds the calls in progress in this process, by id. A caller that lost its
// answer requests it again under the same id and joins the call in progress, so the
// provider is not called twice at the same time.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

// flight is one call in progress and its callers.
type flight struct {
	agent  string
	cancel context.CancelFunc
	done   chan struct{}
	answer api.Completion // valid after done is closed
	err    error

	mu      sync.Mutex
	waiting map[*passenger]bool
	said    strings.Builder // text of the current answer so far
	early   *api.Completion // the answer once it is stored
}

type passenger struct{ send func(api.Delta) error }

// do makes the call, on the goroutine of its first caller, or waits for the call in
// progress with the same id. The call is canceled when the last of its callers has left.
// The error is a Conflict if the id is in use by another agent.
func (f *flights) do(ctx context.Context, req api.Complete, send func(api.Delta) error, call func(context.Context, func(api.Delta)) (api.Completion, error)) (api.Completion, error) {
	me := &passenger{send}
	f.mu.Lock()
	other := f.all[req.ID]
	if other != nil && other.agent == req.Agent && other.join(me) {
		f.mu.Unlock()
		return other.wait(ctx, me)
	}
	if other != nil && other.agent != req.Agent {
		f.mu.Unlock()
		return api.Completion{}, api.Errorf(api.Conflict, "call %s belongs to another agent", req.ID)
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	mine := &flight{agent: req.Agent, cancel: cancel, done: make(chan struct{}), waiting: map[*passenger]bool{me: true}}
	if f.all == nil {
		f.all = map[string]*flight{}
	}
	f.all[req.ID] = mine
	f.mu.Unlock()
	defer context.AfterFunc(ctx, func() { mine.leave(me) })()
	mine.err = errNoReturn
	defer func() { // deferred, because other callers wait even if the call panics
		f.mu.Lock()
		if f.all[req.ID] == mine {
			delete(f.all, req.ID)
		}
		f.mu.Unlock()
		close(mine.done)
	}()
	mine.answer, mine.err = call(own, mine.tell)
	return mine.answer, mine.err
}

// errNoReturn is the error that the other callers get when a call panics.
var errNoReturn = errors.New("the call ended without an answer or an error")

// join adds a caller and sends it the text so far. It returns false if the call is being
// canceled.
func (f *flight) join(p *passenger) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		return false
	}
	f.waiting[p] = true
	_ = p.send(api.Delta{Content: f.said.String(), Discard: true, Answer: f.early}) // a send error is harmless: the final answer is complete
	return true
}

func (f *flight) wait(ctx context.Context, p *passenger) (api.Completion, error) {
	defer f.leave(p)
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return api.Completion{}, context.Cause(ctx)
	}
}

// leave removes a caller. It cancels the call when it removes the last one.
func (f *flight) leave(p *passenger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, p)
	if len(f.waiting) == 0 {
		f.cancel()
	}
}

// tell sends a delta to all callers.
func (f *flight) tell(d api.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.Discard {
		f.said.Reset()
	}
	f.said.WriteString(d.Content)
	if d.Answer != nil {
		f.early = d.Answer
	}
	for p := range f.waiting {
		_ = p.send(d) // a disconnected caller is removed when its context ends
	}
}
