// Package turntest is a world for engines in one process: small implementations
// of every port of package turn, on which each call can be made to fail or to
// wait. It is for tests only.
package turntest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// World outlives its engines, as servers and disks outlive a process.
type World struct {
	Store    Stores
	Journal  *Journal
	Router   *Router
	Policy   *Policy
	Inbox    *Inbox
	Treasury *Treasury
	Queue    *Queue
	Alarms   *Alarms
	Outputs  *Outputs
	Stream   *Stream
	Effects  *Effects
	Tools    map[string]turn.Tool
	Attempts int
	// Of the engines' context; the store is the world's own.
	Sources []turn.Source
	Memory  turn.Memory
	Models  turn.Models
	// Lossy keeps posted events in the owner's memory until it waits for them.
	Lossy bool

	ticks atomic.Int64
}

// Start is the time at which every world begins, in Unix microseconds.
const Start = 1_790_000_000_000_000

// New returns a world around a store, whose model says what script does.
func New(store Stores, script Script) *World {
	w := &World{
		Store: store, Router: &Router{Script: script}, Inbox: &Inbox{}, Treasury: &Treasury{Tier: api.TierHigh},
		Queue: &Queue{}, Alarms: &Alarms{}, Outputs: &Outputs{}, Stream: &Stream{}, Effects: &Effects{}, Attempts: 20,
	}
	w.LoseJournal()
	w.Policy = newPolicy(w.Now)
	w.Tools = map[string]turn.Tool{}
	for name, effect := range map[string]catalog.Effect{"look": catalog.Pure, "put": catalog.Idempotent, "pay": catalog.Keyed, "fire": catalog.Irreversible} {
		w.Tools[name] = turn.Tool{
			Name: name, Effect: effect, Mutating: effect != catalog.Pure, Description: "Does " + name + ".", Schema: json.RawMessage(`{"type":"object"}`),
			Check: func(args json.RawMessage) error {
				var object map[string]any
				return json.Unmarshal(args, &object)
			},
			Run: func(_ context.Context, c turn.Call) (turn.Output, error) {
				w.Effects.add(name, c.Key)
				return turn.Output{Text: name + " done"}, nil
			},
		}
	}
	return w
}

// LoseJournal empties the journal.
func (w *World) LoseJournal() { w.Journal = &Journal{stream: w.Stream} }

// Age makes what the journal has entries of the release before, whose events were lost
// with their owner: it had recorded the run in the store when it began.
func (w *World) Age(ctx context.Context, cmd api.Run) error {
	steps, _, err := w.Journal.tail(cmd.Session, 0)
	if err != nil {
		return err
	}
	for i, s := range steps {
		s.Persisted, s.Changed = 0, nil
		if s.Begin != nil {
			s.Begin.Kind = ""
		}
		if s.Intent != nil {
			s.Intent = &turn.Intent{Index: s.Intent.Index, Decision: s.Intent.Decision, At: s.Intent.At}
		}
		if s.Result != nil {
			s.Result.Tool, s.Result.CallID = "", ""
		}
		if s.Thought != nil {
			s.Thought.Call = ""
		}
		if w.Journal.entries[i].data, err = api.Encode(s); err != nil {
			return err
		}
		w.Journal.entries[i].old = true
	}
	*w.Stream = Stream{} // no owner uses it
	if len(steps) > 0 {
		_, err = w.Store.Started(ctx, cmd, *steps[0].Begin.Input, w.Treasury.Tier, steps[0].Begin.At)
	}
	return err
}

// Now is a clock that goes on by a millisecond with each look.
func (w *World) Now() time.Time { return time.UnixMicro(Start + w.ticks.Add(1)*1000) }

// Pass moves the clock on.
func (w *World) Pass(d time.Duration) { w.ticks.Add(d.Milliseconds()) }

// Gate stands before every call of a port: it runs do, or fails.
type Gate func(ctx context.Context, port string, do func() error) error

// Open lets every call through whose context has not ended, as real I/O does.
func Open(ctx context.Context, _ string, do func() error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return do()
}

// Engine returns a new owner's engine, and its events, behind a gate.
func (w *World) Engine(gate Gate) (*turn.Engine, turn.Events) {
	tools := map[string]turn.Tool{}
	for name, t := range w.Tools {
		run := t.Run
		t.Run = func(ctx context.Context, c turn.Call) (turn.Output, error) {
			return through(ctx, gate, "tool "+name, func() (turn.Output, error) { return run(ctx, c) })
		}
		tools[name] = t
	}
	tracer := noop.NewTracerProvider().Tracer("")
	e := &turn.Engine{
		Store: gatedStore{w.Store, gate}, Journal: gatedJournal{w.Journal, gate}, Router: gatedRouter{w.Router, gate},
		Policy: gatedPolicy{w.Policy, gate}, Inbox: gatedInbox{w.Inbox, gate}, Treasury: gatedTreasury{w.Treasury, w.Router, gate},
		Queue: gatedQueue{w.Queue, gate}, Alarms: gatedAlarms{w.Alarms, gate}, Outputs: gatedOutputs{w.Outputs, gate},
		Tools: tools, Now: w.Now, Tracer: tracer, Attempts: w.Attempts, Observe: ignore{},
		Ending: func(context.Context, int64) {},
		Root: func(ctx context.Context, _ api.Run, _ turn.Agent, id string, _ *turn.Past) (context.Context, trace.Span) {
			return tracer.Start(ctx, id) //nolint:spancheck // the engine ends it
		},
	}
	e.Context.Sources, e.Context.Memory, e.Context.Models = w.Sources, w.Memory, w.Models
	e.Context.Store = gatedContext{w.Store, gate}
	return e, &events{stream: w.Stream, lossy: w.Lossy, gate: gate}
}

