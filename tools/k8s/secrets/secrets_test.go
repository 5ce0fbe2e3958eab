package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// contents returns the files of a folder by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v (%v), want 0600", e.Name(), st.Mode(), err)
		}
	}
	return files
}

// made returns a folder with all files.
func made(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "secrets")
	if _, err := makeAll(dir, false, rand.Reader); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestUserKeysAreThoseOfNATS uses the test vector of RFC 8032; its expected encoding was
// made with the library of NATS.
func TestUserKeysAreThoseOfNATS(t *testing.T) {
	t.Parallel()
	raw, err := hex.DecodeString("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
	if err != nil {
		t.Fatal(err)
	}
	const seed = "SUAJ2YNRTXX72WTAXKCEV5ES5QWMIRCJYVUXWMTJDFYDXLADDSXH6YALCA"
	if got, err := newUser(bytes.NewReader(raw)); err != nil || got != seed {
		t.Errorf("got %q, %v, want %q", got, err, seed)
	}
	const public = "UDLVVGABQKYQVN6VJP7NHSLEA45A5YLS6PNKMIZFV4BBU2HXA5IRUVAL"
	if got, err := publicKey(seed); err != nil || got != public {
		t.Errorf("got %q, %v, want %q", got, err, public)
	}
	for _, bad := range []string{"", "SUA", public, seed[:57] + "B", strings.ToLower(seed), "SA" + seed[2:]} {
		if got, err := publicKey(bad); err == nil {
			t.Errorf("publicKey(%q) = %q, want an error", bad, got)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("the error quotes the seed: %v", err)
		}
	}
}

func TestEverythingIsMade(t *testing.T) {
	t.Parallel()
	dir := made(t)
	files := contents(t, dir)
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder has the mode %v (%v), want 0700", st.Mode(), err)
	}
	if len(files) != len(secrets())+1 {
		t.Errorf("got %d files, want %d", len(files), len(secrets())+1)
	}
	forms := map[string]string{
		"nats-.*seed":        `^SU[A-Z2-7]{56}\n$`,
		"postgres-.*url":     `^postgres://[a-z_]+:[0-9a-f]{48}@postgres:5432/anima\n$`,
		"postgres-superuser": `^[0-9a-f]{48}\n$`,
		"operator-token":     `^[0-9a-f]{64}\n$`,
		"policy-signing-key": `^[0-9a-f]{64}\n$`,
		"treasury-keystore":  `^[0-9A-Za-z_-]{44}\n$`,
		"nats-routes.conf":   `^authorization \{ user: routes, password: "[0-9a-f]{48}"`,
		"nats-users.env":     `^(NKEY_[A-Z_]+=U[A-Z2-7]{55}\n){8}$`,
	}
	seen := map[string]string{}
	for name, text := range files {
		if other := seen[text]; other != "" {
			t.Errorf("%s and %s are the same", name, other)
		}
		seen[text] = name
		known := false
		for pattern, form := range forms {
			if regexp.MustCompile("^" + pattern + "$").MatchString(name) {
				known = true
				if !regexp.MustCompile(form).MatchString(text) {
					t.Errorf("%s does not look like %s", name, form)
				}
			}
		}
		if !known {
			t.Errorf("%s is of no known form", name)
		}
	}
	u, err := url.Parse(strings.TrimSpace(files["postgres-inference-router.url"]))
	if err != nil || u.User.Username() != "inference_router" {
		t.Errorf("got the role %q, %v, want inference_router", u.User.Username(), err)
	}
	if !strings.Contains(files[usersFile], "\nNKEY_INFERENCE_ROUTER=") {
		t.Errorf("the router's key has another name:\n%s", files[usersFile])
	}
}

// TestOnlyWhatIsMissingIsMade checks that an existing file is never overwritten, and that
// a deleted one is created again, with the file that is derived from it.
func TestOnlyWhatIsMissingIsMade(t *testing.T) {
	t.Parallel()
	dir := made(t)
	before := contents(t, dir)
	if _, err := makeAll(dir, false, rand.Reader); err == nil || !strings.Contains(err.Error(), "-missing") {
		t.Errorf("got %v, want an error that names -missing", err)
	}
	if names, err := makeAll(dir, true, rand.Reader); err != nil || len(names) != 0 {
		t.Errorf("got %v, %v, want nothing to be made", names, err)
	}
	if after := contents(t, dir); !maps.Equal(before, after) {
		t.Error("a second run changed something")
	}
	for _, name := range []string{"nats-loop.seed", "operator-token"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"nats-loop.seed", "nats-users.env", "operator-token"}
	names, err := makeAll(dir, true, rand.Reader)
	if slices.Sort(names); err != nil || !slices.Equal(names, want) {
		t.Errorf("got %v, %v, want %v", names, err, want)
	}
	after := contents(t, dir)
	for name := range before {
		if changed := before[name] != after[name]; changed != slices.Contains(want, name) {
			t.Errorf("%s: changed is %v", name, changed)
		}
	}
	public, err := publicKey(strings.TrimSpace(after["nats-loop.seed"]))
	if err != nil || !strings.Contains(after[usersFile], "NKEY_LOOP="+public+"\n") {
		t.Errorf("%s does not have the new key %s (%v)", usersFile, public, err)
	}
}

