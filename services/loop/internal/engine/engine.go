package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Engine executes runs. It is safe for concurrent use on different sessions. The caller
// must ensure, by its lock, that one run of a session executes at a time.
type Engine struct {
	Store    Store
	Journal  Journal
	Router   Router
	Policy   Policy
	Inbox    Inbox
	Treasury Treasury
	Topups   Topups // nil: no credits are bought
	Queue    Queue
	Alarms   Alarms
	Outputs  Outputs
	Tools    map[string]Tool
	Toolbox  Toolbox // nil: agents have only Tools
	Context  Context
	Now      func() time.Time
	// Root starts the root span of a turn. Its ids derive from the turn's id, so a
	// resumed turn continues the same trace. past is nil if this owner has executed the
	// run's previous turn.
	Root func(ctx context.Context, cmd api.Run, agent Agent, turn string, past *Past) (context.Context, trace.Span)
	// Ending is called below the root span when the turn is about to be persisted with
	// at as its end, in Unix µs.
	Ending func(ctx context.Context, at int64)
	// Tracer starts the spans inside a turn.
	Tracer trace.Tracer
	// Attempts is the maximum number of attempts at a turn. A run whose turn is not
	// persisted after that many attempts is given up.
	Attempts int
	// Observe receives measurements for the metrics.
	Observe Observer
	// Within is called when a run begins to wait for an operation that takes at most d;
	// the engine calls done when the operation returns. nil: not called.
	Within func(ctx context.Context, d time.Duration) (done func())
	// Begun is called when a run has begun for the first time, because the store
	// records the begin only with the first turn, which may take long. The engine calls
	// done when that turn is stored, and does not call it if it returns the run before.
	// After an error the run has no further effect. nil: not called.
	Begun func(ctx context.Context, cmd api.Run, input Input, tier api.Tier, at int64) (done func(), err error)
	// Over is called, at least once, when the end of a run with turns is in the
	// journal. If it returns an error, the run's message is redelivered. nil: not
	// called.
	Over func(ctx context.Context, end api.LoopEnd) error

	// Recorded supplies the recorded values of a turn that is replayed. nil: turns are
	// executed.
	Recorded Recorded
}

