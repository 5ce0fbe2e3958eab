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

// passphraseFile is the name of the file with a generated passphrase.
const passphraseFile = "keystore.pass"

// Passphrase returns the passphrase in a data folder. If there is none, it creates a
// random one of at least 256 bits that only the user of the process can read. Concurrent
// processes get the same passphrase.
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

// makePassphrase writes a temporary file and links it to path, so that no process reads a
// partial passphrase and an existing one is not replaced.
func makePassphrase(path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), passphraseFile+".*") // created with mode 0600
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
