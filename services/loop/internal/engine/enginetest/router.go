package enginetest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Script returns the answer to a request whose id has no stored answer.
type Script func(req api.Complete) (api.Completion, error)

// Say returns a script that answers turn n with the nth answer.
func Say(answers ...api.Completion) Script {
	return func(req api.Complete) (api.Completion, error) {
		var n int
		if _, err := fmt.Sscanf(req.ID[len(req.ID)-1:], "%d", &n); err != nil || n < 1 || n > len(answers) {
			return api.Completion{}, api.Errorf(api.Internal, "no answer for %s", req.ID)
		}
		return answers[n-1], nil
	}
}

// Router answers with a script and charges each id once.
type Router struct {
	Script Script
	// Forget disables the list of requests, which would grow without limit in a soak
	// test.
	Forget bool

	mu        sync.Mutex
	answers   map[string]api.Completion
	requests  []api.Complete
	paid      table[int]
	confirmed table[bool]
	spent     table[api.Micros] // by turn
}

// Complete implements engine.Router.
func (r *Router) Complete(ctx context.Context, q engine.Question, delta func(api.Delta)) (api.Completion, engine.Settling, error) {
	c, err := result(ctx, "complete", func() (api.Completion, error) { return r.complete(q.Complete, delta) })
	return c, settling{r, q.ID}, err
}

func (r *Router) complete(req api.Complete, delta func(api.Delta)) (api.Completion, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Forget {
		r.requests = append(r.requests, req)
	}
	if c, ok := r.answers[req.ID]; ok {
		return c, nil
	}
	c, err := r.Script(req)
	if err != nil {
		return c, err
	}
	r.answers[req.ID] = c
	r.paid.update(req.ID, func(n int) int { return n + 1 })
	r.spent.update(req.Turn, func(sum api.Micros) api.Micros { return sum + c.Cost })
	delta(api.Delta{Content: c.Text})
	return c, nil
}

// settling is the settlement of a call; Wait confirms it.
type settling struct {
	router *Router
	call   string
}

// Wait implements engine.Settling.
func (s settling) Wait(ctx context.Context) (*api.Funds, error) {
	return nil, through(ctx, "settled", func() error { return s.router.confirm(s.call) })
}

// Confirm implements engine.Router.
func (r *Router) Confirm(ctx context.Context, _, call string) (*api.Funds, error) {
	return nil, through(ctx, "confirm", func() error { return r.confirm(call) })
}

func (r *Router) confirm(call string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.answers[call]; !ok {
		return api.Errorf(api.NotFound, "no answer to call %s is stored", call)
	}
	r.confirmed.update(call, func(bool) bool { return true })
	return nil
}

// Confirmed reports whether a call's settlement was waited for or confirmed.
func (r *Router) Confirmed(call string) bool { return r.confirmed.All()[call] }

// Paid returns the number of charges by call id.
func (r *Router) Paid() map[string]int { return r.paid.All() }

// Spent returns the cost of a turn's calls.
func (r *Router) Spent(turn string) api.Micros { return r.spent.All()[turn] }

// Requests returns all requests so far.
func (r *Router) Requests() []api.Complete {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}
