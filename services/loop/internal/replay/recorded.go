package replay

import (
	"context"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// recorded implements [engine.Recorded]. Its methods would collide with the fields of
// the recording in replayer.
type recorded struct{ p *replayer }

func (r recorded) Input() engine.Input { return r.p.Input }

func (r recorded) Wire() bool { return r.p.Reference.Wire }

func (r recorded) Surround(in *prompt.Input) {
	in.Layers, in.Memory, in.Todo = r.p.given.Layers, r.p.given.Memory, r.p.given.Todo
}

func (r recorded) Summary(plan prompt.Plan) (string, bool, error) {
	for _, c := range r.p.Compactions {
		if c.Through == plan.Through() && c.Stage == int(plan.Stage) {
			return c.Summary, false, nil
		}
	}
	return "", true, nil
}

// Result returns the recorded result of a call, if the current owner received it.
func (r recorded) Result(ctx context.Context, index int) (engine.Result, error) {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.Steps[p.at:] {
		if s.Result != nil && s.Result.Index == index {
			return *s.Result, nil
		}
		if takesOver(&s) {
			p.crashed = true
			return engine.Result{}, errCrashed
		}
	}
	err := p.stop()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return engine.Result{}, err
}
