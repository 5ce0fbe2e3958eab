package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/config"
)

func TestReadSecretFile(t *testing.T) {
	t.Parallel()
	for mode, accepted := range map[os.FileMode]bool{
		0o600: true, 0o400: true, 0o440: true, 0o640: true, 0o700: true,
		0o644: false, 0o604: false, 0o602: false, 0o660: false, 0o666: false, 0o777: false,
	} {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte("hunter2"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		data, err := config.ReadSecretFile(file)
		switch {
		case accepted && (err != nil || string(data) != "hunter2"):
			t.Errorf("%#o: got %q and error %v, want the secret", mode, data, err)
		case !accepted && (err == nil || data != nil || !strings.Contains(err.Error(), "chmod 600 "+file) || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%#o: got %q and error %v, want a refusal that says what to do", mode, data, err)
		}
		// The permissions of a link are those of the file.
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		if err := config.CheckSecretFile(link); (err == nil) != accepted {
			t.Errorf("%#o through a link: got error %v, want accepted %t", mode, err, accepted)
		}
	}
	if _, err := config.ReadSecretFile(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("no file: got error %v, want one that says so", err)
	}
	if err := config.CheckSecretFile("/dev/null"); err != nil { // accessible to all, but not a regular file
		t.Errorf("a device: got error %v, want none", err)
	}
}
