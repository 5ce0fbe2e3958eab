// Package enginetest provides in-memory implementations of every port of package engine, on
// which each call can be made to fail or to block. It is for tests only and must not be
// imported by other code.
package enginetest

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

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/replay"
)

// World holds the state that survives the crash of an engine: the stores and services.
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
	Tools    map[string]engine.Tool
	Attempts int
	// Of the engines' Context; its Store is Store.
	Sources []engine.Source
	Memory  engine.Memory
	Models  engine.Models
	// Revisions is [engine.Context.Revisions]; nil: the sources always read the store.
	Revisions func(ctx context.Context, agent string) (engine.Revisions, error)
	// Lossy buffers posted events in the owner until Wait, so that a crash loses them.
	Lossy bool

	ticks atomic.Int64
}

// Start is the time at which the clock of every world begins, in Unix microseconds.
const Start = 1_790_000_000_000_000

// New returns a world with a store, whose router answers with script.
func New(store Stores, script Script) *World {
	w := &World{
		Store: store, Router: &Router{Script: script, answers: map[string]api.Completion{}}, Inbox: &Inbox{},
		Queue:  &Queue{waiting: map[string][]api.Run{}, cancel: map[string]context.CancelCauseFunc{}, wanted: map[string]bool{}},
		Alarms: &Alarms{}, Outputs: &Outputs{}, Stream: &Stream{}, Effects: &Effects{}, Attempts: 20,
	}
	w.LoseJournal()
	w.Treasury = &Treasury{Tier: api.TierHigh, router: w.Router}
	w.Policy = newPolicy(w.Now)
	w.Tools = map[string]engine.Tool{}
	for name, effect := range map[string]catalog.Effect{"look": catalog.Pure, "put": catalog.Idempotent, "pay": catalog.Keyed, "fire": catalog.Irreversible} {
		w.Tools[name] = engine.Tool{
			Name: name, Effect: effect, Mutating: effect != catalog.Pure, Description: "Does " + name + ".", Schema: json.RawMessage(`{"type":"object"}`),
			Check: func(args json.RawMessage) error {
				var object map[string]any
				return json.Unmarshal(args, &object)
			},
			Run: func(_ context.Context, c engine.Call) (engine.Output, error) {
				w.Effects.add(name, c.Key)
				return engine.Output{Text: name + " done"}, nil
			},
		}
	}
	return w
}

// LoseJournal replaces the journal by an empty one.
func (w *World) LoseJournal() { w.Journal = &Journal{stream: w.Stream} }

// Age converts the journal's entries to the format of an older release and discards the
// stream, as if the owner had crashed before it published events. That release recorded
// the run in the store at its begin.
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
			s.Intent = &engine.Intent{Index: s.Intent.Index, Decision: s.Intent.Decision, At: s.Intent.At}
		}
		if s.Result != nil {
			s.Result.Tool, s.Result.CallID = "", ""
		}
		if s.Completion != nil {
			s.Completion.Call = ""
		}
		if w.Journal.entries[i].data, err = api.Encode(s); err != nil {
			return err
		}
		w.Journal.entries[i].old = true
	}
	*w.Stream = Stream{} // no owner is running
	if len(steps) > 0 {
		_, err = w.Store.Started(ctx, cmd, *steps[0].Begin.Input, w.Treasury.Tier, steps[0].Begin.At)
	}
	return err
}

// Now returns the time of a clock that advances by 1 ms with each call.
func (w *World) Now() time.Time { return time.UnixMicro(Start + w.ticks.Add(1)*1000) }

// Pass advances the clock by d.
func (w *World) Pass(d time.Duration) { w.ticks.Add(d.Milliseconds()) }

// Engine returns the engine and the events of a new owner. The context of a run has the
// gate of its ports, see [With].
func (w *World) Engine() (*engine.Engine, engine.Events) {
	tools := map[string]engine.Tool{}
	for name, t := range w.Tools {
		run := t.Run
		t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
			return result(ctx, "tool "+name, func() (engine.Output, error) { return run(ctx, c) })
		}
		tools[name] = t
	}
	tracer := noop.NewTracerProvider().Tracer("")
	store := gatedStore{w.Store}
	e := &engine.Engine{
		Store: store, Journal: w.Journal, Router: w.Router, Policy: w.Policy, Inbox: w.Inbox, Treasury: w.Treasury, Topups: w.Treasury, Queue: w.Queue, Alarms: w.Alarms,
		Outputs: w.Outputs, Tools: tools, Now: w.Now, Tracer: tracer, Attempts: w.Attempts, Observe: engine.Unobserved{},
		Ending: func(context.Context, int64) {},
		Root: func(ctx context.Context, _ api.Run, _ engine.Agent, id string, _ *engine.Past) (context.Context, trace.Span) {
			return tracer.Start(ctx, id) //nolint:spancheck // the engine ends it
		},
	}
	e.Context.Sources, e.Context.Memory, e.Context.Models, e.Context.Store = w.Sources, w.Memory, w.Models, store
	e.Context.Revisions = w.Revisions
	return e, &events{stream: w.Stream, lossy: w.Lossy}
}

// Run executes a run as a new owner with a gate.
func (w *World) Run(ctx context.Context, gate Gate, cmd api.Run) error {
	e, ev := w.Engine()
	return e.Run(With(ctx, gate), cmd, ev)
}

// Replay replays the recorded turns of a run. It returns their number, and an error for
// the first one that differs.
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
		got, err := replay.Replay(ctx, w.Store, rec, w.Tools)
		if api.CodeOf(err) == api.NotFound && (rec.Reference.Agent == "" || len(rec.Steps) == 0) {
			continue // the turn failed before the model was called, or the journal is lost
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

// ErrCrash is the error of every call of an owner that has crashed.
var ErrCrash = errors.New("crashed")

// Point identifies a call of an owner: the Nth call, from 1, of a port, or of all ports
// if Port is "". Concurrent calls of an owner have a deterministic order only within a
// port. The zero value matches no call.
type Point struct {
	Port string
	Nth  int
}

// calls counts the calls of an owner.
type calls struct {
	all int
	of  map[string]int
}

// at counts a call and reports whether it is p.
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

// Crash provides a gate at which an owner crashes: at a call, before or after its
// effect. The zero value never crashes and records the calls.
type Crash struct {
	At    Point
	After bool
	Ports []string // ports of the calls, in the order of their starts

	mu    sync.Mutex // calls of a turn may be concurrent
	calls calls
	dead  bool
}

// Point returns the Point of call number n of all, from 1.
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
		return ErrCrash // a crashed owner makes no calls
	}
	c.Ports = append(c.Ports, port)
	c.dead = c.calls.at(c.At, port)
	before := c.dead && !c.After
	c.mu.Unlock()
	if before {
		return ErrCrash
	}
	err := do() // without the lock, because a call may make other calls
	if c.Dead() {
		return ErrCrash
	}
	return err
}

// Dead reports whether the owner has crashed.
func (c *Crash) Dead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// Pause provides a gate at which an owner blocks at a call, before its effect. It
// closes Paused then, and continues when Resume is closed.
type Pause struct {
	At             Point
	Paused, Resume chan struct{}

	mu    sync.Mutex // calls of a turn may be concurrent
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
