package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/social/internal/registration"
)

// Register stores a registration and returns it with the time of the first one of its id.
// An address has one registration, the latest. Errors: Conflict, if the id belongs to
// another address.
func (s *Store) Register(ctx context.Context, r registration.Registration, now time.Time) (registration.Registration, error) {
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// The lock serialises the registrations of one address.
		tx.Queue(ctx, `insert into key_owners (address, changed) values ($1, $2)
			on conflict (address) do update set changed = excluded.changed`, r.Address, micros(now))
		tx.Queue(ctx, "delete from automatons where address = $1 and id <> $2", r.Address, r.ID)
		err := tx.QueryRowContext(ctx, `insert into automatons (id, address, creator, name, bio, genesis, registered_at)
			values ($1, $2, $3, $4, $5, $6, $7) on conflict (id) do update
			set creator = excluded.creator, name = excluded.name, bio = excluded.bio, genesis = excluded.genesis
			where automatons.address = excluded.address returning registered_at`,
			r.ID, r.Address, r.Creator, r.Name, r.Bio, r.Genesis, micros(now)).Scan(&r.At)
		if errors.Is(err, sqldb.ErrNotFound) {
			return &api.Error{Code: api.Conflict, Message: "the automaton_id is registered by another address", Next: "choose another id"}
		}
		return err
	})
	return r, err
}
