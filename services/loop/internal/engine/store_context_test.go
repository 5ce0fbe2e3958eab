package engine_test

import (
	"context"
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Conversation implements engine.ContextStore.
func (s *memStore) Conversation(_ context.Context, session, id string, n int) (engine.Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := engine.Conversation{Last: engine.Compaction{Session: session}}
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
			c.Calls = append(c.Calls, engine.Reported{Model: t.Model, Counted: r.Counted, Reported: t.InputTokens})
		}
		if t.Position > c.Last.Through {
			c.Turns = append(c.Turns, t)
		}
	}
	c.Turns, c.Calls = c.Turns[max(0, len(c.Turns)-n):], c.Calls[max(0, len(c.Calls)-20):]
	return c, nil
}

func (s *memStore) positioned(session string) []prompt.Turn {
	var out []prompt.Turn
	for _, t := range s.turns {
		if t.Session == session {
			out = append(out, prompt.Turn{Turn: t, Position: int64(len(out) + 1)})
		}
	}
	return out
}

// Compact implements engine.ContextStore.
func (s *memStore) Compact(_ context.Context, c engine.Compaction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(o engine.Compaction) bool { return o.Session == c.Session && o.Through == c.Through }
	if !slices.ContainsFunc(s.compactions, same) {
		s.compactions = append(s.compactions, c)
		s.texts[engine.Hash(c.Summary)] = c.Summary
	}
	return nil
}

// Keep implements engine.ContextStore.
func (s *memStore) Keep(_ context.Context, texts map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, text := range texts {
		s.texts[h] = text
	}
	return nil
}

// Text implements engine.ContextStore.
func (s *memStore) Text(_ context.Context, hash string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.texts[hash]
	if !ok {
		return "", api.Errorf(api.NotFound, "there is no text %s", hash)
	}
	return text, nil
}

// Prompt implements engine.ContextStore.
func (s *memStore) Prompt(_ context.Context, id string) (engine.Reference, []prompt.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.prompts[id]
	if r == nil {
		return engine.Reference{}, nil, api.Errorf(api.NotFound, "nothing is known of the prompt of turn %s", id)
	}
	session := s.turns[slices.IndexFunc(s.turns, func(t api.Turn) bool { return t.ID == id })].Session
	all := s.positioned(session)
	return *r, slices.DeleteFunc(all, func(t prompt.Turn) bool { return t.Position < r.First || t.Position > r.Last }), nil
}

// Recorded implements engine.ContextStore.
func (s *memStore) Recorded(ctx context.Context, id string) (engine.Recording, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.turns, func(t api.Turn) bool { return t.ID == id })
	if at < 0 {
		return engine.Recording{}, api.Errorf(api.NotFound, "there is no turn %s", id)
	}
	t := s.turns[at]
	r := s.runs[t.Run]
	rec := engine.Recording{Run: r.cmd, Turn: t, Input: r.input, Before: engine.Conversation{Last: engine.Compaction{Session: t.Session}}}
	if ref := s.prompts[id]; ref != nil {
		rec.Reference = *ref
	}
	if r.end != nil && r.end.Turns == t.Number {
		end := *r.end
		rec.End = &end
	}
	all := s.positioned(t.Session)
	position := all[slices.IndexFunc(all, func(o prompt.Turn) bool { return o.ID == id })].Position
	for _, o := range all {
		switch {
		case o.Position == position+1:
			rec.After = s.prompts[o.ID]
		case o.Position < position && o.Run == t.Run:
			rec.Cost += o.Cost
			rec.Input.By = o.By
		}
		if ref := s.prompts[o.ID]; ref != nil && o.Position < position && o.InputTokens > 0 {
			rec.Before.Calls = append(rec.Before.Calls, engine.Reported{Model: o.Model, Counted: ref.Counted, Reported: o.InputTokens})
		}
	}
	for _, c := range s.compactions {
		switch {
		case c.Session != t.Session:
		case c.Through == rec.Reference.Through:
			rec.Before.Last = c
		case c.Turn == id:
			rec.Compactions = append(rec.Compactions, c)
		}
	}
	for _, o := range all {
		if o.Position > rec.Before.Last.Through && o.Position < position {
			rec.Before.Turns = append(rec.Before.Turns, o)
		}
	}
	n := prompt.Needed + t.Number - 1
	b := &rec.Before
	b.Turns, b.Calls = b.Turns[max(0, len(b.Turns)-n):], b.Calls[max(0, len(b.Calls)-20):]
	return rec, nil
}

// Compactions returns the stored compactions, in order.
func (s *memStore) Compactions() []engine.Compaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.compactions)
}
