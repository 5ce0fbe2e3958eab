package replay

import (
	"context"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// replayer implements [engine.Recorded].

func (p *replayer) RunInput() engine.Input { return p.Input }

func (p *replayer) Wire() bool { return p.Reference.Wire }

func (p *replayer) Surround(in *prompt.Input) {
	in.Layers, in.Memory, in.Todo = p.given.Layers, p.given.Memory, p.given.Todo
}

func (p *replayer) Summary(plan prompt.Plan) (string, bool, error) {
	for _, c := range p.Compactions {
		if c.Through == plan.Through() && c.Stage == int(plan.Stage) {
			return c.Summary, false, nil
		}
	}
	return "", true, nil
}

// Result returns the recorded result of a call, if the current owner received it.
func (p *replayer) Result(ctx context.Context, index int) (engine.Result, error) {
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
