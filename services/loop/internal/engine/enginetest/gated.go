package enginetest

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Gate is called instead of every call of a port; it calls do, or fails.
type Gate func(ctx context.Context, port string, do func() error) error

// Open is a [Gate] that calls do unless ctx has ended, as real I/O does.
func Open(ctx context.Context, _ string, do func() error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return do()
}

type gateKey struct{}

// With returns a context below which the ports of a world call gate.
func With(ctx context.Context, gate Gate) context.Context {
	return context.WithValue(ctx, gateKey{}, gate)
}

// through passes one call of a port through the gate of ctx, or through [Open].
func through(ctx context.Context, port string, do func() error) error {
	if gate, ok := ctx.Value(gateKey{}).(Gate); ok {
		return gate(ctx, port, do)
	}
	return Open(ctx, port, do)
}

// result is through for a call with a result.
func result[T any](ctx context.Context, port string, do func() (T, error)) (v T, err error) {
	err = through(ctx, port, func() (err error) { v, err = do(); return err })
	return v, err
}

// gatedStore passes the calls of a store through gates.
type gatedStore struct{ Stores }

func (s gatedStore) Known(ctx context.Context, cmd api.Run) (engine.Known, error) {
	return result(ctx, "known", func() (engine.Known, error) { return s.Stores.Known(ctx, cmd) })
}

func (s gatedStore) Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error) {
	return result(ctx, "changes", func() ([]api.AgentChanged, error) { return s.Stores.Changes(ctx, cmd) })
}

func (s gatedStore) Drop(ctx context.Context, end engine.End) (engine.End, error) {
	return result(ctx, "drop", func() (engine.End, error) { return s.Stores.Drop(ctx, end) })
}

func (s gatedStore) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	if len(merged) == 0 {
		return nil // there is no run to merge: do not count this as a call
	}
	return through(ctx, "merge", func() error { return s.Stores.Merge(ctx, into, merged, at) })
}

func (s gatedStore) Waits(ctx context.Context, run string) (bool, error) {
	return result(ctx, "waits", func() (bool, error) { return s.Stores.Waits(ctx, run) })
}

func (s gatedStore) Persist(ctx context.Context, rec *engine.Record, in engine.Input, end *engine.End) error {
	return through(ctx, "persist", func() error { return s.Stores.Persist(ctx, rec, in, end) })
}

func (s gatedStore) Conversation(ctx context.Context, session, id string, n int) (engine.Conversation, error) {
	return result(ctx, "conversation", func() (engine.Conversation, error) { return s.Stores.Conversation(ctx, session, id, n) })
}

func (s gatedStore) Compact(ctx context.Context, done engine.Compaction) error {
	return through(ctx, "compact", func() error { return s.Stores.Compact(ctx, done) })
}

func (s gatedStore) Keep(ctx context.Context, texts map[string]string) error {
	return through(ctx, "keep", func() error { return s.Stores.Keep(ctx, texts) })
}
