package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
)

// Recording is all that is left of a turn: what came into it from outside, and what
// the engine made of it.
type Recording struct {
	Run         api.Run
	Turn        api.Turn
	Reference   Reference // zero: the model was not asked
	Input       Input     // of the run, By as it was before the turn
	End         *End      // of the run, with this turn; nil: it went on
	Cost        api.Micros
	Before      Conversation // before the turn was thought
	Compactions []Compaction // made for it, in order
	After       *Reference   // of the session's next turn; nil: nothing is known of it
	Steps       []Step       // of the journal, this turn's, in order
}

// Replayed says how a replay went.
type Replayed struct {
	Steps      int             // of the journal that the engine wrote again
	Owners     int             // that it took, one after another
	Difference *api.Difference // nil: it came to the same
}

// Replay has an engine live a recorded turn again, and compares each step that it
// writes and the turn it persists with what was recorded. It asks nobody: what the
// world said then it says again, from the recording, and an owner that died where
// another took over dies there again. Times and traces are new; nothing else may be.
//
// What is not lived again: how the run's first words were put together, the layers of
// the prompt, which came from files and tables that have changed since, and what
// tools did. They are what the recording has of the world. texts are where
// references lead.
//
// Errors: NotFound when the recording is not complete.
func Replay(ctx context.Context, texts ContextStore, rec Recording, tools map[string]Tool) (Replayed, error) {
	p, err := newPlayer(ctx, texts, rec, tools)
	if err != nil {
		return Replayed{}, err
	}
	tracer := noop.NewTracerProvider().Tracer("")
	e := &Engine{
		Store: p, Journal: p, Router: p, Policy: p, Inbox: p, Treasury: p, Queue: p, Alarms: p, Outputs: unkept{}, Tools: p.tools,
		Now: func() time.Time { return time.UnixMicro(rec.Turn.EndedAt) },
		Root: func(ctx context.Context, _ api.Run, _ Agent, id string, _ *Past) (context.Context, trace.Span) {
			return tracer.Start(ctx, id) //nolint:spancheck // the engine ends it
		},
		Ending: func(context.Context, int64) {}, Tracer: tracer, Attempts: p.attempts(), Observe: unobserved{}, player: p,
	}
	e.Context.Store, e.Context.Models = p, p
	var out Replayed
	for out.Owners = 1; ; out.Owners++ {
		p.again()
		err := e.Run(ctx, rec.Run, silence{})
		out.Steps, out.Difference = p.at, p.difference
		switch {
		case ctx.Err() != nil:
			return out, context.Cause(ctx)
		case p.difference != nil || p.persisted:
			return out, nil
		case !p.died:
			p.differ("run", "error", "none", fmt.Sprint(err))
			out.Difference = p.difference
			return out, nil
		}
	}
}

// What ends a replayed owner.
var (
	errDied     = errors.New("the owner died here")
	errReplayed = errors.New("the turn is replayed")
)

func (p *player) differ(step, field, recorded, replayed string) {
	if p.difference == nil {
		p.difference = &api.Difference{Step: step, Field: field, Recorded: recorded, Replayed: replayed}
	}
}

// compare notes the first difference of two values, in their JSON.
func (p *player) compare(step string, recorded, replayed any) bool {
	a, err := plain(recorded)
	b, err2 := plain(replayed)
	if err = errors.Join(err, err2); err != nil {
		p.differ(step, "", "", err.Error())
		return false
	}
	field, x, y, same := diff("", a, b)
	if !same {
		p.differ(step, field, x, y)
	}
	return same
}

func (silence) Post(context.Context, string, api.Message) error { return nil }
func (silence) Wait(context.Context) error                      { return nil }
func (silence) Thinking(context.Context, api.Thinking)          {}
func (silence) Delta(context.Context, api.StreamDelta)          {}
func (silence) Progress(context.Context, api.ToolProgress)      {}

func (unobserved) Turn(context.Context, string, time.Duration)              {}
func (unobserved) Tool(context.Context, string, api.Outcome, time.Duration) {}
func (unobserved) Context(context.Context, int64)                           {}
