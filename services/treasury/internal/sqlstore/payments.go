package sqlstore

import (
	"context"
	"encoding/base64"
	"errors"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/pay"
)

const paymentColumns = "id, agent, turn, request, method, url, state, network, payee, amount, payer, nonce, valid_after, valid_before," +
	" offer, header, value, tx, reason, status, content_type, body, cut, posted, busy_until, next_at, attempts, created_at, updated_at, parent," +
	" session, principal, facilitator, block, block_hash, reopened"

func paymentValues(p *pay.Payment) []any {
	return []any{
		p.ID, p.Agent, p.Turn, p.Request, p.Method, p.URL, string(p.State), p.Network, p.Payee, int64(p.Amount), p.Payer, p.Nonce, p.ValidAfter,
		p.ValidBefore, p.Offer, p.Header, p.Value, p.Transaction, p.Reason, p.Answer.Status, p.Answer.ContentType,
		base64.StdEncoding.EncodeToString(p.Answer.Body), bit(p.Answer.Cut), bit(p.Posted), p.BusyUntil, p.NextAt, p.Attempts, p.CreatedAt,
		p.UpdatedAt, p.Parent, p.Session, string(p.By), p.Facilitator, int64(p.Block.Number), hashText(p.Block.Hash), p.Reopened, //nolint:gosec // a number of a block
	}
}

// hashText returns a hash in hexadecimal, "" for none.
func hashText(h common.Hash) string {
	if h == (common.Hash{}) {
		return ""
	}
	return h.Hex()
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func scanPayment(row sqldb.Scanner) (p pay.Payment, err error) {
	var state, body, hash string
	var cut, posted, block int64
	err = row.Scan(&p.ID, &p.Agent, &p.Turn, &p.Request, &p.Method, &p.URL, &state, &p.Network, &p.Payee, &p.Amount, &p.Payer, &p.Nonce,
		&p.ValidAfter, &p.ValidBefore, &p.Offer, &p.Header, &p.Value, &p.Transaction, &p.Reason, &p.Answer.Status, &p.Answer.ContentType, &body,
		&cut, &posted, &p.BusyUntil, &p.NextAt, &p.Attempts, &p.CreatedAt, &p.UpdatedAt, &p.Parent,
		&p.Session, &p.By, &p.Facilitator, &block, &hash, &p.Reopened)
	if err != nil {
		return p, err
	}
	p.State, p.Answer.Cut, p.Posted = api.PaymentState(state), cut == 1, posted == 1
	p.Block.Number, p.Block.Hash = uint64(block), common.HexToHash(hash) //nolint:gosec // written by paymentValues
	if body != "" {
		p.Answer.Body, err = base64.StdEncoding.DecodeString(body)
	}
	return p, err
}

// ClaimPayment implements [pay.Store]. A fresh payment without an agent is not stored.
func (s *Store) ClaimPayment(ctx context.Context, fresh pay.Payment) (stored pay.Payment, claimed bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		stored, claimed = fresh, false
		if fresh.Agent != "" {
			made, err := tx.ExecContext(ctx, "insert into payments ("+paymentColumns+") values "+sqldb.Placeholders(1, 36)+" on conflict (id) do nothing",
				paymentValues(&fresh)...)
			if err != nil {
				return err
			}
			if n, err := made.RowsAffected(); n == 1 {
				claimed = true
				return err
			}
		}
		stored, err = scanPayment(tx.QueryRowContext(ctx, "select "+paymentColumns+" from payments where id = $1"+tx.ForUpdate(), fresh.ID))
		if errors.Is(err, sqldb.ErrNotFound) {
			return unknownPayment(fresh.ID)
		}
		if err != nil || stored.BusyUntil > fresh.UpdatedAt {
			return err
		}
		claimed, stored.BusyUntil = true, fresh.BusyUntil
		_, err = tx.ExecContext(ctx, "update payments set busy_until = $2 where id = $1", fresh.ID, fresh.BusyUntil)
		return err
	})
	return stored, claimed, err
}

// SavePayment implements [pay.Store].
func (s *Store) SavePayment(ctx context.Context, p pay.Payment, claim int64) error {
	res, err := s.db.ExecContext(ctx, "update payments set state = $3, network = $4, payee = $5, amount = $6, payer = $7, nonce = $8,"+
		" valid_after = $9, valid_before = $10, offer = $11, header = $12, value = $13, tx = $14, reason = $15, status = $16, content_type = $17,"+
		" body = $18, cut = $19, posted = $20, busy_until = $21, next_at = $22, attempts = $23, updated_at = $24,"+
		" facilitator = $25, block = $26, block_hash = $27, reopened = $28 where id = $1 and busy_until = $2",
		p.ID, claim, string(p.State), p.Network, p.Payee, int64(p.Amount), p.Payer, p.Nonce, p.ValidAfter, p.ValidBefore, p.Offer, p.Header,
		p.Value, p.Transaction, p.Reason, p.Answer.Status, p.Answer.ContentType, base64.StdEncoding.EncodeToString(p.Answer.Body),
		bit(p.Answer.Cut), bit(p.Posted), p.BusyUntil, p.NextAt, p.Attempts, p.UpdatedAt,
		p.Facilitator, int64(p.Block.Number), hashText(p.Block.Hash), p.Reopened) //nolint:gosec // a number of a block
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n != 1 {
		if err != nil {
			return err
		}
		return &api.Error{Code: api.Conflict, Message: "another process has continued the payment", Next: "read the payment again"}
	}
	return nil
}

// Payment implements [pay.Store].
func (s *Store) Payment(ctx context.Context, id string) (pay.Payment, error) {
	p, err := scanPayment(s.db.QueryRowContext(ctx, "select "+paymentColumns+" from payments where id = $1", id))
	if errors.Is(err, sqldb.ErrNotFound) {
		return p, unknownPayment(id)
	}
	return p, err
}

func unknownPayment(id string) error {
	e := api.Errorf(api.NotFound, "there is no payment %.60q", id)
	e.Next = "anima payment list shows the payments"
	return e
}

// Payments implements [pay.Store].
func (s *Store) Payments(ctx context.Context, agent string, state api.PaymentState, before int64, limit int) ([]pay.Payment, error) {
	return sqldb.All(ctx, s.db, scanPayment, "select "+paymentColumns+" from payments where created_at < $1 and ($2 = '' or agent = $2)"+
		" and ($3 = '' or state = $3) order by created_at desc, id limit $4", before, agent, string(state), limit)
}

// RecheckPayments implements [pay.Store].
func (s *Store) RecheckPayments(ctx context.Context, at int64) error {
	_, err := s.db.ExecContext(ctx, "update payments set next_at = $1 where next_at > $1 and state = 'settled'", at)
	return err
}

// DuePayments implements [pay.Store].
func (s *Store) DuePayments(ctx context.Context, at int64, limit int) ([]string, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "select id from payments where next_at > 0 and next_at <= $1 and busy_until <= $1 order by next_at limit $2", at, limit)
}
