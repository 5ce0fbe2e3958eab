package router

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// flights are the calls under way in this process, by id. A caller that lost its
// answer on the way asks again under the same id: it joins the call, and the provider
// is not asked twice at the same time.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

// flight is one call with all who wait for it.
type flight struct {
	agent  string
	cancel context.CancelFunc
	done   chan struct{}
	answer api.Completion // after done
	err    error

	mu      sync.Mutex
	waiting map[*passenger]bool
	said    strings.Builder // of the present answer
	early   *api.Completion // the answer, once it is stored
}

type passenger struct{ send func(api.Delta) error }

// do makes the call, or waits for the one that is under way with the same id. The call
// goes on as long as one of its callers is there, and ends when the last has gone. The
// first caller's goroutine makes it.
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
		return api.Completion{}, api.Errorf(api.Conflict, "call %s is another agent's", req.ID)
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
	defer func() { // also when the call panics: others may wait for it
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

// errNoReturn is what those who wait for a call get when it panics.
var errNoReturn = errors.New("the call ended without an answer or an error")

// join adds a caller, which gets what was said so far; false for a call that is being
// given up.
func (f *flight) join(p *passenger) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		return false
	}
	f.waiting[p] = true
	_ = p.send(api.Delta{Content: f.said.String(), Discard: true, Answer: f.early}) // the answer at the end is whole in any case
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

// leave takes a caller out. With the last one the call ends.
func (f *flight) leave(p *passenger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, p)
	if len(f.waiting) == 0 {
		f.cancel()
	}
}

// tell passes a piece on to all callers.
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
		_ = p.send(d) // a caller that has gone leaves by its context
	}
}
