package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LAB_A", "from env")
	t.Setenv("LAB_B_FILE", file)
	t.Setenv("LAB_C_FILE", file+".none")
	for name, want := range map[string]string{"LAB_A": "from env", "LAB_B": "from file", "LAB_C": "default", "LAB_D": "default"} {
		if got := get(name, "default"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, err := secret("LAB_C"); err == nil {
		t.Error("a secret whose file is missing is no error")
	}
}
