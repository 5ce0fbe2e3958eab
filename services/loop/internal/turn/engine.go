package turn

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Engine executes runs. It is safe for concurrent use on different sessions;
// who runs a session is the caller's to decide, by its lock.
type Engine struct {
	Store    Store
	Journal  Journal
	Router   Router
	Policy   Policy
	Inbox    Inbox
	Treasury Treasury
	Queue    Queue
	Alarms   Alarms
	Outputs  Outputs
	Tools    map[string]Tool
	Toolbox  Toolbox // nil: no agent has tools of its own
	Context  Context
	Now      func() time.Time
	// Root starts the root span of a turn under ids that derive from its own, so
	// that recovery continues the same trace. past is nil for a turn that begins now.
	Root func(ctx context.Context, cmd api.Run, agent Agent, turn string, past *Past) (context.Context, trace.Span)
	// Ending is told, below the root, that the turn is being persisted as ended at a
	// time, in µs.
	Ending func(ctx context.Context, at int64)
	// Tracer starts the spans inside a turn.
	Tracer trace.Tracer
	// Attempts is how often a run is taken up without getting a turn further
	// before it is given up.
	Attempts int
	// Observe is told what happened, for the instruments.
	Observe Observer
	// Within is told that a run waits for something that takes d at most, until done is
	// called. nil: nothing is told.
	Within func(ctx context.Context, d time.Duration) (done func())
	// Begun is called when a run was taken up for the first time: the store records that
	// with the first turn, which may take long. The engine calls done when that turn is
	// stored; an owner that leaves the run before does not call it. nil: not called.
	Begun func(cmd api.Run, input Input, tier api.Tier, at int64) (done func())
	// Over is told, once or again, that the end of a run with turns is in the journal; with
	// an error the run's message comes back. nil: nothing is told.
	Over func(ctx context.Context, end api.LoopEnd) error

	player *player // of a recorded turn; nil: the turns are lived
}

// Observer counts. Every method is called on the run's goroutine.
type Observer interface {
	Turn(ctx context.Context, outcome string, d time.Duration)
	Tool(ctx context.Context, tool string, o api.Outcome, d time.Duration)
	Context(ctx context.Context, tokens int64)
}

// Run executes a run to its end, from wherever its journal says it is. What it
// returns settles the run's message: nil when the run is over, for better or
// worse; an error when it must be taken up again. ctx ends when the lease on the
// session does.
//
// Dying between any two lines is safe: before begin nothing has happened; between
// steps the journal tells where to go on; after a PERSIST the entry that announces it
// is written by the next owner.
func (e *Engine) Run(ctx context.Context, cmd api.Run, ev Events) error {
	known, err := e.Store.Known(ctx, cmd)
	if err != nil {
		return err
	}
	if known.Ended != nil {
		return e.again(ctx, cmd, known, ev)
	}
	if end := refused(cmd, known, e.Now().UnixMicro()); end != nil {
		begun, err := e.refuse(ctx, known, *end, ev)
		if err != nil || !begun {
			return err
		}
	}
	s := &state{
		cmd: cmd, agent: known.Agent, input: known.Input, number: known.Turns + 1, total: known.Turns, cost: known.Cost,
		last: known.Journal, since: known.Journal, results: map[int]Result{}, intents: map[int]Intent{}, before: known.Before,
		counters: known.Counters, notice: known.Notice, after: standing{known.Last, known.Journal, known.Reset},
	}
	if known.Turns > 0 {
		s.persisted = known.Before // unless the journal has it
	}
	if known.Begun {
		if s.changed, err = e.Store.Changes(ctx, cmd); err != nil {
			return err
		}
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.bound = e.bound(limitOf(known.Agent), func() { stop(context.DeadlineExceeded) })
	defer s.bound.timer.Stop()
	var unwatch func()
	s.steered, unwatch = e.Queue.Watch(cmd, stop)
	defer unwatch()
	switch {
	case known.Cancelled != "":
		stop(Cancelled(known.Cancelled))
	case known.Terminated != "":
		stop(Cancelled("the session is terminated: " + known.Terminated))
	}
	for {
		end, err := e.turn(runCtx, s, ev)
		if err != nil && ctx.Err() == nil && runCtx.Err() != nil {
			end, err = e.interrupted(ctx, s, ev, context.Cause(runCtx))
		}
		if err != nil {
			return err
		}
		if end != nil {
			return e.finish(below(ctx, s.root, cmd, ID(cmd.Run, end.Turns)), *end, s.last)
		}
	}
}

// again announces the end of a run that is over: its owner may have been killed before it
// did.
func (e *Engine) again(ctx context.Context, cmd api.Run, known Known, ev Events) error {
	end := *known.Ended
	if end.Turns == 0 {
		return e.dropped(ctx, end, ev)
	}
	id := ID(cmd.Run, end.Turns)
	root := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled} // sent by the owner that ended the run
	root.TraceID, root.SpanID = telemetry.DeriveIDs("turn", id)
	ctx = below(ctx, trace.NewSpanContext(root), cmd, id)
	tail, last, err := e.Journal.Tail(ctx, cmd, known.Journal)
	if err != nil {
		return err
	}
	// Another run of the session begins after the end is announced.
	if n := len(tail); !known.Latest || n > 0 && (tail[n-1].Run != cmd.Run || tail[n-1].End != nil) {
		if err := e.settled(ctx, end); err != nil {
			return err
		}
		return e.tell(ctx, end)
	}
	return e.finish(ctx, end, last)
}

