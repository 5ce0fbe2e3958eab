// Package replay executes recorded turns again with the engine, compares them with their
// recording, and rebuilds their prompts for another model call. It must not call other
// components or write to a store.
package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Replayed holds the result of a replay.
type Replayed struct {
	Steps      int             // journal entries that the engine reproduced
	Owners     int             // number of successive owners
	Difference *api.Difference // nil: the replay equals the recording
}

// Replay executes a recorded turn again and compares each journal entry and the
// persisted turn with the recording. It calls no other component: every answer comes
// from the recording, and an owner that crashed before a takeover crashes there again.
// Times and traces differ from the recording; all other values must be equal.
//
// Replay does not execute the following again, and uses the recorded values: the
// composition of the run's input, the layers of the prompt, which come from files and
// tables that may have changed, and the tools. texts is the store of the texts that
// references name.
//
// Errors: NotFound if the recording is incomplete.
func Replay(ctx context.Context, texts engine.ContextStore, rec engine.Recording, tools map[string]engine.Tool) (Replayed, error) {
	p, err := newReplayer(ctx, texts, rec, tools)
	if err != nil {
		return Replayed{}, err
	}
	tracer := noop.NewTracerProvider().Tracer("")
	e := &engine.Engine{
		Store: p, Journal: p, Router: p, Policy: p, Inbox: p, Treasury: p, Queue: p, Alarms: p, Outputs: unkept{}, Tools: p.tools,
		Now: func() time.Time { return time.UnixMicro(rec.Turn.EndedAt) },
		Root: func(ctx context.Context, _ api.Run, _ engine.Agent, id string, _ *engine.Past) (context.Context, trace.Span) {
			return tracer.Start(ctx, id) //nolint:spancheck // the engine ends it
		},
		Ending: func(context.Context, int64) {}, Tracer: tracer, Attempts: p.attempts(), Observe: engine.Unobserved{}, Recorded: p,
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
		case !p.crashed:
			p.differ("run", "error", "none", fmt.Sprint(err))
			out.Difference = p.difference
			return out, nil
		}
	}
}

// Errors that end a replayed owner.
var (
	errCrashed  = errors.New("the recorded owner crashed here")
	errReplayed = errors.New("the turn is replayed")
)

func (p *replayer) differ(step, field, recorded, replayed string) {
	if p.difference == nil {
		p.difference = &api.Difference{Step: step, Field: field, Recorded: recorded, Replayed: replayed}
	}
}

// compare records the first difference between two values in their JSON form.
func (p *replayer) compare(step string, recorded, replayed any) bool {
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
func (silence) Live(context.Context, api.Message)               {}

type silence struct{}

// unkept discards outputs; a replay executes no tools.
type unkept struct{}

func (unkept) Keep(context.Context, string, int, string) error { return nil }
