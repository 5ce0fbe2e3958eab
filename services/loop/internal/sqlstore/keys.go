package sqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// keysKept is how long the idempotency key of a request is stored. It is longer than a
// message can wait for its run; after the run has begun, the run's row has the content.
const keysKept = 7 * 24 * time.Hour

// Key is a request with an idempotency key.
type Key struct {
	Run     string // id derived from the key and its scope
	Content string
	Mode    api.Mode
	At      int64 // Unix microseconds
}

// Claimed is the result of [Store.Claim].
type Claimed struct {
	Begun bool  // the run has begun or has ended, and the message must not be published again
	At    int64 // when a run that has begun was accepted, Unix microseconds
}

// Claim binds a key to a request before the request is accepted. It is idempotent for the
// same request: after a crash between Claim and the publication of the message, the
// caller retries and publishes it. Errors: Conflict when the key is bound to another
// request.
func (s *Store) Claim(ctx context.Context, k Key) (Claimed, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (Claimed, error) {
		if err := bindKey(ctx, tx, k.Run, k.fingerprint(), k.At); err != nil {
			return Claimed{}, err
		}
		var cmd api.Run
		err := tx.QueryRowContext(ctx, `select command from runs where id = $1`, k.Run).Scan(sqldb.JSON(&cmd))
		if err != nil {
			return Claimed{}, missing(err, nil)
		}
		// The key's row may have been deleted after keysKept and inserted again.
		if (Key{Run: k.Run, Content: cmd.Content, Mode: cmd.Mode}).fingerprint() != k.fingerprint() {
			return Claimed{}, keyTaken()
		}
		return Claimed{Begun: true, At: cmd.AcceptedAt}, nil
	})
}

// fingerprint returns the hash of a request's mode and content; mode "" is the default.
func (k Key) fingerprint() string {
	return fingerprint(string(cmp.Or(k.Mode, api.ModeQueue)), k.Content)
}

// fingerprint hashes the parts of a request, each with its length as a prefix, so that
// different parts do not give the same hash.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // a hash returns no error
	}
	return hex.EncodeToString(h.Sum(nil))
}

// bindKey binds a key to a request and deletes expired keys. Errors: Conflict when the
// key is bound to another request.
func bindKey(ctx context.Context, tx *sqldb.Tx, run, request string, at int64) error {
	tx.Queue(ctx, `delete from request_keys where at < $1`, at-keysKept.Microseconds())
	tx.Queue(ctx, `insert into request_keys (run, fingerprint, at) values ($1, $2, $3) on conflict (run) do nothing`, run, request, at)
	bound, err := sqldb.One[string](ctx, tx, `select fingerprint from request_keys where run = $1`, run)
	if err != nil {
		return err
	}
	if bound != request {
		return keyTaken()
	}
	return nil
}

func keyTaken() error {
	return &api.Error{
		Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: "the idempotency key was used for another request",
		Next: "send this one with a key of its own, or without one",
	}
}
