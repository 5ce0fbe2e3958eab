package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// resume reads the tail of the journal into the state and returns the earliest time at
// which the turn may have started.
func (e *Engine) resume(ctx context.Context, s *state) (*Past, error) {
	past := &Past{}
	if s.before > 0 {
		past.Before = time.UnixMicro(s.before)
	}
	tail, last, err := e.Journal.Tail(ctx, s.cmd, s.last)
	if err != nil {
		return past, err
	}
	s.last = last
	s.fresh = s.number == 1 && !slices.ContainsFunc(tail, func(step Step) bool { return step.End == nil && !step.Release })
	for _, step := range tail {
		if step.Run == s.cmd.Run && step.Turn > s.number {
			// The turn was persisted after the store was read: continuing here would
			// repeat the calls of the later turn.
			return past, api.Errorf(api.Conflict, "the run is at turn %d already", step.Turn)
		}
		if step.Run == s.cmd.Run && step.End != nil { // the end was persisted after the store was read
			return past, api.Errorf(api.Conflict, "the run is over")
		}
		s.apply(step)
		// A later turn begins when the previous one ends, without a begin in the
		// journal.
		if b := step.Begin; b != nil && b.Input != nil && step.Run == s.cmd.Run && s.number == 1 && past.Began.IsZero() {
			past.Began = time.UnixMicro(b.Since)
			if b.Since == 0 { // written by an older release
				past.Began = time.UnixMicro(b.At)
			}
		}
	}
	return past, nil
}

// begin appends a begin to the journal, which fences the previous owner, and continues
// with continueRun. funded waits until the state has the agent's funds; the caller handles its
// error.
func (e *Engine) begin(ctx context.Context, s *state, ev Events, funded func() error) error {
	b := &Begin{At: e.Now().UnixMicro(), Since: s.began.UnixMicro(), Attempt: s.attempts + 1}
	if s.number == 1 && s.attempts == 0 {
		input, err := e.input(ctx, s)
		if err != nil {
			return err
		}
		if input.Deadline == 0 {
			input.Deadline = e.Now().Add(limitOf(s.agent)).UnixMicro()
		}
		s.input, s.begun, b.Input, b.Kind = input, b.At, &input, s.cmd.Kind
	}
	if err := e.append(ctx, s, Step{Begin: b}); err != nil {
		return err
	}
	s.attempts, s.owned = b.Attempt, true
	s.resumed(b.At)
	_ = funded()
	return e.continueRun(ctx, s, ev)
}

// continueRun applies the consequences of the run's input, and publishes again events that an
// owner of an older release may have lost.
func (e *Engine) continueRun(ctx context.Context, s *state, ev Events) error {
	if s.number == 1 {
		if e.Begun != nil && s.recorded == nil && s.begun != 0 {
			recorded, err := e.Begun(ctx, s.cmd, s.input, s.thinksAs(), s.begun)
			if err != nil {
				return err
			}
			s.recorded = recorded
		}
		if err := e.Store.Merge(ctx, s.cmd, s.input.Merged, e.Now().UnixMicro()); err != nil {
			return err
		}
	}
	return e.repeatOld(ctx, s, ev)
}

// append writes a step at the expected last sequence, together with the pending
// announcements.
func (e *Engine) append(ctx context.Context, s *state, step Step) error {
	step.Run, step.Turn, step.Persisted, step.Changed = s.cmd.Run, s.number, s.persisted, s.changed
	seq, err := e.Journal.Append(ctx, s.cmd, step, s.last)
	if err != nil {
		return err
	}
	s.last, s.persisted, s.changed = seq, 0, nil
	return nil
}

// input builds the input of the run: its message, its wake, or the messages of its
// inbox. The inbox is claimed under the id of the run, so a crash before begin loses no
// message. Runs of other kinds do not include peer messages, which would lower their
// principal.
func (e *Engine) input(ctx context.Context, s *state) (Input, error) {
	if e.Recorded != nil {
		return e.Recorded.RunInput(), nil
	}
	by := []api.Principal{s.cmd.By}
	text := s.cmd.Content
	var in Input
	switch s.cmd.Kind {
	case api.RunMail:
		return e.mail(ctx, s, s.cmd.By.Address, "")
	case api.RunWake:
		text = "[wake] " + sanitize.Clean(s.cmd.Content)
		if s.cmd.By.Kind == api.Peer { // a wake for mail, created by an older release
			return e.mail(ctx, s, "", text)
		}
	case api.RunMessage, api.RunTask, api.RunImport:
	}
	if s.cmd.Mode == api.ModeCollect {
		waiting, err := e.Queue.Waiting(ctx, s.cmd)
		if err != nil {
			return Input{}, err
		}
		for _, m := range waiting {
			if m.Mode != api.ModeCollect {
				break // preserve the order of the queue
			}
			if isCopy(s.cmd, in.Merged, m) {
				continue
			}
			waits, err := e.Store.Waits(ctx, m.Run)
			if err != nil {
				return Input{}, err
			}
			if !waits {
				continue
			}
			by = append(by, m.By)
			text += "\n\n" + m.Content
			in.Merged = append(in.Merged, m)
		}
	}
	in.Text, in.By = text, api.Lowest(by...)
	return in, nil
}

