package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// keysKept is how long the key of a request is kept. It is longer than a message
// can wait for its run; from then on the run's own row holds the content.
const keysKept = 7 * 24 * time.Hour

// Key is a request that a caller made recognizable with an idempotency key.
type Key struct {
	Run     string // the id that the key and its scope give
	Content string
	Mode    api.Mode
	At      int64 // Unix microseconds
}

// Claimed is what [Store.Claim] found.
type Claimed struct {
	Begun bool  // the run has begun, or is over: there is nothing left to publish
	At    int64 // when a run that has begun was accepted, Unix microseconds
}

// Claim binds a key to a request before the request is accepted. The same request
// may claim its key any number of times. After a crash between the claim and the
// message's publication the caller's retry publishes it. Errors: Conflict when the
// key is bound to another request.
func (s *Store) Claim(ctx context.Context, k Key) (Claimed, error) {
	var out Claimed
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		out = Claimed{}
		if err := bindKey(ctx, tx, k.Run, k.fingerprint(), k.At); err != nil {
			return err
		}
		var command string
		err := tx.QueryRowContext(ctx, `select command from runs where id = $1`, k.Run).Scan(&command)
		if errors.Is(err, sqldb.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		// The key's row may have been deleted and made again since.
		var cmd api.Run
		if err := json.Unmarshal([]byte(command), &cmd); err != nil {
			return fmt.Errorf("command of run %s: %w", k.Run, err)
		}
		if (Key{Run: k.Run, Content: cmd.Content, Mode: cmd.Mode}).fingerprint() != k.fingerprint() {
			return keyTaken()
		}
		out = Claimed{Begun: true, At: cmd.AcceptedAt}
		return nil
	})
	return out, err
}

// fingerprint is the same for two requests exactly when they ask for the same.
func (k Key) fingerprint() string {
	mode := k.Mode
	if mode == "" {
		mode = api.ModeQueue
	}
	return fingerprint(string(mode), k.Content)
}

// fingerprint hashes the parts of a request; their lengths keep them apart.
func fingerprint(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(p)) // a hash returns no error
		_, _ = io.Copy(h, strings.NewReader(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// bindKey binds a key to a request. Errors: Conflict when it is bound to another.
func bindKey(ctx context.Context, tx *sqldb.Tx, run, request string, at int64) error {
	if _, err := tx.ExecContext(ctx, `delete from request_keys where at < $1`, at-keysKept.Microseconds()); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `insert into request_keys (run, fingerprint, at) values ($1, $2, $3) on conflict (run) do nothing`,
		run, request, at); err != nil {
		return err
	}
	var bound string
	if err := tx.QueryRowContext(ctx, `select fingerprint from request_keys where run = $1`, run).Scan(&bound); err != nil {
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
