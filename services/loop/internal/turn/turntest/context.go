package turntest

import (
	"context"
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Conversation implements turn.ContextStore.
func (s *Store) Conversation(_ context.Context, session, id string, n int) (turn.Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := turn.Conversation{Last: turn.Compaction{Session: session}}
	for _, done := range s.compactions {
		if done.Session != session {
			continue
		}
		if done.Through > c.Last.Through {
			c.Last = done
		}
		if done.Turn == id {
			c.Paid += done.Cost
		}
	}
	for _, t := range s.positioned(session) {
		if r := s.prompts[t.ID]; r != nil && t.InputTokens > 0 {
			c.Calls = append(c.Calls, turn.Reported{Model: t.Model, Counted: r.Counted, Reported: t.InputTokens})
		}
		if t.Position > c.Last.Through {
			c.Turns = append(c.Turns, t)
		}
	}
	c.Turns, c.Calls = c.Turns[max(0, len(c.Turns)-n):], c.Calls[max(0, len(c.Calls)-20):]
	return c, nil
}

func (s *Store) positioned(session string) []prompt.Turn {
	var out []prompt.Turn
	for _, t := range s.turns {
		if t.Session == session {
			out = append(out, prompt.Turn{Turn: t, Position: int64(len(out) + 1)})
		}
	}
	return out
}

// Compact implements turn.ContextStore.
func (s *Store) Compact(_ context.Context, c turn.Compaction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(o turn.Compaction) bool { return o.Session == c.Session && o.Through == c.Through }
	if !slices.ContainsFunc(s.compactions, same) {
		s.compactions = append(s.compactions, c)
		s.texts[turn.Hash(c.Summary)] = c.Summary
	}
	return nil
}

// Keep implements turn.ContextStore.
func (s *Store) Keep(_ context.Context, texts map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, text := range texts {
		s.texts[h] = text
	}
	return nil
}

// Text implements turn.ContextStore.
func (s *Store) Text(_ context.Context, hash string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.texts[hash]
	if !ok {
		return "", api.Errorf(api.NotFound, "there is no text %s", hash)
	}
	return text, nil
}

// Prompt implements turn.ContextStore.
func (s *Store) Prompt(_ context.Context, id string) (turn.Reference, []prompt.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.prompts[id]
	if r == nil {
		return turn.Reference{}, nil, api.Errorf(api.NotFound, "nothing is known of the prompt of turn %s", id)
	}
	session := s.turns[slices.IndexFunc(s.turns, func(t api.Turn) bool { return t.ID == id })].Session
	all := s.positioned(session)
	return *r, slices.DeleteFunc(all, func(t prompt.Turn) bool { return t.Position < r.First || t.Position > r.Last }), nil
}

// Compactions returns those that were stored, in order.
func (s *Store) Compactions() []turn.Compaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.compactions)
}

// gatedContext is a turn.ContextStore behind a gate.
type gatedContext struct {
	turn.ContextStore
	gate Gate
}

func (c gatedContext) Conversation(ctx context.Context, session, id string, n int) (turn.Conversation, error) {
	return through(ctx, c.gate, "conversation", func() (turn.Conversation, error) { return c.ContextStore.Conversation(ctx, session, id, n) })
}

func (c gatedContext) Compact(ctx context.Context, done turn.Compaction) error {
	return c.gate(ctx, "compact", func() error { return c.ContextStore.Compact(ctx, done) })
}

func (c gatedContext) Keep(ctx context.Context, texts map[string]string) error {
	return c.gate(ctx, "keep", func() error { return c.ContextStore.Keep(ctx, texts) })
}
