package sqlstore

import (
	"context"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Choose stores how an agent thinks. It is idempotent. Errors: NotFound.
func (s *Store) Choose(ctx context.Context, agent string, c engine.Choice, at int64) error {
	low := int64(0)
	if c.LowCompute {
		low = 1
	}
	res, err := s.db.ExecContext(ctx, `update agents set chosen_model = $2, low_compute = $3, updated_at = $4 where id = $1 and deleted_at = 0`, agent, c.Model, low, at)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return noAgent(agent)
	}
	return err
}