// TestWhatIsWrongIsRefused checks that an unusable file is reported with a remedy, and
// that the error does not contain the secret.
func TestWhatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what, want string
		spoil      func(dir string) error
	}{
		{"a secret that others can read", "chmod 600", func(dir string) error { return os.Chmod(filepath.Join(dir, "operator-token"), 0o644) }},
		{"an empty one", "is empty", func(dir string) error { return os.WriteFile(filepath.Join(dir, "operator-token"), nil, 0o600) }},
		{"a seed that is none", "delete it", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "nats-policy.seed"), []byte("hidden"), 0o600)
		}},
		{"a folder in its place", "is not a file", func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "operator-token")), os.Mkdir(filepath.Join(dir, "operator-token"), 0o700))
		}},
	} {
		dir := made(t)
		if err := tt.spoil(dir); err != nil {
			t.Fatal(err)
		}
		_, err := makeAll(dir, true, rand.Reader)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.what, err, tt.want)
		} else if strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: the error has the secret: %v", tt.what, err)
		}
	}
	if _, err := makeAll(filepath.Join(t.TempDir(), "a", "b"), false, rand.Reader); err == nil || !strings.Contains(err.Error(), "full path") {
		t.Errorf("got %v, want an error about the folder above", err)
	}
	dir := filepath.Join(t.TempDir(), "secrets")
	if _, err := makeAll(dir, false, noBytes{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want what the source of random bytes says", err)
	}
	if files := contents(t, dir); len(files) != 0 {
		t.Errorf("without random bytes these were made: %v", slices.Collect(maps.Keys(files)))
	}
}

// noBytes is a source of random bytes that always fails.
type noBytes struct{}

func (noBytes) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestCommand checks that the command prints names and never contents, and that it finds
// overlays/dev from any folder of the repository.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "secrets")
	var out, log strings.Builder
	if err := run([]string{"-o", dir}, &out, &log); err != nil {
		t.Fatal(err)
	}
	for name, text := range contents(t, dir) {
		if !strings.Contains(out.String(), filepath.Join(dir, name)) {
			t.Errorf("%s is not said to be made", name)
		}
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			if len(line) > 1 && strings.Contains(out.String()+log.String(), line) {
				t.Errorf("%s was printed", name)
			}
		}
	}
	out.Reset()
	if err := run([]string{"-missing", "-o", dir}, &out, &log); err != nil || !strings.Contains(out.String(), "nothing is missing") {
		t.Errorf("got %q, %v", out.String(), err)
	}
	if err := run([]string{dir}, &out, &log); err == nil || !strings.Contains(err.Error(), "-o") {
		t.Errorf("got %v, want an error that names -o", err)
	}
	root := t.TempDir()
	below := filepath.Join(root, "tools", "k8s")
	overlay := filepath.Join(root, "deploy", "k8s", "overlays", "dev")
	if err := errors.Join(os.MkdirAll(below, 0o700), os.MkdirAll(overlay, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got, err := devFolder(below); err != nil || got != filepath.Join(overlay, "secrets") {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestOverlaysReadWhatIsMade checks that overlays read all created files, and no others.
func TestOverlaysReadWhatIsMade(t *testing.T) {
	t.Parallel()
	want := []string{usersFile}
	for _, s := range secrets() {
		want = append(want, s.name)
	}
	unread := map[string]bool{}
	for _, name := range want {
		unread[name] = true
	}
	for _, overlay := range []string{"dev", "lab"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "k8s", "overlays", overlay, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k types.Kustomization
		if err := yaml.Unmarshal(data, &k); err != nil {
			t.Fatal(err)
		}
		var sources []string
		for _, g := range k.SecretGenerator {
			sources = append(sources, g.FileSources...)
		}
		for _, g := range k.ConfigMapGenerator {
			sources = append(sources, g.EnvSources...)
		}
		for _, source := range sources {
			_, file, ok := strings.Cut(source, "=")
			if !ok {
				file = source
			}
			name, ok := strings.CutPrefix(file, "secrets/")
			if !ok || !slices.Contains(want, name) {
				t.Errorf("%s reads %s, which nothing makes", overlay, file)
			}
			delete(unread, name)
		}
	}
	delete(unread, seedFile("sys")) // for people only
	if len(unread) > 0 {
		t.Errorf("no overlay reads %v", slices.Sorted(maps.Keys(unread)))
	}
}