// isCopy reports whether a queued message is that of the run itself or one that is merged
// already. A caller may send a message again with its idempotency key, and if the message
// waits for longer than the queue keeps its id, the queue has it twice.
func isCopy(cmd api.Run, merged []api.Run, m api.Run) bool {
	return m.Run == cmd.Run || slices.ContainsFunc(merged, func(o api.Run) bool { return o.Run == m.Run })
}

// mail builds the input of a run for inbox messages: those of one sender, or of all
// senders if from is "".
func (e *Engine) mail(ctx context.Context, s *state, from, text string) (Input, error) {
	messages, err := e.Inbox.Claim(ctx, s.agent.ID, s.cmd.Run, from)
	if err != nil {
		return Input{}, err
	}
	by := []api.Principal{s.cmd.By}
	for _, m := range messages {
		by = append(by, api.Principal{Kind: api.Peer, Address: m.From})
		text = strings.TrimSpace(text + "\n\n" + prompt.PeerMessage(m))
	}
	if text == "" {
		text = "[" + sanitize.Clean(s.cmd.Content) + ": it is not there any more]"
	}
	return Input{Text: text, By: api.Lowest(by...), Inbox: len(messages)}, nil
}

// hasFunds reports whether the settlement of the previous turn returned the agent's funds,
// and copies them to the state.
func (s *state) hasFunds() bool {
	if s.settledFunds == nil {
		return false
	}
	s.tier, s.funds = s.settledFunds.Tier, &api.Balance{Agent: s.agent.ID, Available: s.settledFunds.Available + s.settledFunds.Held, Tier: s.settledFunds.Tier}
	return true
}

// requestBalance requests the agent's balance from treasury, concurrently with the caller. The
// returned function waits for the answer and sets the funds in the state; it must be
// called. If treasury is unavailable, the tier is unknown, which is not treated as a
// low balance (docs/reference/loop.md, unknown tier).
func (e *Engine) requestBalance(ctx context.Context, s *state) (funded func() error) {
	var asking sync.WaitGroup
	var balance api.Balance
	var err error
	asking.Go(func() { balance, err = e.Treasury.Balance(ctx, s.agent.ID) })
	return sync.OnceValue(func() error {
		asking.Wait()
		// The funds include a hold for this completion. An owner that resumes the turn
		// must build the same prompt; otherwise the router would not find the hold.
		balance.Available += balance.Held
		s.tier, s.funds = balance.Tier, &balance
		if err != nil {
			s.tier, s.funds = api.TierUnknown, nil
		}
		if api.CodeOf(err) == api.Unavailable {
			return nil
		}
		return err
	})
}

// join adds queued messages in mode steer as input of the turn that begins. It appends
// the input to the journal before it records the outcomes in the store, so a later
// owner can record them again.
func (e *Engine) join(ctx context.Context, s *state) error {
	s.joins = false
	in, err := e.steering(ctx, s)
	if err != nil {
		return err
	}
	if len(in.Merged) > 0 {
		if err := e.append(ctx, s, Step{Joined: &in}); err != nil {
			return err
		}
		s.join(in)
	}
	return e.Store.Merge(ctx, s.cmd, s.joined.Merged, e.Now().UnixMicro())
}

// checkSteered sets joins. The notice of a message does not suffice to continue a run that
// would end: the message may have been cancelled since, and the answer to a turn without
// new input would replace that of the run. A replay has no queue.
func (e *Engine) checkSteered(ctx context.Context, s *state) error {
	if s.joins = s.steered(); !s.joins || e.Recorded != nil {
		return nil
	}
	in, err := e.steering(ctx, s)
	s.joins = len(in.Merged) > 0
	return err
}

// steering returns the queued messages in mode steer that have not joined the run.
func (e *Engine) steering(ctx context.Context, s *state) (Input, error) {
	in := Input{By: s.input.By}
	waiting, err := e.Queue.Waiting(ctx, s.cmd)
	if err != nil {
		return in, err
	}
	for _, m := range waiting {
		if m.Mode != api.ModeSteer || isCopy(s.cmd, s.joined.Merged, m) || isCopy(s.cmd, in.Merged, m) {
			continue
		}
		waits, err := e.Store.Waits(ctx, m.Run) // false also if an earlier turn merged it, and its message is not acknowledged yet
		if err != nil {
			return in, err
		}
		if !waits {
			continue
		}
		in.Text = strings.TrimSpace(in.Text + "\n\n" + m.Content)
		in.By = api.Lowest(in.By, m.By)
		in.Merged = append(in.Merged, m)
	}
	return in, nil
}
