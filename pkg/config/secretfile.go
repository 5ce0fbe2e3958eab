package config

import (
	"fmt"
	"os"
)

// ReadSecretFile reads a file that holds a key or a token. It refuses a regular file that
// every user of the machine may read or write, or that its group may write, because the
// secret may have been disclosed. The group may read it, because Kubernetes mounts
// secrets for a group.
func ReadSecretFile(path string) ([]byte, error) {
	if err := CheckSecretFile(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// openBits are the permissions that a secret's file must not have.
const openBits = 0o027

// CheckSecretFile is the check of [ReadSecretFile] for a file that another package reads.
// A file that is not regular, such as a pipe, is accepted.
func CheckSecretFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if perm := info.Mode().Perm(); info.Mode().IsRegular() && perm&openBits != 0 {
		return fmt.Errorf("%s holds a secret and has the permissions %#o: other users can reach it; run chmod 600 %s, and replace the secret if others may have read it", path, perm, path)
	}
	return nil
}
