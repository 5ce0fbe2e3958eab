package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/sqldb"
)

// ownGenesis selects the genesis prompt that agent a has set for itself. It selects none
// if the creator has applied another definition since.
const ownGenesis = `select g.prompt from genesis_prompts g where g.agent = a.id and g.version = a.version order by g.number desc limit 1`

// SetGenesis replaces an agent's genesis prompt and stores the previous one with it. It
// is idempotent by key. Errors: NotFound.
func (s *Store) SetGenesis(ctx context.Context, agent, prompt, reason, key string, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// The lock on the agent's row makes the numbers consecutive.
		if err := s.lockAgent(ctx, tx, agent); err != nil {
			return err
		}
		a, err := s.definition(ctx, tx, agent)
		if err != nil {
			return err
		}
		tx.Queue(ctx, `insert into genesis_prompts (agent, number, version, prompt, previous, reason, call_key, created_at)
			select id, (select coalesce(max(number), 0) + 1 from genesis_prompts where agent = $1), version, $2, $3, $4, $5, $6 from agents where id = $1
			on conflict (agent, call_key) do nothing`, agent, text(prompt), text(a.Genesis), text(reason), key, at)
		return nil
	})
}