// Drop gives a run its fate that waits behind another one, and so has not begun, and
// announces it. Dying in between repeats the announcement: what is stored first stays.
func (e *Engine) Drop(ctx context.Context, end End, ev Events) error {
	stored, err := e.Store.Drop(ctx, end)
	if err != nil {
		return err
	}
	return e.dropped(ctx, stored, ev)
}

// Refuse is Drop for a run whose place in its session has come. Errors: Conflict for one
// that has begun.
func (e *Engine) Refuse(ctx context.Context, end End, ev Events) error {
	known, err := e.Store.Known(ctx, end.Run)
	if err != nil {
		return err
	}
	if known.Ended != nil {
		return e.again(ctx, end.Run, known, ev)
	}
	begun, err := e.refuse(ctx, known, end, ev)
	if err == nil && begun {
		err = api.Errorf(api.Conflict, "run %s has begun", end.Run.Run)
	}
	return err
}

// refuse drops a run unless it has begun: what such a run did must be kept. The store
// tells that from the run's first turn on, and the journal before. A journal that shows
// nothing is no proof, because its stream's leader may be behind (ADR 11); an entry that
// the stream takes on top of what it shows is.
func (e *Engine) refuse(ctx context.Context, known Known, end End, ev Events) (begun bool, err error) {
	if known.Begun {
		return true, nil
	}
	cmd := end.Run
	tail, last, err := e.Journal.Tail(ctx, cmd, known.Journal)
	if err != nil {
		return false, err
	}
	for _, step := range tail {
		if step.Run == cmd.Run && !step.Release {
			return true, nil
		}
	}
	if _, err := e.Journal.Append(ctx, cmd, Step{Run: cmd.Run, Turn: 1, Release: true}, last); err != nil {
		return false, err
	}
	return false, e.Drop(ctx, end, ev)
}

// Cancelled is the error of what must not go on because its run was cancelled.
func Cancelled(why string) error {
	if why == "" {
		why = "cancelled"
	}
	return &api.Error{Code: api.Denied, Reason: api.ReasonCancelled, Message: why}
}

// below is ctx below the root of a turn that is over.
func below(ctx context.Context, root trace.SpanContext, cmd api.Run, id string) context.Context {
	return telemetry.WithTurn(trace.ContextWithSpanContext(ctx, root), cmd.Agent, id)
}

// turn executes the turn under way and persists it. It returns the run's end
// when this turn was the last.
func (e *Engine) turn(ctx context.Context, s *state, ev Events) (*End, error) {
	began := e.Now()
	id := ID(s.cmd.Run, s.number)
	var past *Past
	var end *End
	var err error
	if !s.owned {
		if past, err = e.takeUp(ctx, s); e.player == nil {
			s.bound.at(s.input.Deadline)
		}
	}
	ctx, span := e.Root(ctx, s.cmd, s.agent, id, past)
	s.root, s.began = span.SpanContext(), startOf(span, began)
	if err == nil {
		end, err = e.execute(ctx, s, ev, id, span)
	}
	if err != nil && ctx.Err() == nil && (fatal(err) || !s.comesBack(err, e.Now())) {
		end, err = e.giveUp(ctx, s, ev, err)
	}
	if err != nil {
		// The owner that takes the turn up again sends its root, under these very ids.
		e.Observe.Turn(ctx, "interrupted", e.Now().Sub(began))
		telemetry.Abandon(span)
		if d, waits := e.waits(s, err); waits && ctx.Err() == nil {
			ev.Delta(ctx, d)
		}
		return nil, err
	}
	outcome := "ok"
	if end != nil && !end.Success {
		outcome = "failed"
		span.SetAttributes(attribute.String("error.type", string(end.Code)))
		span.SetStatus(codes.Error, end.Error)
	}
	span.End()
	e.Observe.Turn(ctx, outcome, e.Now().Sub(began))
	return end, nil
}