// Run executes a run to its end, beginning at the step that its journal has reached.
// Its result settles the run's message: nil if the run is over, with success or with
// failure; an error if the run must be resumed. ctx must end when the lease on the
// session expires.
//
// The engine may crash at any point: before begin the run has no effect; between steps
// the next owner resumes from the journal; after a PERSIST the next owner appends the
// entry that announces it.
func (e *Engine) Run(ctx context.Context, cmd api.Run, ev Events) error {
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The notice of a cancel that is stored after the store was read must not be missed.
	steered, unwatch := e.Queue.Watch(cmd, stop)
	defer unwatch()
	known, err := e.Store.Known(ctx, cmd)
	if err != nil {
		return err
	}
	if known.Ended != nil {
		return e.announceAgain(ctx, cmd, known, ev)
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
		counters: known.Counters, notice: known.Notice, after: position{known.Last, known.Journal, known.Reset}, steered: steered,
	}
	if known.Turns > 0 {
		s.persisted = known.Before // cleared by apply if the journal already announced it
	}
	if known.Begun {
		if s.changed, err = e.Store.Changes(ctx, cmd); err != nil {
			return err
		}
	}
	s.expire = func() { stop(context.DeadlineExceeded) }
	s.limit = time.AfterFunc(limitOf(known.Agent), s.expire)
	defer s.limit.Stop()
	switch {
	case known.Cancelled != "":
		stop(Cancelled(known.Cancelled))
	case known.Terminated != "":
		stop(Terminated(known.Terminated))
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

// announceAgain announces the end of a run that is over, because its owner may have crashed
// before it announced the end. It is idempotent.
func (e *Engine) announceAgain(ctx context.Context, cmd api.Run, known Known, ev Events) error {
	end := *known.Ended
	if end.Turns == 0 {
		return e.announceDropped(ctx, end, ev)
	}
	id := ID(cmd.Run, end.Turns)
	root := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled} // the owner that ended the run exported this span
	root.TraceID, root.SpanID = telemetry.DeriveIDs("turn", id)
	ctx = below(ctx, trace.NewSpanContext(root), cmd, id)
	tail, last, err := e.Journal.Tail(ctx, cmd, known.Journal)
	if err != nil {
		return err
	}
	// Another run of the session begins only after the end of this one is announced.
	if n := len(tail); !known.Latest || n > 0 && (tail[n-1].Run != cmd.Run || tail[n-1].End != nil) {
		if err := e.settleEnd(ctx, end); err != nil {
			return err
		}
		return e.notifyEnd(ctx, end)
	}
	return e.finish(ctx, end, last)
}

// Cancelled returns the error of an operation that stopped because its run was
// cancelled.
func Cancelled(why string) error {
	return &api.Error{Code: api.Denied, Reason: api.ReasonCancelled, Message: cmp.Or(why, "cancelled")}
}

// Terminated returns the error of an operation that stopped because the session of its run
// was terminated.
func Terminated(why string) error { return Cancelled(inTerminated + why) }

const inTerminated = "the session is terminated: "

// below returns ctx with the root span of a finished turn as its parent.
func below(ctx context.Context, root trace.SpanContext, cmd api.Run, id string) context.Context {
	return telemetry.WithTurn(trace.ContextWithSpanContext(ctx, root), cmd.Agent, id)
}

// turn executes the turn in progress and persists it. It returns the run's end if this
// turn was the last.
func (e *Engine) turn(ctx context.Context, s *state, ev Events) (*End, error) {
	began := e.Now()
	id := ID(s.cmd.Run, s.number)
	var past *Past
	var end *End
	var err error
	if !s.owned {
		if past, err = e.resume(ctx, s); e.Recorded == nil {
			s.endAt(s.input.Deadline, e.Now())
		}
	}
	ctx, span := e.Root(ctx, s.cmd, s.agent, id, past)
	s.root, s.began = span.SpanContext(), startOf(span, began)
	if err == nil {
		end, err = e.execute(ctx, s, ev, id, span)
	}
	if err != nil && ctx.Err() == nil && (fatal(err) || !s.retriesLater(err, e.Now())) {
		end, err = e.giveUp(ctx, s, ev, err)
	}
	if err != nil {
		// The owner that resumes the turn exports its root with the same ids.
		e.Observe.Turn(ctx, "interrupted", e.Now().Sub(began))
		telemetry.Abandon(span)
		if d, waits := e.waits(s, err); waits && ctx.Err() == nil {
			ev.Live(ctx, d)
		}
		return nil, err
	}
	outcome := "ok"
	if end != nil && !end.Success {
		outcome = "failed"
		telemetry.Fail(span, string(end.Code), end.Reason) // not the error, which may quote content
	}
	span.End()
	e.Observe.Turn(ctx, outcome, e.Now().Sub(began))
	return end, nil
}

// Prefixes and formats of the errors of runs that were given up. A replay parses them.
const (
	GivenUp    = "given up after %d tries"
	TookLonger = "the run took longer than its "
)

// startOf returns the start time of a span, or otherwise if the span does not have one.
func startOf(span trace.Span, otherwise time.Time) time.Time {
	if s, ok := span.(interface{ StartTime() time.Time }); ok {
		return s.StartTime()
	}
	return otherwise
}

// interrupted ends a run that was cancelled or reached its deadline. It starts the root
// span of the turn again, because that of the interrupted turn was abandoned.
func (e *Engine) interrupted(ctx context.Context, s *state, ev Events, cause error) (*End, error) {
	if !s.owned {
		if _, err := e.resume(ctx, s); err != nil {
			return nil, err
		}
	}
	ctx, span := e.Root(ctx, s.cmd, s.agent, ID(s.cmd.Run, s.number), &Past{Began: s.began})
	s.root = span.SpanContext()
	err := cause
	if api.ReasonOf(cause) == api.ReasonCancelled {
		k, kerr := e.Store.Known(ctx, s.cmd) // the watcher may not have the reason
		if kerr != nil {
			telemetry.Abandon(span)
			return nil, kerr
		}
		if k.Cancelled != "" {
			err = Cancelled(k.Cancelled)
		} else if k.Terminated != "" {
			err = Terminated(k.Terminated)
		}
	} else {
		err = &api.Error{
			Code: api.Denied, Reason: api.ReasonTimeout, Message: fmt.Sprintf(TookLonger+"%d s", s.agent.RunTimeoutS),
			Next: "ask for less at a time, or raise limits.timeout_seconds in its AGENT.md",
		}
	}
	end, gerr := e.giveUp(ctx, s, ev, err)
	if gerr != nil {
		telemetry.Abandon(span)
		return nil, gerr
	}
	telemetry.Fail(span, string(end.Code), end.Reason)
	span.End()
	return end, nil
}

func (e *Engine) execute(ctx context.Context, s *state, ev Events, id string, span trace.Span) (*End, error) {
	s.tools = e.toolbox(ctx, s.agent)
	funded := func() error { return nil }
	if s.completion == nil && !s.hasFunds() {
		funded = e.requestBalance(ctx, s)
		defer func() { _ = funded() }() // every return waits for the request, which writes to the state
	}
	tookUp := !s.owned
	if tookUp { // the first turn that this owner executes
		if err := e.begin(ctx, s, ev, funded); err != nil {
			return nil, err
		}
		if s.number == 1 && s.agent.State == api.StateDead {
			return nil, &api.Error{Code: api.Denied, Message: "the agent is dead", Next: "fund it: anima agent fund " + s.agent.ID + " 5"}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := funded(); err != nil { // after begin, so that a run that ends here has begun in the journal
		return nil, err
	}
	if s.number > 1 && s.completion == nil && (tookUp || s.joins || s.steered()) {
		if err := e.join(ctx, s); err != nil {
			return nil, err
		}
	}
	if s.attempts > e.Attempts {
		return nil, &api.Error{
			Code: api.Denied, Message: fmt.Sprintf(GivenUp, s.attempts-1),
			Next: "look for the cause in the log of loop, then send the message again",
		}
	}
	span.SetAttributes(attribute.Int("anima.turn.attempt", s.attempts))
	if s.completion == nil {
		if err := e.callModel(ctx, s, ev, id); err != nil {
			return nil, err
		}
	}
	c := s.completion.Answer
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