// Run executes a run as a new owner behind a gate.
func (w *World) Run(ctx context.Context, gate Gate, cmd api.Run) error {
	e, ev := w.Engine(gate)
	return e.Run(ctx, cmd, ev)
}

// Replay lives the turns of a run again that were recorded, and says how many they
// were and where the first one differs.
func (w *World) Replay(ctx context.Context, session, run string) (int, error) {
	turns, err := w.Store.History(ctx, session, 1<<30)
	if err != nil {
		return 0, err
	}
	steps, _, err := w.Journal.tail(session, 0)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, t := range turns {
		if t.Run != run {
			continue
		}
		rec, err := w.Store.Recorded(ctx, t.ID)
		if err != nil {
			return n, err
		}
		for _, s := range steps {
			if s.Run == t.Run && s.Turn == t.Number {
				rec.Steps = append(rec.Steps, s)
			}
		}
		got, err := turn.Replay(ctx, w.Store, rec, w.Tools)
		if api.CodeOf(err) == api.NotFound && (rec.Reference.Agent == "" || len(rec.Steps) == 0) {
			continue // it failed before the model was asked, or the journal is lost
		}
		if err != nil {
			return n, err
		}
		if d := got.Difference; d != nil {
			return n, fmt.Errorf("turn %s, %s, %s: recorded %q, replayed %q, owner %d", t.ID, d.Step, d.Field, d.Recorded, d.Replayed, got.Owners)
		}
		n++
	}
	return n, nil
}

// ErrCrash is what every call of a dead owner returns.
var ErrCrash = errors.New("crashed")

// Point is a call of an owner: number Nth, from 1, of a port, or of all for "". An owner
// makes some calls side by side, so that only the order within a port is always the same.
// The zero value is none.
type Point struct {
	Port string
	Nth  int
}

// calls counts those of an owner.
type calls struct {
	all int
	of  map[string]int
}

// at counts a call and says whether it is p.
func (c *calls) at(p Point, port string) bool {
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.all++
	c.of[port]++
	if p.Port == "" {
		return c.all == p.Nth
	}
	return port == p.Port && c.of[port] == p.Nth
}

// Crash is a gate at which an owner dies: at a call, before its effect or after it. The
// zero value never crashes and counts.
type Crash struct {
	At    Point
	After bool
	Ports []string // that were called, in the order of their beginnings

	mu    sync.Mutex // calls of a turn may be made side by side
	calls calls
	dead  bool
}

// Point is the call that was number n of all, from 1.
func (c *Crash) Point(n int) Point {
	p := Point{Port: c.Ports[n-1]}
	for _, port := range c.Ports[:n] {
		if port == p.Port {
			p.Nth++
		}
	}
	return p
}

// Gate implements [Gate].
func (c *Crash) Gate(_ context.Context, port string, do func() error) error {
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return ErrCrash // the dead call nobody
	}
	c.Ports = append(c.Ports, port)
	c.dead = c.calls.at(c.At, port)
	before := c.dead && !c.After
	c.mu.Unlock()
	if before {
		return ErrCrash
	}
	err := do() // without the lock: a call may make others
	if c.Dead() {
		return ErrCrash
	}
	return err
}

// Dead says whether the owner died.
func (c *Crash) Dead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// Pause is a gate at which an owner stands still at a call, before its effect: Paused is
// closed then, and it goes on when Resume is.
type Pause struct {
	At             Point
	Paused, Resume chan struct{}

	mu    sync.Mutex // as that of Crash
	calls calls
}

// NewPause returns a gate that pauses at a call.
func NewPause(at Point) *Pause {
	return &Pause{At: at, Paused: make(chan struct{}), Resume: make(chan struct{})}
}

// Gate implements [Gate].
func (p *Pause) Gate(_ context.Context, port string, do func() error) error {
	p.mu.Lock()
	here := p.calls.at(p.At, port)
	p.mu.Unlock()
	if here {
		close(p.Paused)
		<-p.Resume
	}
	return do()
}

type ignore struct{}

func (ignore) Turn(context.Context, string, time.Duration)              {}
func (ignore) Tool(context.Context, string, api.Outcome, time.Duration) {}
func (ignore) Context(context.Context, int64)                           {}