// Why runs end that cannot go on. A replay reads them.
const (
	givenUp    = "given up after %d tries"
	tookLonger = "the run took longer than its "
)

// startOf is when a span began, if that can be told.
func startOf(span trace.Span, otherwise time.Time) time.Time {
	if s, ok := span.(interface{ StartTime() time.Time }); ok {
		return s.StartTime()
	}
	return otherwise
}

// interrupted ends a run whose time is over or that was cancelled; the turn's root
// is made anew, because the interrupted one was not sent.
func (e *Engine) interrupted(ctx context.Context, s *state, ev Events, cause error) (*End, error) {
	if !s.owned {
		if _, err := e.takeUp(ctx, s); err != nil {
			return nil, err
		}
	}
	ctx, span := e.Root(ctx, s.cmd, s.agent, ID(s.cmd.Run, s.number), &Past{Began: s.began})
	s.root = span.SpanContext()
	err := cause
	if api.ReasonOf(cause) == api.ReasonCancelled {
		k, kerr := e.Store.Known(ctx, s.cmd) // who noticed may not know why
		if kerr != nil {
			telemetry.Abandon(span)
			return nil, kerr
		}
		if k.Cancelled != "" {
			err = Cancelled(k.Cancelled)
		}
	} else {
		err = &api.Error{
			Code: api.Denied, Reason: api.ReasonTimeout, Message: fmt.Sprintf(tookLonger+"%d s", s.agent.RunTimeoutS),
			Next: "ask for less at a time, or raise limits.timeout_seconds in its AGENT.md",
		}
	}
	end, gerr := e.giveUp(ctx, s, ev, err)
	if gerr != nil {
		telemetry.Abandon(span)
		return nil, gerr
	}
	span.SetStatus(codes.Error, end.Error)
	span.End()
	return end, nil
}

func (e *Engine) execute(ctx context.Context, s *state, ev Events, id string, span trace.Span) (*End, error) {
	s.tools = e.toolbox(ctx, s.agent)
	funded := func() error { return nil }
	if s.thought == nil && !s.knows() {
		funded = e.look(ctx, s)
		defer func() { _ = funded() }() // whatever comes before it is needed
	}
	tookUp := !s.owned
	if tookUp { // the first turn that this owner works on
		if err := e.begin(ctx, s, ev, id, funded); err != nil {
			return nil, err
		}
		if s.number == 1 && s.agent.State == api.StateDead {
			return nil, &api.Error{Code: api.Denied, Message: "the agent is dead", Next: "fund it: anima agent fund " + s.agent.ID + " 5"}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := funded(); err != nil { // after begin: a run that ends so was taken up
		return nil, err
	}
	if s.number > 1 && s.thought == nil && (tookUp || s.steered()) {
		if err := e.join(ctx, s); err != nil {
			return nil, err
		}
	}
	if s.attempts > e.Attempts {
		return nil, &api.Error{
			Code: api.Denied, Message: fmt.Sprintf(givenUp, s.attempts-1),
			Next: "look for the cause in the log of loop, then send the message again",
		}
	}
	span.SetAttributes(attribute.Int("anima.turn.attempt", s.attempts))
	if s.thought == nil {
		if err := e.think(ctx, s, ev, id); err != nil {
			return nil, err
		}
	}
	c := s.thought.Completion
	span.SetAttributes(
		attribute.String("gen_ai.response.model", c.Model), attribute.String("gen_ai.provider.name", c.Provider),
		attribute.Int64("gen_ai.usage.input_tokens", c.InputTokens), attribute.Int64("gen_ai.usage.output_tokens", c.OutputTokens),
		attribute.Int64("automaton.cost.usd_micros", int64(c.Cost)),
	)
	if err := e.calls(ctx, s, ev, id); err != nil {
		return nil, err
	}
	return e.persist(ctx, s)
}
