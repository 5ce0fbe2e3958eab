package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/life"
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
// Dying between any two lines is safe: before begin nothing has happened;
// between steps the journal tells where to go on, and what it has is announced
// again under the same ids; before PERSIST the turn's events are stored.
func (e *Engine) Run(ctx context.Context, cmd api.Run, ev Events) error {
	known, err := e.Store.Known(ctx, cmd)
	if err != nil {
		return err
	}
	if known.Ended != nil && known.Ended.Turns == 0 {
		return e.dropped(ctx, *known.Ended, ev)
	}
	if known.Ended != nil {
		id := ID(cmd.Run, known.Ended.Turns)
		root := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled} // sent by whoever ended the run
		root.TraceID, root.SpanID = telemetry.DeriveIDs("turn", id)
		return e.finish(below(ctx, trace.NewSpanContext(root), cmd, id), *known.Ended, ev)
	}
	if end := refused(cmd, known, e.Now().UnixMicro()); end != nil {
		began, err := e.began(ctx, cmd, known)
		if err != nil {
			return err
		}
		if !began {
			return e.Drop(ctx, *end, ev)
		}
	}
	s := &state{
		cmd: cmd, agent: known.Agent, input: known.Input, number: known.Turns + 1, total: known.Turns, cost: known.Cost,
		last: known.Journal, since: known.Journal, results: map[int]Result{}, intents: map[int]Intent{}, before: known.Before,
		counters: known.Counters, notice: known.Notice,
	}
	runCtx, cancel := context.WithTimeout(ctx, time.Duration(known.Agent.RunTimeoutS)*time.Second)
	defer cancel()
	runCtx, stop := context.WithCancelCause(runCtx)
	defer stop(nil)
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
			return e.finish(below(ctx, s.root, cmd, ID(cmd.Run, end.Turns)), *end, ev)
		}
	}
}

// refused is the end of a run that must not begin, nil if it may.
func refused(cmd api.Run, k Known, at int64) *End {
	end := &End{Run: cmd, Input: Input{By: cmd.By}, Code: api.Denied, At: at, Fate: api.FateDropped}
	switch {
	case k.Cancelled != "":
		end.Reason, end.Error = api.ReasonCancelled, k.Cancelled
	case k.Terminated != "":
		end.Code, end.Reason, end.Error = api.Conflict, api.ReasonTerminated, "the session is terminated: "+k.Terminated
	default:
		return nil
	}
	return end
}

// began says whether an owner has taken the run up: then what it did must be kept.
func (e *Engine) began(ctx context.Context, cmd api.Run, k Known) (bool, error) {
	if k.Turns > 0 {
		return true, nil
	}
	tail, _, err := e.Journal.Tail(ctx, cmd.Session, k.Journal)
	return slices.ContainsFunc(tail, func(s Step) bool { return s.Run == cmd.Run }), err
}

// Drop gives a run that never began its fate, and announces it. Dying in between
// repeats the announcement: what is stored first stays.
func (e *Engine) Drop(ctx context.Context, end End, ev Events) error {
	stored, err := e.Store.Drop(ctx, end)
	if err != nil {
		return err
	}
	return e.dropped(ctx, stored, ev)
}

// dropped announces the end of a run that had no turn, below a root of its own: who
// hears of it has something to link to.
func (e *Engine) dropped(ctx context.Context, end End, ev Events) error {
	ctx, span := e.Tracer.Start(ctx, "drop_run", trace.WithNewRoot(), trace.WithAttributes(attribute.String("anima.run.fate", string(end.Fate))))
	defer span.End()
	return e.finish(ctx, end, ev)
}

