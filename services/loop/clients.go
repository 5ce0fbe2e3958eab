package loop

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// clients calls the other services over the bus. It implements the ports of packages
// engine and tool.
type clients struct {
	bus  *bus.Bus
	now  func() time.Time
	past *atomic.Int64 // time until which the router is treated as one of an older release, in Unix µs
}

func newClients(b *bus.Bus, now func() time.Time) clients {
	return clients{bus: b, now: now, past: &atomic.Int64{}}
}

// completeTimeout is the router's timeout for a turn, 120 s, plus time for its answer
// (docs/reference/loop.md, Time limits).
const completeTimeout = 125 * time.Second

// settleTimeout limits the wait for a settlement that the router has started.
const settleTimeout = 25 * time.Second

// pastRouter is the time for which questions are sent in the form of an older release,
// after no router of this release has answered. encodedWithin limits the wait for a
// router of this release.
const (
	pastRouter    = 30 * time.Second
	encodedWithin = time.Second
)

// silentWithin limits the wait after a period without any answer. The bus repeats a
// request after 3 s without an answer, and each wait restarts that time.
const silentWithin = 5 * time.Second

type answering = bus.StreamReader[api.Delta, api.Completion]

// ask sends a question to the router. It uses the encoded form of the prompt if a
// router accepts it, and the older form otherwise.
func (s clients) ask(ctx context.Context, q engine.Question) (*answering, error) {
	if s.now().UnixMicro() >= s.past.Load() {
		m := api.CompleteV2{Messages: q.Encoded, Tools: q.EncodedTools, Call: q.Complete}
		if m.Messages == nil {
			m.Messages = engine.Encode(q.Messages)
		}
		if m.Tools == nil {
			var err error
			if m.Tools, err = chat.EncodeTools(q.Tools); err != nil {
				return nil, err
			}
		}
		stream, err := bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, m)
		if err != nil {
			return nil, err
		}
		// If there is no answer at all, because a router is slow, a router has crashed,
		// or NATS has not reported yet that there is none, ask waits again.
		for within := encodedWithin; api.ReasonOf(err) != api.ReasonNoAnswer; within = silentWithin {
			some, cancel := context.WithTimeout(ctx, within)
			err = stream.Begin(some)
			silent := some.Err() != nil && ctx.Err() == nil
			cancel()
			if err == nil || !silent && api.ReasonOf(err) != api.ReasonNoAnswer {
				return stream, err
			}
		}
		stream.Close()
		s.past.Store(s.now().Add(pastRouter).UnixMicro())
	}
	return bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, q.Complete)
}

// Complete implements engine.Router. [settling.Wait] reads the rest of the stream.
func (s clients) Complete(ctx context.Context, q engine.Question, delta func(api.Delta)) (api.Completion, engine.Settling, error) {
	within, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	defer bus.Within(ctx, completeTimeout)()
	stream, err := s.ask(within, q)
	if err != nil {
		if stream != nil {
			stream.Close()
		}
		return api.Completion{}, nil, err
	}
	free := context.AfterFunc(ctx, stream.Close)
	for {
		d, more, err := stream.Next(within)
		switch {
		case err != nil:
			free()
			stream.Close()
			return api.Completion{}, nil, err
		case !more: // no settlement follows, or the router is of an older release
			free()
			stream.Close()
			return stream.Answer(), engine.Settled{Funds: stream.Answer().Funds}, nil
		}
		if d.Content != "" || d.Discard || d.Note != "" {
			delta(d)
		}
		if d.Answer != nil {
			return *d.Answer, settling{s, stream, q.Agent, q.ID, free}, nil
		}
	}
}

// settling is the settlement of an answer, which the router reports at the end of the
// stream.
type settling struct {
	services clients
	stream   *answering
	agent    string
	call     string
	free     func() bool
}

// Wait implements engine.Settling. If the stream breaks off, it requests the settlement
// with confirm, from any replica of the router.
func (s settling) Wait(ctx context.Context) (*api.Funds, error) {
	defer s.stream.Close()
	defer s.free()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	defer bus.Within(ctx, settleTimeout)()
	return failpoint.Value(ctx, failpoint.LoopSettled, func(ctx context.Context) (*api.Funds, error) {
		for {
			_, more, err := s.stream.Next(ctx)
			switch {
			case err != nil && ctx.Err() == nil:
				return s.services.confirm(ctx, s.agent, s.call)
			case err != nil:
				return nil, err
			case !more:
				return s.stream.Answer().Funds, nil
			}
		}
	})
}

// Confirm implements engine.Router.
func (s clients) Confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	return failpoint.Value(ctx, failpoint.LoopSettled, func(ctx context.Context) (*api.Funds, error) { return s.confirm(ctx, agent, call) })
}

func (s clients) confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	answer, err := bus.Call[api.Completion](ctx, s.bus, api.Confirm{ID: call, Agent: agent})
	return answer.Funds, err
}

// Balance implements engine.Treasury.
func (s clients) Balance(ctx context.Context, agent string) (api.Balance, error) {
	return bus.Call[api.Balance](ctx, s.bus, api.GetBalance{Agent: agent})
}

// Spent implements engine.Treasury.
func (s clients) Spent(ctx context.Context, agent, turn string) (api.Spent, error) {
	return bus.Call[api.Spent](ctx, s.bus, api.GetSpent{Agent: agent, Turn: turn, Category: api.CategoryInference})
}

// topupTimeout is the time that treasury takes for a purchase, 8 s, plus time for its answer.
const topupTimeout = 10 * time.Second

// TopUp implements engine.Topups. In most installations there is no seller of credits, and
// treasury refuses at once.
func (s clients) TopUp(ctx context.Context, agent string) bool {
	within, cancel := context.WithTimeout(ctx, topupTimeout)
	defer cancel()
	defer bus.Within(ctx, topupTimeout)()
	got, err := bus.Call[api.TopUpTriggered](within, s.bus, api.TriggerTopUp{Agent: agent, Cause: "loop: a model call was refused", Refused: true})
	return err == nil && got.Bought
}

// Claim implements engine.Inbox.
func (s clients) Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error) {
	in, err := failpoint.Value(ctx, failpoint.LoopInboxClaim, func(ctx context.Context) (api.Inbox, error) {
		return bus.Call[api.Inbox](ctx, s.bus, api.ClaimInbox{Agent: agent, Run: run, From: from})
	})
	return in.Messages, err
}

// Settle implements engine.Inbox.
func (s clients) Settle(ctx context.Context, agent, run string, unanswered bool) error {
	return failpoint.Do(ctx, failpoint.LoopInboxSettle, func(ctx context.Context) error {
		_, err := bus.Call[api.InboxCount](ctx, s.bus, api.SettleInbox{Agent: agent, Run: run, Unanswered: unanswered})
		return err
	})
}

// SetAlarm implements engine.Alarms.
func (s clients) SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error) {
	return failpoint.Value(ctx, failpoint.LoopAlarm, func(ctx context.Context) (api.Alarm, error) {
		return bus.Call[api.Alarm](ctx, s.bus, a)
	})
}

// policyClient implements engine.Policy. It caches the public keys of policy.
type policyClient struct {
	*executor.Keys

	bus *bus.Bus
}

// Evaluate implements engine.Policy.
func (j policyClient) Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error) {
	return bus.Call[api.Decision](ctx, j.bus, req)
}
