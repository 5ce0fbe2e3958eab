package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/orders"
)

var _ orders.Store = (*Store)(nil)

const selectOrder = "select id, agent, turn, kind, request, price, status, answer, paid, created_at, session, principal from orders "

func scanOrder(row sqldb.Scanner) (o orders.Order, err error) {
	var paid int64
	err = row.Scan(&o.ID, &o.Agent, &o.Turn, &o.Kind, &o.Request, &o.Price, &o.Status, &o.Answer, &paid, &o.CreatedAt, &o.Session, &o.By)
	o.Paid = paid != 0
	return o, err
}

// Order implements [orders.Store].
func (s *Store) Order(ctx context.Context, id string) (orders.Order, bool, error) {
	o, err := scanOrder(s.db.QueryRowContext(ctx, selectOrder+"where id = $1", id))
	if errors.Is(err, sqldb.ErrNotFound) {
		return o, false, nil
	}
	return o, err == nil, err
}

// AddOrder implements [orders.Store].
func (s *Store) AddOrder(ctx context.Context, o orders.Order) (orders.Order, error) {
	_, err := s.db.ExecContext(ctx, `insert into orders (id, agent, turn, kind, request, price, status, answer, paid, created_at, session, principal)
		values ($1, $2, $3, $4, $5, $6, 'pending', '', 0, $7, $8, $9) on conflict (id) do nothing`,
		o.ID, o.Agent, o.Turn, string(o.Kind), o.Request, int64(o.Price), o.CreatedAt, o.Session, string(o.By))
	if err != nil {
		return o, err
	}
	return scanOrder(s.db.QueryRowContext(ctx, selectOrder+"where id = $1", o.ID))
}

// EndOrder implements [orders.Store].
func (s *Store) EndOrder(ctx context.Context, id string, status orders.Status, answer string, thing *orders.Thing) (o orders.Order, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, "update orders set status = $1, answer = $2 where id = $3 and status = 'pending'", string(status), answer, id)
		if thing != nil {
			tx.Queue(ctx, `insert into things (kind, id, agent, name, created_at) values ($1, $2, $3, $4, $5)
				on conflict (kind, id) do nothing`, string(thing.Kind), thing.ID, thing.Agent, thing.Name, thing.CreatedAt)
		}
		var err error
		o, err = scanOrder(tx.QueryRowContext(ctx, selectOrder+"where id = $1", id))
		return err
	})
	return o, err
}

// PaidOrder implements [orders.Store].
func (s *Store) PaidOrder(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, "update orders set paid = 1 where id = $1", id)
	return err
}

// OpenOrders implements [orders.Store].
func (s *Store) OpenOrders(ctx context.Context, before int64, limit int) ([]orders.Order, error) {
	return sqldb.All(ctx, s.db, scanOrder, selectOrder+"where paid = 0 and created_at < $1 order by created_at, id limit $2", before, limit)
}

const selectThing = "select kind, id, agent, name, created_at from things "

func scanThing(row sqldb.Scanner) (t orders.Thing, err error) {
	err = row.Scan(&t.Kind, &t.ID, &t.Agent, &t.Name, &t.CreatedAt)
	return t, err
}

// Things implements [orders.Store].
func (s *Store) Things(ctx context.Context, agent string, kind orders.Kind) ([]orders.Thing, error) {
	return sqldb.All(ctx, s.db, scanThing, selectThing+"where agent = $1 and kind = $2 order by created_at, id", agent, string(kind))
}

// Thing implements [orders.Store].
func (s *Store) Thing(ctx context.Context, kind orders.Kind, id string) (orders.Thing, bool, error) {
	t, err := scanThing(s.db.QueryRowContext(ctx, selectThing+"where kind = $1 and id = $2", string(kind), id))
	if errors.Is(err, sqldb.ErrNotFound) {
		return t, false, nil
	}
	return t, err == nil, err
}

// ReturnSandbox implements [orders.Store]. A provider may use an id again, so the thing may
// replace an earlier one.
func (s *Store) ReturnSandbox(ctx context.Context, id string) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into things (kind, id, agent, name, created_at) select $1, id, agent, name, created_at from things where kind = $2 and id = $3
			on conflict (kind, id) do update set agent = excluded.agent, name = excluded.name, created_at = excluded.created_at`,
			string(orders.Returned), string(orders.Sandbox), id)
		tx.Queue(ctx, "delete from things where kind = $1 and id = $2", string(orders.Sandbox), id)
		return nil
	})
}
