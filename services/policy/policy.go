// Package policy judges every tool call before it may run. It records each
// decision before it answers, and signs what it allows; the executor refuses a
// call without such a signature. It must not run anything, spend anything, or
// change a call.
package policy

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/policy/internal/rule"
	"github.com/anima-run/anima/services/policy/internal/sqlstore"
)

// Config of the service.
type Config struct {
	SigningKey config.Secret `env:"signing_key" help:"Ed25519 seed that signs decisions, 64 hex digits, the same for all replicas; empty: one is made in the data folder"`
}

// Validate reports a key that is none, without showing it.
func (c *Config) Validate() error {
	if c.SigningKey.Reveal() == "" {
		return nil
	}
	_, err := keyOf(c.SigningKey.Reveal(), "ANIMA_POLICY_SIGNING_KEY")
	return err
}

// Service is policy, ready for a host.
var Service = host.Define("policy", Config{}, sqlstore.Migrations(), run)

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // everything is committed by now
	key, err := signingKey(env, cfg.SigningKey.Reveal())
	if err != nil {
		return err
	}
	book, err := rule.Standard()
	if err != nil {
		return err
	}
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	h := &handlers{log: env.Log, now: env.Now, store: sqlstore.New(db), book: book, key: key, tel: tel}
	h.routes(env.HTTP)
	return env.Serve(ctx,
		bus.Reply(h.evaluate),
		bus.Reply(h.checkCall),
		bus.Reply(h.approvePlan),
		bus.Reply(h.listDecisions),
		bus.Reply(h.listRules),
		bus.Reply(h.listKeys),
	)
}

// signingKey is the configured one, or that of the data folder, made on first
// use.
func signingKey(env *host.Env, given string) (ed25519.PrivateKey, error) {
	if given != "" {
		return keyOf(given, "ANIMA_POLICY_SIGNING_KEY")
	}
	dir, err := env.Folder()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "signing.key")
	data, err := config.ReadSecretFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		// Linked into place, so that of two replicas in one folder the first wins.
		tmp, err := os.CreateTemp(dir, ".key-*")
		if err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		defer func() { _ = os.Remove(tmp.Name()) }() // linked by then, or of no use
		_, err = tmp.WriteString(hex.EncodeToString(key.Seed()) + "\n")
		if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		data, err = config.ReadSecretFile(file)
		if err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return keyOf(strings.TrimSpace(string(data)), file)
}

func keyOf(text, where string) (ed25519.PrivateKey, error) {
	seed, err := hex.DecodeString(text)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s does not hold an Ed25519 seed: it needs %d hex digits", where, 2*ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
