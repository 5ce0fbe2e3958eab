package wallet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/anima-run/anima/pkg/config"
)

// passphraseFile is where a passphrase that nobody chose is kept.
const passphraseFile = "keystore.pass"

// Passphrase returns the one of a data folder, and makes a random one of 256
// bits, readable by its user only, if there is none. Several processes may ask at
// once; they get the same.
func Passphrase(dir string) (config.Secret, error) {
	path := filepath.Join(dir, passphraseFile)
	text, err := config.ReadSecretFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makePassphrase(path); err != nil {
			return "", fmt.Errorf("passphrase of the wallets: %w", err)
		}
		text, err = config.ReadSecretFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("passphrase of the wallets: %w", err)
	}
	secret := config.Secret(strings.TrimSpace(string(text)))
	if secret.Reveal() == "" {
		return "", fmt.Errorf("passphrase of the wallets: %s is empty; restore it, or remove it if there are no wallets yet", path)
	}
	return secret, nil
}

// makePassphrase links a complete file into place, so that nobody reads half a
// passphrase and nobody replaces one.
func makePassphrase(path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), passphraseFile+".*") // made with mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.WriteString(rand.Text() + rand.Text() + "\n") // 2 × 130 bits
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
