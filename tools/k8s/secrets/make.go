package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// services are the users of NATS and of Postgres; each has its own credentials.
var services = []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}

// people are the users of NATS other than services: the command line, and the system
// account.
var people = []string{"operator", "sys"}

// usersFile is the file with the public keys of the users. It is derived from the seeds
// and is not secret.
const usersFile = "nats-users.env"

// natsServers is the number of servers in base; each refers to the others by name.
const natsServers = 3

// secret is one file of an overlay with a function that creates its content.
type secret struct {
	name string
	make func(random io.Reader) (string, error)
}

// secrets returns all files except [usersFile].
func secrets() []secret {
	var all []secret
	for _, user := range append(append([]string{}, services...), people...) {
		all = append(all, secret{seedFile(user), newUser})
	}
	for _, service := range services {
		all = append(all, secret{"postgres-" + service + ".url", func(random io.Reader) (string, error) { return databaseURL(service, random) }})
	}
	return append(
		all,
		secret{"nats-routes.conf", routes},
		secret{"postgres-superuser", func(random io.Reader) (string, error) { return hexadecimal(random, 24) }},
		secret{"operator-token", func(random io.Reader) (string, error) { return hexadecimal(random, 32) }},
		secret{"policy-signing-key", func(random io.Reader) (string, error) { return hexadecimal(random, 32) }}, // an Ed25519 seed
		secret{"treasury-keystore", passphrase},
	)
}

func seedFile(user string) string { return "nats-" + user + ".seed" }

func hexadecimal(random io.Reader, bytes int) (string, error) {
	b := make([]byte, bytes)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", err
	}
	return hex.EncodeToString(b), nil
}

func passphrase(random io.Reader) (string, error) {
	b := make([]byte, 33)
	if _, err := io.ReadFull(random, b); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// databaseURL returns the URL of base's own server for the service's role. The program
// adds the schema. PGSSLMODE selects TLS, so that it can change without the secret. The
// password has no character that would have to be escaped in a URL.
func databaseURL(service string, random io.Reader) (string, error) {
	password, err := hexadecimal(random, 24)
	return "postgres://" + strings.ReplaceAll(service, "-", "_") + ":" + password + "@postgres:5432/anima", err
}

// routes returns the part of the cluster's configuration with the password and the
// addresses by which NATS servers connect to each other.
func routes(random io.Reader) (string, error) {
	password, err := hexadecimal(random, 24)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "authorization { user: routes, password: %q, timeout: 5 }\nroutes: [\n", password)
	for i := range natsServers {
		fmt.Fprintf(&b, "  \"nats://routes:%s@nats-%d.nats-headless:6222\"\n", password, i)
	}
	b.WriteString("]")
	return b.String(), nil
}

// makeAll creates the files that are missing in dir and returns their names. Unless
// missing is true, it is an error if one of them exists. It stops at the first error;
// files that were created before are complete and are kept.
func makeAll(dir string, missing bool, random io.Reader) (made []string, err error) {
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the parent folder of %s does not exist: give a full path, or create it", dir)
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	have := 0
	for _, s := range secrets() {
		there, err := isThere(filepath.Join(dir, s.name))
		if err != nil {
			return nil, err
		}
		if there {
			have++
		}
	}
	if have > 0 && !missing {
		return nil, fmt.Errorf("%s holds %d secrets already, and none is overwritten: add -missing to create the others", dir, have)
	}
	for _, s := range secrets() {
		path := filepath.Join(dir, s.name)
		if there, err := isThere(path); err != nil {
			return made, err
		} else if there {
			continue
		}
		text, err := s.make(random)
		if err != nil {
			return made, fmt.Errorf("%s: %w", s.name, err)
		}
		// Link fails if the file exists: of two concurrent processes the first one's
		// secret is kept.
		if err := place(path, text, os.Link); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return made, err
		}
		made = append(made, s.name)
	}
	changed, err := writeUsers(dir)
	if changed {
		made = append(made, usersFile)
	}
	return made, err
}

// isThere reports whether a secret exists. A secret that other users can read, or that is
// empty, is an error.
func isThere(path string) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !st.Mode().IsRegular():
		return false, fmt.Errorf("%s is not a file: move it away", path)
	case st.Mode()&0o077 != 0:
		return false, fmt.Errorf("%s can be read by other users (%v): chmod 600 it, or delete it to have another created", path, st.Mode())
	case st.Size() == 0:
		return false, fmt.Errorf("%s is empty: delete it to have it created", path)
	}
	return true, nil
}

// writeUsers writes the users' public keys, derived from their seeds, in a form that NATS
// reads as configuration and kustomize as literals. It reports whether the file has
// changed.
func writeUsers(dir string) (changed bool, err error) {
	var b strings.Builder
	for _, user := range append(append([]string{}, services...), people...) {
		seed, err := os.ReadFile(filepath.Join(dir, seedFile(user)))
		if err != nil {
			return false, err
		}
		public, err := publicKey(strings.TrimSpace(string(seed)))
		if err != nil {
			return false, fmt.Errorf("%s: %w; delete it to have another created", filepath.Join(dir, seedFile(user)), err)
		}
		fmt.Fprintf(&b, "NKEY_%s=%s\n", strings.ToUpper(strings.ReplaceAll(user, "-", "_")), public)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	path := filepath.Join(dir, usersFile)
	if old, err := os.ReadFile(path); err == nil && string(old) == text+"\n" {
		return false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, place(path, text, os.Rename)
}

// place writes a temporary file that only its owner may read and moves it to path with
// put, so that readers never find a partial file, also after a crash.
func place(path, text string, put func(from, to string) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if rm := os.Remove(tmp.Name()); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}()
	_, err = tmp.WriteString(text + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return put(tmp.Name(), path)
}