// Cancelled is the error of what must not go on because somebody cancelled its run.
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
		past, err = e.takeUp(ctx, s)
	}
	ctx, span := e.Root(ctx, s.cmd, s.agent, id, past)
	s.root, s.began = span.SpanContext(), startOf(span, began)
	if err == nil {
		end, err = e.execute(ctx, s, ev, id, span)
	}
	if err != nil && ctx.Err() == nil && fatal(err) {
		end, err = e.giveUp(ctx, s, ev, err)
	}
	if err != nil {
		// Whoever takes the turn up again sends its root, under these very ids.
		e.Observe.Turn(ctx, "interrupted", e.Now().Sub(began))
		telemetry.Abandon(span)
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
		err = api.Errorf(api.Denied, tookLonger+"%d s", s.agent.RunTimeoutS)
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

// fatal errors end the run; all others bring it back later.
func fatal(err error) bool {
	switch api.CodeOf(err) {
	case api.Denied, api.Invalid:
		return true
	case api.Unavailable:
		switch api.ReasonOf(err) {
		case api.ReasonNoModel, api.ReasonLimit, api.ReasonPolicy:
			return true
		}
	case api.NotFound, api.Conflict, api.Internal:
	}
	return false
}

func (e *Engine) execute(ctx context.Context, s *state, ev Events, id string, span trace.Span) (*End, error) {
	s.tools = e.toolbox(ctx, s.agent)
	var poor error
	if s.thought == nil {
		poor = e.look(ctx, s)
	}
	tookUp := !s.owned
	if tookUp { // the first turn that this owner works on
		if err := e.begin(ctx, s, ev, id); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if poor != nil { // after begin: a run that ends so was taken up
		return nil, poor
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
	return e.persist(ctx, s, ev)
}

// takeUp reads where the journal stands, and says since when the turn may be under
// way.
func (e *Engine) takeUp(ctx context.Context, s *state) (*Past, error) {
	past := &Past{}
	if s.before > 0 {
		past.Before = time.UnixMicro(s.before)
	}
	tail, last, err := e.Journal.Tail(ctx, s.cmd.Session, s.last)
	if err != nil {
		return past, err
	}
	s.last = last
	for _, step := range tail {
		if step.Run == s.cmd.Run && step.Turn > s.number {
			// Persisted since the store was read: going on from here would make the
			// later turn's calls again.
			return past, api.Errorf(api.Conflict, "the run is at turn %d already", step.Turn)
		}
		s.apply(step)
		// Later turns begin without a word in the journal, when the one before ends.
		if b := step.Begin; b != nil && b.Input != nil && step.Run == s.cmd.Run && s.number == 1 && past.Began.IsZero() {
			past.Began = time.UnixMicro(b.Since)
			if b.Since == 0 { // of a release before
				past.Began = time.UnixMicro(b.At)
			}
		}
	}
	return past, nil
}

// begin takes the run up: it writes itself into the journal, which fences whoever
// had the run before. Then it says again what the owner before may have lost.
func (e *Engine) begin(ctx context.Context, s *state, ev Events, id string) error {
	b := &Begin{At: e.Now().UnixMicro(), Since: s.began.UnixMicro(), Attempt: s.attempts + 1}
	if s.number == 1 && s.attempts == 0 {
		input, err := e.input(ctx, s)
		if err != nil {
			return err
		}
		s.input, b.Input = input, &input
	}
	if err := e.append(ctx, s, Step{Begin: b}); err != nil {
		return err
	}
	s.attempts, s.owned = b.Attempt, true
	if s.number > 1 {
		if err := e.saidPersisted(ctx, s.cmd, s.number-1, b.At, ev); err != nil {
			return err
		}
		return e.repeat(ctx, s, ev, id)
	}
	if err := e.Store.Merge(ctx, s.cmd, s.input.Merged, b.At); err != nil {
		return err
	}
	changes, err := e.Store.Started(ctx, s.cmd, s.input, s.tier, b.At)
	if err != nil {
		return err
	}
	if n := len(changes); n > 0 {
		// The agent was waking for no time at all: its history has it, and the world is
		// told what came of it.
		s.agent.State = changes[n-1].State
		if err := e.saidChanged(ctx, &changes[n-1], ev); err != nil {
			return err
		}
	}
	if err := ev.Post(ctx, "loop_start/"+s.cmd.Run, api.LoopStart{
		Run: s.cmd.Run, Session: s.cmd.Session, Agent: s.agent.ID, Kind: s.cmd.Kind, At: b.At,
	}); err != nil {
		return err
	}
	return e.repeat(ctx, s, ev, id)
}

// append writes a step under the fence.
func (e *Engine) append(ctx context.Context, s *state, step Step) error {
	step.Run, step.Turn = s.cmd.Run, s.number
	seq, err := e.Journal.Append(ctx, s.cmd, step, s.last)
	if err != nil {
		return err
	}
	s.last = seq
	return nil
}

// input builds what the run starts from: its message or wake, and what waits in
// the inbox. The claim is idempotent by run, so dying before begin loses nothing.
func (e *Engine) input(ctx context.Context, s *state) (Input, error) {
	if e.player != nil {
		return e.player.Input, nil
	}
	if s.cmd.Kind == api.RunTask { // the inbox is the main session's
		return Input{Text: s.cmd.Content, By: s.cmd.By}, nil
	}
	messages, err := e.Inbox.Claim(ctx, s.agent.ID, s.cmd.Run)
	if err != nil {
		return Input{}, err
	}
	by := []api.Principal{s.cmd.By}
	text := s.cmd.Content
	if s.cmd.Kind == api.RunWake {
		text = "[wake] " + outside(s.cmd.Content)
	}
	for _, m := range messages {
		by = append(by, api.Principal{Kind: api.Peer, Address: m.From})
		text += "\n\n" + peerMessage(m)
	}
	in := Input{Inbox: len(messages)}
	if s.cmd.Mode == api.ModeCollect {
		waiting, err := e.Queue.Waiting(ctx, s.cmd)
		if err != nil {
			return Input{}, err
		}
		for _, m := range waiting {
			if m.Mode != api.ModeCollect {
				break // the order stays
			}
			by = append(by, m.By)
			text += "\n\n" + m.Content
			in.Merged = append(in.Merged, m)
		}
	}
	in.Text, in.By = text, api.Lowest(by...)
	return in, nil
}

// look asks how the agent is funded. Unknown is not poor (W-7).
func (e *Engine) look(ctx context.Context, s *state) error {
	balance, err := e.Treasury.Balance(ctx, s.agent.ID)
	// What it owns, a hold for this very thought included: who thinks it again after a
	// crash must make the same prompt, or the hold would not be found.
	balance.Available += balance.Held
	s.tier, s.funds = balance.Tier, &balance
	if err != nil {
		s.tier, s.funds = api.TierUnknown, nil
	}
	if api.CodeOf(err) == api.Unavailable {
		return nil
	}
	return err
}

// join takes in what wants to steer the run, as input of the turn that begins now.
// The journal has it before the store does, and an owner after this one gives
// the fates again.
func (e *Engine) join(ctx context.Context, s *state) error {
	waiting, err := e.Queue.Waiting(ctx, s.cmd)
	if err != nil {
		return err
	}
	in := Input{By: s.input.By}
	for _, m := range waiting {
		if m.Mode != api.ModeSteer || slices.ContainsFunc(s.joined.Merged, func(o api.Run) bool { return o.Run == m.Run }) {
			continue
		}
		over, err := e.Store.Over(ctx, m.Run) // a turn before took it in, and its delivery has not come yet
		if err != nil {
			return err
		}
		if over {
			continue
		}
		in.Text = strings.TrimSpace(in.Text + "\n\n" + m.Content)
		in.By = api.Lowest(in.By, m.By)
		in.Merged = append(in.Merged, m)
	}
	if len(in.Merged) > 0 {
		if err := e.append(ctx, s, Step{Joined: &in}); err != nil {
			return err
		}
		s.join(in)
	}
	return e.Store.Merge(ctx, s.cmd, s.joined.Merged, e.Now().UnixMicro())
}

// persist writes the turn and, when it was the last, the run's end.
func (e *Engine) persist(ctx context.Context, s *state, ev Events) (*End, error) {
	now := e.Now().UnixMicro()
	rec := s.record(s.agent.MaxCalls, life.StateAt(s.tier, s.agent.State), now)
	end := e.ended(s, &rec, now)
	// A persisted turn is not taken up again, so its events must be stored first.
	if err := ev.Wait(ctx); err != nil {
		return nil, err
	}
	e.Ending(ctx, now)
	if err := e.Store.Persist(ctx, &rec, s.input, end); err != nil {
		return nil, err
	}
	if end != nil {
		return end, nil
	}
	if rec.Changed != nil {
		s.agent.State = rec.Changed.State
		if err := e.saidChanged(ctx, rec.Changed, ev); err != nil {
			return nil, err
		}
	}
	if err := e.saidPersisted(ctx, s.cmd, s.number, now, ev); err != nil {
		return nil, err
	}
	s.next(rec)
	return nil, nil
}

// ended says whether the turn that is being persisted is the run's last, and how
// the agent goes on; it counts the turn in rec.
func (e *Engine) ended(s *state, rec *Record, now int64) *End {
	if s.thought.Completion.Finish == api.FinishFlush {
		return nil // the run goes on with what it is for, and no habit is to be seen
	}
	habits := life.Turn{Asked: s.asked()}
	end := &End{
		Run: s.cmd, Input: s.input, Success: true, Response: s.thought.Completion.Text, Turns: s.total + 1, Cost: s.cost + s.thought.Completion.Cost,
		At: now, State: api.StateSleeping, Fate: api.FateConsumed,
	}
	ends := false
	for i, call := range s.calls(s.agent.MaxCalls) { // of several alarms the first one wakes
		r := s.results[i]
		ends = ends || r.Ends && r.Outcome == api.OutcomeOK
		if r.Sleep != nil && r.Outcome == api.OutcomeOK && (end.Sleep == 0 || r.Sleep.Until < end.Sleep) {
			end.Sleep, end.Why = r.Sleep.Until, r.Sleep.Reason
		}
		t := s.tools[call.Name]
		habits.Calls = append(habits.Calls, life.Call{
			Tool: call.Name, Mutating: t.Mutating, Status: t.Status, Blocked: r.Blocked,
			Created: call.Name == "create_goal" && r.Outcome == api.OutcomeOK && !r.Blocked,
		})
	}
	counters, verdict := life.Observe(s.counters, habits)
	counters.Errors = 0
	rec.Counters, rec.Notice = counters, verdict.Notice
	switch {
	case end.Sleep != 0:
		rec.Notice = ""
	case ends:
		end.Why = "its task is over"
	case verdict.Why != "":
		e.rest(s, end, verdict.Why, verdict.For)
	case s.steered():
		return nil // somebody has more to say
	case len(s.thought.Completion.ToolCalls) == 0:
		e.rest(s, end, "nothing to do", life.AfterNothing)
	case s.total+1 >= s.agent.MaxTurns:
		e.rest(s, end, fmt.Sprintf("the limit of %d turns a run", s.agent.MaxTurns), life.AfterCycle)
	default:
		return nil
	}
	rec.Counters.Until, rec.Counters.Why = end.Sleep, end.Why
	return end
}

// rest puts the agent to sleep. One that lives by itself wakes again; any other
// waits for somebody, rather than spending money that nobody asked it to.
func (e *Engine) rest(s *state, end *End, why string, d time.Duration) {
	end.Why = why
	if s.agent.Autonomous && s.cmd.Kind != api.RunTask { // a task wakes nobody
		end.Sleep, end.Alarm = end.At+d.Microseconds(), true
	}
}

// giveUp ends the run with err; what was thought is kept. An error of its own
// never has the code of err: the run must come back to be given up again.
func (e *Engine) giveUp(ctx context.Context, s *state, ev Events, err error) (*End, error) {
	now := e.Now().UnixMicro()
	// Under the fence, so that an owner of the past cannot end what another goes on with.
	if ferr := e.append(ctx, s, Step{Begin: &Begin{At: now, Attempt: max(1, s.attempts)}}); ferr != nil {
		return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(ferr))
	}
	w := api.Wire(err)
	end := &End{
		Run: s.cmd, Input: s.input, Code: w.Code, Reason: w.Reason, Error: w.Message, At: now,
		State: api.StateSleeping, Why: w.Message, Fate: api.FateConsumed,
	}
	if s.input.Text == "" {
		s.input = Input{Text: s.cmd.Content, By: s.cmd.By}
		end.Input = s.input
	}
	if s.thought == nil { // the input stays in the transcript, without words that nobody said
		s.thought = &Thought{
			Completion: api.Completion{Finish: "error"}, StartedAt: now,
			Trace: trace.SpanContextFromContext(ctx).TraceID().String(),
		}
	}
	rec := s.record(s.agent.MaxCalls, life.StateAt(s.tier, s.agent.State), now)
	rec.Counters = e.failed(s, end, w)
	end.Turns, end.Cost = s.total+1, s.cost+rec.Turn.Cost
	perr := ev.Wait(ctx)
	if perr == nil {
		e.Ending(ctx, now)
		perr = e.Store.Persist(ctx, &rec, s.input, end)
	}
	if perr != nil {
		return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(perr))
	}
	return end, nil
}

// failed says how the agent rests after a run that ended with w, by its cause
// (spec-core-1 §1.5, W-6, W-48).
func (e *Engine) failed(s *state, end *End, w *api.Error) api.Counters {
	counters := s.counters
	switch w.Reason {
	case api.ReasonCancelled:
		return counters // what somebody stopped is no failure
	case api.ReasonInsufficient:
		end.State = api.StateCritical // waits for money
		counters.Errors = 0
	case api.ReasonLimit:
		e.rest(s, end, w.Message, max(w.Retry(), life.AfterBudget))
	case api.ReasonNoModel:
		e.rest(s, end, w.Message, life.AfterNoModel)
	case api.ReasonPolicy:
		e.rest(s, end, w.Message, life.AfterPolicy)
	default:
		var v life.Verdict
		if counters, v = life.Failed(counters); v.Why != "" {
			e.rest(s, end, v.Why+"; the last one: "+w.Message, v.For)
		} else {
			e.rest(s, end, w.Message, life.AfterNothing)
		}
	}
	counters.Until, counters.Why = end.Sleep, end.Why
	return counters
}

// retryable takes a code from err that would settle the run's message.
func retryable(err error) error {
	if fatal(err) {
		return errors.New(err.Error())
	}
	return err
}
