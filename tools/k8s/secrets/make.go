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

// services are the users of NATS and of Postgres; each has its own.
var services = []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}

// people are users of NATS that are no service: the command line, and the system
// account.
var people = []string{"operator", "sys"}

// usersFile holds the public keys of the users. It follows from the seeds and is
// no secret.
const usersFile = "nats-users.env"

// natsServers is how many servers base has; each knows the others by name.
const natsServers = 3

// secret is one file of an overlay.
type secret struct {
	name string
	make func(random io.Reader) (string, error)
}

// secrets are all files but [usersFile].
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

// databaseURL is base's own server, as the service's role. The schema is the
// program's to name, and whether there is TLS is PGSSLMODE's, so that it changes
// without the secret. The password has no character that a URL would escape.
func databaseURL(service string, random io.Reader) (string, error) {
	password, err := hexadecimal(random, 24)
	return "postgres://" + strings.ReplaceAll(service, "-", "_") + ":" + password + "@postgres:5432/anima", err
}

// routes is what servers of NATS say to each other, and where they are: a part of
// the cluster's configuration.
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

// makeAll makes the files that dir lacks and returns their names. Unless missing
// is set, there may be none of them yet. It stops at the first error; what was made
// by then is whole and stays.
func makeAll(dir string, missing bool, random io.Reader) (made []string, err error) {
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the folder of %s is not there: give a full path, or make it", dir)
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
		return nil, fmt.Errorf("%s holds %d secrets already, and none is overwritten: add -missing to make the rest", dir, have)
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
		// Linked, not renamed: where two make the same secret, the first one's stays.
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

// isThere says whether a secret is there, and refuses one that others can read or
// that is empty.
func isThere(path string) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !st.Mode().IsRegular():
		return false, fmt.Errorf("%s is no file: move it away", path)
	case st.Mode()&0o077 != 0:
		return false, fmt.Errorf("%s may be read by others (%v): chmod 600 it, or delete it to have another made", path, st.Mode())
	case st.Size() == 0:
		return false, fmt.Errorf("%s is empty: delete it to have it made", path)
	}
	return true, nil
}

// writeUsers brings the users' public keys in line with their seeds, in the form
// that NATS reads as configuration and kustomize as literals. It says whether that
// changed anything.
func writeUsers(dir string) (changed bool, err error) {
	var b strings.Builder
	for _, user := range append(append([]string{}, services...), people...) {
		seed, err := os.ReadFile(filepath.Join(dir, seedFile(user)))
		if err != nil {
			return false, err
		}
		public, err := publicKey(strings.TrimSpace(string(seed)))
		if err != nil {
			return false, fmt.Errorf("%s: %w; delete it to have another made", filepath.Join(dir, seedFile(user)), err)
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

// place writes a file whole, so that no reader and no crash sees half of it, and
// puts it where it belongs. Only its owner may read it.
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
