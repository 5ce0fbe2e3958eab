package router

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// callGroup holds the calls in progress in this process, by id. A caller that lost its
// answer requests it again under the same id and joins the call in progress, so the
// provider is not called twice at the same time.
type callGroup struct {
	mu  sync.Mutex
	all map[string]*sharedCall
}

// sharedCall is one call in progress and its callers.
type sharedCall struct {
	agent   string
	request string // see [callRequest]
	cancel  context.CancelFunc
	done    chan struct{}
	answer  api.Completion // valid after done is closed
	err     error

	mu          sync.Mutex
	subscribers map[*subscriber]bool
	text        strings.Builder // text of the current answer so far
	stored      *api.Completion // the answer once it is stored
}

type subscriber struct{ send func(api.Delta) error }

// do makes the call, on the goroutine of its first caller, or waits for the call in
// progress with the same id. The call is canceled when the last of its callers has left.
// The error is a Conflict if the id is in use by another agent or for another request.
func (g *callGroup) do(ctx context.Context, req callRequest, send func(api.Delta) error, call func(context.Context, func(api.Delta)) (api.Completion, error)) (api.Completion, error) {
	self := &subscriber{send}
	g.mu.Lock()
	var left *sharedCall // is being canceled
	for other := g.all[req.ID]; other != nil && other != left; other = g.all[req.ID] {
		g.mu.Unlock() // joining waits while another caller receives text
		if err := req.checkRepeated(other.agent, other.request); err != nil {
			return api.Completion{}, err
		}
		if other.join(self) {
			return other.wait(ctx, self)
		}
		left = other
		g.mu.Lock()
	}
	callCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	shared := &sharedCall{agent: req.Agent, request: req.request, cancel: cancel, done: make(chan struct{}), subscribers: map[*subscriber]bool{self: true}}
	if g.all == nil {
		g.all = map[string]*sharedCall{}
	}
	g.all[req.ID] = shared
	g.mu.Unlock()
	defer context.AfterFunc(ctx, func() { shared.leave(self) })()
	shared.err = errNoReturn
	defer func() { // deferred, because other callers wait even if the call panics
		g.mu.Lock()
		if g.all[req.ID] == shared {
			delete(g.all, req.ID)
		}
		g.mu.Unlock()
		close(shared.done)
	}()
	shared.answer, shared.err = call(callCtx, shared.broadcast)
	return shared.answer, shared.err
}

// errNoReturn is the error that the other callers get when a call panics.
var errNoReturn = errors.New("the call ended without an answer or an error")

// join adds a caller and sends it the text so far. It returns false if the call is being
// canceled.
func (c *sharedCall) join(p *subscriber) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.subscribers) == 0 {
		return false
	}
	c.subscribers[p] = true
	_ = p.send(api.Delta{Content: c.text.String(), Discard: true, Answer: c.stored}) // a send error is harmless: the final answer is complete
	return true
}

func (c *sharedCall) wait(ctx context.Context, p *subscriber) (api.Completion, error) {
	defer c.leave(p)
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done():
		return api.Completion{}, context.Cause(ctx)
	}
}

// leave removes a caller. It cancels the call when it removes the last one.
func (c *sharedCall) leave(p *subscriber) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subscribers, p)
	if len(c.subscribers) == 0 {
		c.cancel()
	}
}

// broadcast sends a delta to all callers.
func (c *sharedCall) broadcast(d api.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Discard {
		c.text.Reset()
	}
	c.text.WriteString(d.Content)
	if d.Answer != nil {
		c.stored = d.Answer
	}
	for p := range c.subscribers {
		_ = p.send(d) // a disconnected caller is removed when its context ends
	}
}
