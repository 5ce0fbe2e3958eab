package sqlstore

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/social/internal/auth"
)

var _ auth.Store = (*Store)(nil)

// NonceSecret implements [auth.Store].
func (s *Store) NonceSecret(ctx context.Context, fresh []byte) ([]byte, error) {
	_, err := s.db.ExecContext(ctx, "insert into nonce_secret (one, secret) values (1, $1) on conflict (one) do nothing", hex.EncodeToString(fresh))
	if err != nil {
		return nil, err
	}
	var text string
	if err := s.db.QueryRowContext(ctx, "select secret from nonce_secret").Scan(&text); err != nil {
		return nil, err
	}
	return hex.DecodeString(text)
}

// SignIn implements [auth.Store].
func (s *Store) SignIn(ctx context.Context, nonce string, expires time.Time, token auth.Key) (fresh bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		res, err := tx.ExecContext(ctx, "insert into used_nonces (nonce, expires_at) values ($1, $2) on conflict (nonce) do nothing", nonce, micros(expires))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if fresh = n == 1; err != nil || !fresh {
			return err
		}
		insertKey(ctx, tx, token)
		return nil
	})
	return fresh && err == nil, err
}

func insertKey(ctx context.Context, tx *sqldb.Tx, k auth.Key) {
	scopes := make([]string, len(k.Scopes))
	for i, s := range k.Scopes {
		scopes[i] = string(s)
	}
	tx.Queue(ctx, `insert into api_keys (id, hash, hint, address, name, scopes, created_at, expires_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8)`, k.ID, k.Hash, k.Hint, k.Address, k.Name, strings.Join(scopes, " "), k.CreatedAt, k.ExpiresAt)
}

// AddKey implements [auth.Store].
func (s *Store) AddKey(ctx context.Context, k auth.Key, now time.Time) (added auth.Key, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// The lock serialises the requests of one address, including copies of one request.
		tx.Queue(ctx, `insert into key_owners (address, changed) values ($1, $2)
			on conflict (address) do update set changed = excluded.changed`, k.Address, micros(now))
		var err error
		if added, err = scanKey(tx.QueryRowContext(ctx, selectKey+"where k.hash = $1", k.Hash)); err == nil {
			if !k.Same(added) {
				return api.Errorf(api.Conflict, "the hash belongs to another key")
			}
			return nil
		}
		if !errors.Is(err, sqldb.ErrNotFound) {
			return err
		}
		var n int
		err = tx.QueryRowContext(ctx, `select count(*) from api_keys where address = $1 and scopes <> $2 and revoked_at = 0
			and (expires_at = 0 or expires_at > $3)`, k.Address, string(api.ScopeKeys), micros(now)).Scan(&n)
		if err != nil {
			return err
		}
		if n >= auth.MaxKeys {
			return auth.TooMany()
		}
		insertKey(ctx, tx, k)
		added, err = scanKey(tx.QueryRowContext(ctx, selectKey+"where k.hash = $1", k.Hash))
		return err
	})
	return added, err
}

// KeyByHash implements [auth.Store].
func (s *Store) KeyByHash(ctx context.Context, hash string) (auth.Key, error) {
	k, err := scanKey(s.db.QueryRowContext(ctx, selectKey+"where k.hash = $1", hash))
	if errors.Is(err, sqldb.ErrNotFound) {
		return auth.Key{}, auth.Unknown()
	}
	return k, err
}

// Keys implements [auth.Store].
func (s *Store) Keys(ctx context.Context, address string, after auth.Place, limit int) ([]auth.Key, error) {
	return sqldb.All(ctx, s.db, scanKey, selectKey+`where ($1 = '' or k.address = $1) and k.scopes <> $2
		and (k.created_at < $3 or k.created_at = $3 and k.id < $4 or $3 = 0)
		order by k.created_at desc, k.id desc limit $5`, address, string(api.ScopeKeys), after.CreatedAt, after.ID, limit)
}

// Revoke implements [auth.Store].
func (s *Store) Revoke(ctx context.Context, id, address string, now time.Time) (auth.Key, error) {
	_, err := s.db.ExecContext(ctx, `update api_keys set revoked_at = $1 where id = $2 and ($3 = '' or address = $3)
		and scopes <> $4 and revoked_at = 0`, micros(now), id, address, string(api.ScopeKeys))
	if err != nil {
		return auth.Key{}, err
	}
	k, err := scanKey(s.db.QueryRowContext(ctx, selectKey+"where k.id = $1 and ($2 = '' or k.address = $2) and k.scopes <> $3",
		id, address, string(api.ScopeKeys)))
	if errors.Is(err, sqldb.ErrNotFound) {
		return auth.Key{}, &api.Error{Code: api.NotFound, Message: "there is no such API key", Next: "anima key list shows them"}
	}
	return k, err
}

// PruneKeys implements [auth.Store].
func (s *Store) PruneKeys(ctx context.Context, now, then time.Time) error {
	for _, old := range []struct {
		expired
		at time.Time
	}{
		{expired{"used_nonces", "nonce", "expires_at < $1"}, now.Add(-auth.KeepNonce)},
		{expired{"api_keys", "id", "scopes = '" + string(api.ScopeKeys) + "' and expires_at < $1"}, now},
		{expired{"api_keys", "id", "(revoked_at > 0 and revoked_at < $1 or expires_at > 0 and expires_at < $1)"}, then},
		{expired{"key_owners", "address", "changed < $1 and not exists (select 1 from api_keys k where k.address = key_owners.address)"}, then},
	} {
		if err := s.prune(ctx, old.expired, micros(old.at)); err != nil {
			return err
		}
	}
	return nil
}

const selectKey = `select k.id, k.hash, k.hint, k.address, k.name, k.scopes, k.created_at, k.expires_at, k.revoked_at,
	coalesce((select min(d.agent) from directory d where d.address = k.address), '') from api_keys k `

func scanKey(row sqldb.Scanner) (k auth.Key, err error) {
	var scopes string
	err = row.Scan(&k.ID, &k.Hash, &k.Hint, &k.Address, &k.Name, &scopes, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.Agent)
	for s := range strings.FieldsSeq(scopes) {
		k.Scopes = append(k.Scopes, api.Scope(s))
	}
	return k, err
}
