package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Started implements enginetest.Stores.
func (s *Store) Started(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) ([]api.AgentChanged, error) {
	if err := s.Announced(ctx, cmd, input, tier, at); err != nil {
		return nil, err
	}
	return s.Changes(ctx, cmd)
}

// History implements enginetest.Stores.
func (s *Store) History(ctx context.Context, session string, n int) ([]api.Turn, error) {
	all, err := s.turns(ctx, `where session = $1 order by position desc limit $2`, session, n)
	out := make([]api.Turn, len(all))
	for i, t := range all {
		out[len(all)-1-i] = t.Turn
	}
	return out, err
}
