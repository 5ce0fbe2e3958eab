package enginetest

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// The ports with a [Gate].

// through passes one call with a result through a gate.
func through[T any](ctx context.Context, gate Gate, port string, do func() (T, error)) (v T, err error) {
	err = gate(ctx, port, func() (err error) { v, err = do(); return err })
	return v, err
}

type gatedStore struct {
	engine.Store
	gate Gate
}

func (s gatedStore) Known(ctx context.Context, cmd api.Run) (engine.Known, error) {
	return through(ctx, s.gate, "known", func() (engine.Known, error) { return s.Store.Known(ctx, cmd) })
}

func (s gatedStore) Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error) {
	return through(ctx, s.gate, "changes", func() ([]api.AgentChanged, error) { return s.Store.Changes(ctx, cmd) })
}

func (s gatedStore) Drop(ctx context.Context, end engine.End) (engine.End, error) {
	return through(ctx, s.gate, "drop", func() (engine.End, error) { return s.Store.Drop(ctx, end) })
}

func (s gatedStore) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	if len(merged) == 0 {
		return nil // there is no run to merge: do not count this as a call
	}
	return s.gate(ctx, "merge", func() error { return s.Store.Merge(ctx, into, merged, at) })
}

func (s gatedStore) Over(ctx context.Context, run string) (bool, error) {
	return through(ctx, s.gate, "over", func() (bool, error) { return s.Store.Over(ctx, run) })
}

func (s gatedStore) Persist(ctx context.Context, rec *engine.Record, in engine.Input, end *engine.End) error {
	return s.gate(ctx, "persist", func() error { return s.Store.Persist(ctx, rec, in, end) })
}

type gatedJournal struct {
	*Journal
	gate Gate
}

func (j gatedJournal) Append(ctx context.Context, cmd api.Run, step engine.Step, last uint64) (uint64, error) {
	return through(ctx, j.gate, "append "+step.Kind(), func() (uint64, error) { return j.Journal.Append(ctx, cmd, step, last) })
}

func (j gatedJournal) Tail(ctx context.Context, cmd api.Run, after uint64) (steps []engine.Step, last uint64, err error) {
	err = j.gate(ctx, "tail", func() (err error) { steps, last, err = j.Journal.Tail(ctx, cmd, after); return err })
	return steps, last, err
}

type gatedRouter struct {
	*Router
	gate Gate
}

func (r gatedRouter) Complete(ctx context.Context, q engine.Question, delta func(api.Delta)) (c api.Completion, s engine.Settling, err error) {
	err = r.gate(ctx, "complete", func() (err error) { c, s, err = r.Router.Complete(ctx, q, delta); return err })
	return c, gatedSettling{s, r.gate}, err
}

func (r gatedRouter) Confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	return through(ctx, r.gate, "confirm", func() (*api.Funds, error) { return r.Router.Confirm(ctx, agent, call) })
}

type gatedSettling struct {
	engine.Settling

	gate Gate
}

func (s gatedSettling) Wait(ctx context.Context) (*api.Funds, error) {
	return through(ctx, s.gate, "settled", func() (*api.Funds, error) { return s.Settling.Wait(ctx) })
}

type gatedPolicy struct {
	*Policy
	gate Gate
}

func (p gatedPolicy) Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error) {
	return through(ctx, p.gate, "evaluate", func() (api.Decision, error) { return p.Policy.Evaluate(ctx, req) })
}

func (p gatedPolicy) Verify(ctx context.Context, token string) (api.Grant, error) {
	return through(ctx, p.gate, "verify", func() (api.Grant, error) { return p.Policy.Verify(ctx, token) })
}

type gatedInbox struct {
	*Inbox
	gate Gate
}

func (i gatedInbox) Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error) {
	return through(ctx, i.gate, "claim", func() ([]api.InboxMessage, error) { return i.Inbox.Claim(ctx, agent, run, from) })
}

func (i gatedInbox) Settle(ctx context.Context, agent, run string) error {
	return i.gate(ctx, "settle", func() error { return i.Inbox.Settle(ctx, agent, run) })
}

type gatedTreasury struct {
	*Treasury
	router *Router
	gate   Gate
}

func (t gatedTreasury) Spent(ctx context.Context, _, turn string) (api.Spent, error) {
	return through(ctx, t.gate, "spent", func() (api.Spent, error) {
		if t.Settling != nil {
			if s, going := t.Settling(); going {
				return s, t.Err
			}
		}
		return api.Spent{Paid: t.router.Spent(turn)}, t.Err
	})
}

func (t gatedTreasury) Balance(ctx context.Context, agent string) (api.Balance, error) {
	return through(ctx, t.gate, "balance", func() (api.Balance, error) { return t.Treasury.Balance(ctx, agent) })
}

type gatedQueue struct {
	*Queue
	gate Gate
}

func (q gatedQueue) Waiting(ctx context.Context, cmd api.Run) ([]api.Run, error) {
	return through(ctx, q.gate, "waiting", func() ([]api.Run, error) { return q.Queue.Waiting(ctx, cmd) })
}

type gatedAlarms struct {
	*Alarms
	gate Gate
}

func (a gatedAlarms) SetAlarm(ctx context.Context, m api.SetAlarm) (api.Alarm, error) {
	return through(ctx, a.gate, "set alarm", func() (api.Alarm, error) { return a.Alarms.SetAlarm(ctx, m) })
}

type gatedOutputs struct {
	*Outputs
	gate Gate
}

func (o gatedOutputs) Keep(ctx context.Context, turn string, index int, text string) error {
	return o.gate(ctx, "keep", func() error { return o.Outputs.Keep(ctx, turn, index, text) })
}

// gatedContext is an engine.ContextStore with a [Gate].
type gatedContext struct {
	engine.ContextStore
	gate Gate
}

func (c gatedContext) Conversation(ctx context.Context, session, id string, n int) (engine.Conversation, error) {
	return through(ctx, c.gate, "conversation", func() (engine.Conversation, error) { return c.ContextStore.Conversation(ctx, session, id, n) })
}

func (c gatedContext) Compact(ctx context.Context, done engine.Compaction) error {
	return c.gate(ctx, "compact", func() error { return c.ContextStore.Compact(ctx, done) })
}

func (c gatedContext) Keep(ctx context.Context, texts map[string]string) error {
	return c.gate(ctx, "keep", func() error { return c.ContextStore.Keep(ctx, texts) })
}
