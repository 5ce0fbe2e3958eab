// Package policy is the service that judges every tool call before the call may run. It
// records each decision before it answers, and signs a grant for each allowed call; the
// executor refuses a call without a valid grant. Package policy must not execute calls,
// spend credits or change the arguments of a call.
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

// Config is the configuration of the service.
type Config struct {
	SigningKey config.Secret `env:"signing_key" help:"Ed25519 seed that signs decisions, 64 hex digits, the same for all replicas; empty: one is made in the data folder"`
}

// Validate reports an invalid signing key, without the key's text.
func (c *Config) Validate() error {
	if c.SigningKey.Reveal() == "" {
		return nil
	}
	_, err := keyOf(c.SigningKey.Reveal(), "ANIMA_POLICY_SIGNING_KEY")
	return err
}

// Service is the definition of policy for package host.
var Service = host.Define("policy", Config{}, sqlstore.Migrations(), run)

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all writes are committed; an error of Close loses no data
	key, err := signingKey(env, cfg.SigningKey.Reveal())
	if err != nil {
		return err
	}
	engine, err := rule.Standard()
	if err != nil {
		return err
	}
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	h := &handlers{log: env.Log, now: env.Now, store: sqlstore.New(db), engine: engine, key: key, tel: tel}
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

// signingKey returns the configured key, or else the key in the data folder, which the
// first start creates.
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
		if err = makeKey(dir, file); err == nil {
			data, err = config.ReadSecretFile(file)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	return keyOf(strings.TrimSpace(string(data)), file)
}

// makeKey stores a new key in file, which is in dir. It changes nothing if the file
// exists, so replicas that share a folder agree on the first key.
func makeKey(dir, file string) error {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".key-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // the file is linked, or unusable
	_, err = tmp.WriteString(hex.EncodeToString(key.Seed()) + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), file); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func keyOf(text, where string) (ed25519.PrivateKey, error) {
	seed, err := hex.DecodeString(text)
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s does not hold an Ed25519 seed: it needs %d hex digits", where, 2*ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
